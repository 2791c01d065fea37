"""What is read back of approvals, the audit chain and the service itself, as models for the contract (see `answers`)."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from app.api.answers import Answer, Digest, Moment, Quantity, ReasonCode, Risk, ScopeEntry, SideEffects, absent
from app.api.approvals import ApprovalStatus
from app.domain.audit_chain import BreakKind
from app.domain.decision import Layer
from app.domain.tool_call import Role


class Quorum(Answer):
    required: int = Field(ge=1)
    received: int = Field(ge=0)
    roles: list[Role]


class Binding(Answer):
    """What an approval is bound to; if any of it changes, it needs a new one."""

    bound_digest: Digest
    effects_digest: Digest = absent("absent where no dry run was made")
    policy_digest: Digest
    state_version: int = absent("absent where the call named none")


class ReviewedCall(Answer):
    tool: str
    arguments: dict[str, Any]


class ReviewReason(Answer):
    layer: Layer
    reason: ReasonCode


class ReviewedBudget(Answer):
    name: str
    level: str
    remaining_before: Quantity
    remaining_after: Quantity


class Review(Answer):
    """What a reviewer is to see."""

    call: ReviewedCall
    why: list[ReviewReason]
    budgets: list[ReviewedBudget]
    side_effects: SideEffects = absent("absent where no dry run was made")
    risk: Risk = absent("absent where no risk was computed")


class ApprovalSummary(Answer):
    """An approval as lists show it."""

    approval_id: UUID
    kind: Literal["tool_call"]
    status: ApprovalStatus
    decision_id: UUID
    requested_by: str
    session_id: str
    task_id: str = absent("one goal inside the session")
    call_id: str
    tool: str
    created_at: Moment
    expires_at: Moment
    on_expiry: Literal["refused"]
    quorum: Quorum
    scope: list[ScopeEntry]
    answers: list[dict[str, Any]] = Field(description="empty in this version, which takes no answers yet")


class Approval(ApprovalSummary):
    """An approval. Only a reviewer gets `binding`, `review` and `seen_digest`."""

    on_behalf_of: dict[str, str] = absent("the end user whom the agent serves")
    binding: Binding = absent("only for reviewers")
    review: Review = absent("only for reviewers")
    seen_digest: Digest = absent("the digest of `review`, for an answer to name; only for reviewers")


class ApprovalsPage(Answer):
    items: list[ApprovalSummary]
    next_cursor: UUID = absent("absent on the last page")


class ChainHead(Answer):
    sequence: int = Field(ge=0)
    hash: Digest


class SignedCheckpoint(Answer):
    checkpoint_id: UUID
    sequence: int = Field(ge=1)
    hash: Digest
    signed_at: Moment
    kid: str
    valid: bool = Field(description="whether the signature is this service's and the row still has this hash")


class FirstBroken(Answer):
    sequence: int
    kind: BreakKind
    expected: str = absent("what the chain says")
    actual: str = absent("what stands there")


class ChainVerification(Answer):
    """Whether a tenant's audit chain is whole."""

    chain: str
    from_sequence: int
    until_sequence: int = Field(description="not included")
    rows: int = Field(ge=0)
    verified: bool
    head: ChainHead
    checkpoints: list[SignedCheckpoint]
    first_broken: FirstBroken = absent("the first row that isn't as the chain says")


class Health(Answer):
    status: Literal["ok"]


class ReadinessChecks(Answer):
    """Each `ok`, or what is wrong and what to do. With the database away there is only that one."""

    database: str
    migrations: str = absent("whether the schema is at this version's")
    role: str = absent("whether the service's role is as weak as it should be")
    partitions: str = absent("whether next month's partitions are there")
    policy: str = absent("whether a policy is active")
    functions: str = absent("whether the decision functions answer")


class Readiness(Answer):
    """Whether the service can decide."""

    status: Literal["ready", "not_ready"]
    checks: ReadinessChecks

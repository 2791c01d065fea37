"""The answers that are written as documents, as models: what the contract says of them, and nothing that runs.

These routes answer with stored or canonical text, which no model touches, so a test holds these models against real answers. A field that
may be absent is never null (API.md 0.1); readers ignore fields that they don't know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.approvals import ApprovalStatus
from app.domain.audit_chain import BreakKind
from app.domain.decision import Decision, Layer, Outcome
from app.domain.hint import DenialClass, NextActionKind, Retryable
from app.domain.tool_call import Role


def _without_null_defaults(schema: dict[str, Any]) -> None:
    for field in schema.get("properties", {}).values():
        if field.get("default", ...) is None:
            del field["default"]


def _erasable(schema: dict[str, Any]) -> None:
    """What comes from the payload may be absent, because the payload can be erased."""
    _without_null_defaults(schema)
    schema["required"] = [name for name in schema["required"] if name not in ("layers", "cuts", "holds", "obligations", "limits")]


def _absent(description: str, **more: Any) -> Any:
    """Declare a field that may be absent and is never null."""
    return Field(default=None, description=description, **more)


class _Answer(BaseModel):
    model_config = ConfigDict(json_schema_extra=_without_null_defaults)


Moment = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        description="RFC 3339, UTC, three decimals",
        json_schema_extra={"format": "date-time"},
    ),
]
Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
Pointer = Annotated[str, Field(pattern="^(/.*)?$", description="a JSON Pointer (RFC 6901)")]
ReasonCode = Annotated[
    str, Field(pattern="^[a-z][a-z0-9_]{0,63}$", description="a built-in code or one of the policy's; never renamed or reused")
]


class Quantity(_Answer):
    """An exact amount: a decimal string with exactly the currency's digits, or a count in a unit. It has `currency` or `unit`."""

    amount: str = Field(pattern=r"^\d+(\.\d+)?$", examples=["80.00"])
    currency: str = _absent("ISO 4217", pattern="^[A-Z]{3}$", examples=["EUR"])
    unit: str = _absent("calls, requests, refusals, rounds, tokens, ms, bytes, rows or lines", examples=["calls"])


class ScopeEntry(_Answer):
    """One entry of a scope; a scope is the union of its entries."""

    action: str
    resource: str = Field(examples=["order:A-1001"])
    constraints: dict[str, Any] = _absent("ceilings (`max`), enumerations (`in`) and a time window; absent is unlimited")
    except_: list[dict[str, Any]] = _absent("what is taken out of this entry", alias="except")


class EffectiveScopeEntry(ScopeEntry):
    rests_on: list[str] = Field(description="the grants and approvals that this rests on", examples=[["grant:customer_service"]])


class Cut(_Answer):
    """One thing that was asked for and not given."""

    action: str
    resource: str
    constraint: str = _absent("the constraint that cut")
    requested: dict[str, Any] = _absent("what was asked for")
    granted: dict[str, Any] = _absent("what is granted")
    by: str = Field(description="`grant:<name>`, or `default`: nothing granted it")
    reason: ReasonCode


class Check(_Answer):
    """What one check of a layer said."""

    name: str
    outcome: Outcome
    reason: ReasonCode = _absent("why it refused or asks")
    field: Pointer = _absent("the argument that it is about")
    fact: str = _absent("the fact that `actual` and `expected` speak of", examples=["risk.score"])
    actual: Any = _absent("the value as it is")
    expected: dict[str, Any] = _absent("the value as it should be: a JSON Schema fragment")
    message: str = _absent("one sentence, never to be parsed")


class LayerAnswer(_Answer):
    """One layer that ran."""

    name: Layer
    outcome: Outcome
    checks: list[Check]
    duration_us: int = Field(ge=0)


class Hold(_Answer):
    """What is held on an account until the outcome is known."""

    hold_id: UUID
    account: str = Field(examples=["order:A-1001"])
    quantity: Quantity
    status: Literal["held"]


class Limit(_Answer):
    """What remains of a budget, or of the attempts at a rule."""

    name: str = Field(examples=["budget:refunds_per_agent_day"])
    level: Literal["tenant", "segment", "principal", "session", "task", "turn"]
    limit: Quantity
    spent: Quantity
    held: Quantity = _absent("what open calls hold; budgets only")
    remaining: Quantity
    resets_at: Moment = _absent("when the window ends; absent for `total`")


class RowChange(_Answer):
    """One row that the dry run changed; columns as they are stored."""

    table: str
    operation: Literal["insert", "update", "delete"]
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class RowCounts(_Answer):
    inserted: int
    updated: int
    deleted: int


class SideEffects(_Answer):
    """What the call would do, as the dry run saw it."""

    strategy: Literal["transaction"]
    rows: list[RowChange]
    counts: dict[str, RowCounts]
    digest: Digest


class RiskFactor(_Answer):
    name: str
    value: float
    weight: float
    contribution: float


class Risk(_Answer):
    """The score and the pair of thresholds that it was held against."""

    score: float = Field(ge=0, le=1)
    review_at: float
    deny_at: float
    thresholds_for: dict[str, Any] = Field(description="the selector that set the pair; {} is the whole tenant")
    factors: list[RiskFactor]


class PendingApproval(_Answer):
    """The approval that the call waits for."""

    approval_id: UUID
    status: Literal["pending"]
    wait_url: str = Field(examples=["/approvals/01a230d5-2fd8-7907-9af2-55e55f2a8983?wait_s=60"])
    expires_at: Moment


class NextStep(_Answer):
    kind: NextActionKind
    tool: str = _absent("the tool to call first")
    approval_id: UUID = _absent("the approval to wait for")


class Hint(_Answer):
    """What a model needs to correct itself."""

    denial_class: DenialClass
    retryable: Retryable = Field(description="`never` and `after_change` settle the call id; the other two don't")
    field: Pointer = _absent("the argument to change")
    fact: str = _absent("the fact that `actual` and `expected` speak of")
    actual: Any = _absent("the value as it is")
    expected: dict[str, Any] = _absent("the value as it should be: a JSON Schema fragment")
    retry_after_ms: int = _absent("how long to wait before the same call may be sent again", ge=0)
    message: str = Field(description="one sentence, never to be parsed")
    next_action: NextStep
    suggested_arguments: dict[str, Any] = _absent("arguments that no layer refuses")
    suggestion_verified: Literal[True] = _absent("always true: a suggestion was tried in every layer")
    suggestion_decision: Decision = _absent("the decision that the suggestion would get")
    attempts_left: int = _absent("how often this rule may still refuse this task", ge=0)


class ToolResultContent(_Answer):
    """What the model reads."""

    guard_rejected: Literal[True]
    reason: str
    fix_hint: str
    field: Pointer = _absent("the argument to change")
    actual: Any = _absent("the value as it is")
    expected: dict[str, Any] = _absent("the value as it should be")
    suggested_arguments: dict[str, Any] = _absent("arguments that no layer refuses")
    next_action: str


class ToolResult(_Answer):
    """The refusal as a tool message for the model, in the generic format."""

    role: Literal["tool"]
    tool_call_id: str = _absent("the call's id, where it could be read")
    tool_name: str = _absent("the tool's name, where it could be read")
    is_error: Literal[True]
    content: ToolResultContent


class ChainPlace(_Answer):
    """Where the decision stands in the tenant's audit chain."""

    chain: str = Field(examples=["acme"])
    sequence: int = Field(ge=1)
    hash: Digest


class _Decided(_Answer):
    decision_id: UUID
    decision: Decision
    execution_permitted: bool = Field(description="the only field that permits: true once, in the first answer of `accepted` or `modified`")
    reason: ReasonCode
    refused_by: Layer = _absent("the layer that refused; only where `decision` is `denied`")
    layers: list[LayerAnswer] = Field(description="what ran, in order")
    cuts: list[Cut]
    holds: list[Hold]
    obligations: list[dict[str, Any]]
    limits: list[Limit]
    effective_arguments: dict[str, Any] = _absent("the arguments that may run; absent on `denied` and `needs_user`")
    effective_scope: list[EffectiveScopeEntry] = _absent("the scope that the call runs in; absent on `denied` and `needs_user`")
    side_effects: SideEffects = _absent("absent where no dry run was made")
    risk: Risk = _absent("absent where no risk was computed")
    approval: PendingApproval = _absent("only where `decision` is `needs_user`")
    fix_hint: Hint = _absent("only where the call may not run")
    policy_version: int = _absent("the policy's version; absent where the tenant has none", ge=1)
    decided_at: Moment
    audit: ChainPlace


class ToolCallDecision(_Decided):
    """May the call run? A decision is a value: 200, whatever it says."""

    replayed: bool = Field(description="true if this call id was decided before; a replay permits nothing")
    tool_result: ToolResult = _absent("the refusal as a message for the model; only where there is a `fix_hint`")


class ToolCallRequestRecord(_Answer):
    """The request as it was kept: what was sent, under the names that it was sent with."""

    tool: str
    arguments: dict[str, Any]
    session_id: str
    call_id: str
    task_id: str = _absent("one goal inside the session")
    turn: int = _absent("which of the model's responses asked")
    state_version: int = _absent("the version of the task's state that the model saw")
    requested_scope: list[dict[str, Any]] = _absent("what the caller narrowed to")
    on_behalf_of: dict[str, str] = _absent("the end user whom the agent served")
    approval_id: str = _absent("the approval that the request pointed at")


class DecisionRecord(_Decided):
    """A decision read back. It permits nothing. Once its payload was erased, only what the row itself says is left."""

    model_config = ConfigDict(json_schema_extra=_erasable)

    execution_permitted: Literal[False]
    status: Literal["refused", "permitted", "waiting"]
    attempt: int = Field(ge=0, description="how often the call id had been decided, itself included")
    request: ToolCallRequestRecord = _absent("the request; absent once it was erased")
    payload_erased_at: Moment = _absent("when request and answer were erased")


class Quorum(_Answer):
    required: int = Field(ge=1)
    received: int = Field(ge=0)
    roles: list[Role]


class Binding(_Answer):
    """What an approval is bound to; if any of it changes, it needs a new one."""

    bound_digest: Digest
    effects_digest: Digest = _absent("absent where no dry run was made")
    policy_digest: Digest
    state_version: int = _absent("absent where the call named none")


class ReviewedCall(_Answer):
    tool: str
    arguments: dict[str, Any]


class ReviewReason(_Answer):
    layer: Layer
    reason: ReasonCode


class ReviewedBudget(_Answer):
    name: str
    level: str
    remaining_before: Quantity
    remaining_after: Quantity


class Review(_Answer):
    """What a reviewer is to see."""

    call: ReviewedCall
    why: list[ReviewReason]
    budgets: list[ReviewedBudget]
    side_effects: SideEffects = _absent("absent where no dry run was made")
    risk: Risk = _absent("absent where no risk was computed")


class ApprovalSummary(_Answer):
    """An approval as lists show it."""

    approval_id: UUID
    kind: Literal["tool_call"]
    status: ApprovalStatus
    decision_id: UUID
    requested_by: str
    session_id: str
    task_id: str = _absent("one goal inside the session")
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

    on_behalf_of: dict[str, str] = _absent("the end user whom the agent serves")
    binding: Binding = _absent("only for reviewers")
    review: Review = _absent("only for reviewers")
    seen_digest: Digest = _absent("the digest of `review`, for an answer to name; only for reviewers")


class ApprovalsPage(_Answer):
    items: list[ApprovalSummary]
    next_cursor: UUID = _absent("absent on the last page")


class ChainHead(_Answer):
    sequence: int = Field(ge=0)
    hash: Digest


class SignedCheckpoint(_Answer):
    checkpoint_id: UUID
    sequence: int = Field(ge=1)
    hash: Digest
    signed_at: Moment
    kid: str
    valid: bool = Field(description="whether the signature is this service's and the row still has this hash")


class FirstBroken(_Answer):
    sequence: int
    kind: BreakKind
    expected: str = _absent("what the chain says")
    actual: str = _absent("what stands there")


class ChainVerification(_Answer):
    """Whether a tenant's audit chain is whole."""

    chain: str
    from_sequence: int
    until_sequence: int = Field(description="not included")
    rows: int = Field(ge=0)
    verified: bool
    head: ChainHead
    checkpoints: list[SignedCheckpoint]
    first_broken: FirstBroken = _absent("the first row that isn't as the chain says")


class Health(_Answer):
    status: Literal["ok"]


class ReadinessChecks(_Answer):
    """Each `ok`, or what is wrong and what to do. With the database away there is only that one."""

    database: str
    migrations: str = _absent("whether the schema is at this version's")
    role: str = _absent("whether the service's role is as weak as it should be")
    partitions: str = _absent("whether next month's partitions are there")
    policy: str = _absent("whether a policy is active")
    functions: str = _absent("whether the decision functions answer")


class Readiness(_Answer):
    """Whether the service can decide."""

    status: Literal["ready", "not_ready"]
    checks: ReadinessChecks


class ProblemError(_Answer):
    pointer: Pointer = Field(description="from the root of the body; `/query/...` and `/header/...` for the rest of the request")
    detail: str


class Problem(_Answer):
    """What went wrong (RFC 9457). `code` is for programs; `detail` is never to be parsed."""

    type: str = Field(examples=["/problems/request_invalid"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    code: str = Field(pattern="^[a-z][a-z0-9_]*$", examples=["request_invalid"])
    errors: list[ProblemError] = _absent("each place that is wrong, 20 at most")
    retryable: Retryable
    retry_after_s: int = _absent("as in the header Retry-After", ge=0)
    trace_id: str = Field(pattern="^[0-9a-f]{32}$", description="of the request's `traceparent`, else made here")


class CheckProblem(Problem):
    """A problem on a check route: nothing may run, and the model is told what to do."""

    execution_permitted: Literal[False]
    fix_hint: Hint
    tool_result: ToolResult

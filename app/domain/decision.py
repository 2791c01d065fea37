"""The vocabulary of a decision: the four words, layers, checks, reasons.

Everything that answers, stores or counts a decision uses these words. A reason code is never renamed or reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Decision(StrEnum):
    """What Placet says to a call (SPEC S2)."""

    ACCEPTED = "accepted"
    MODIFIED = "modified"
    DENIED = "denied"
    NEEDS_USER = "needs_user"


class Outcome(StrEnum):
    """What a layer or one check of it says; `skipped` was not needed or not reached."""

    ACCEPTED = "accepted"
    MODIFIED = "modified"
    DENIED = "denied"
    NEEDS_USER = "needs_user"
    SKIPPED = "skipped"


class Layer(StrEnum):
    """Who can refuse, in the order of authority (SPEC S3.3)."""

    FREEZE = "freeze"
    IDEMPOTENCY = "idempotency"
    STATIC = "static"
    SCOPE = "scope"
    SEMANTIC = "semantic"
    SANDBOX = "sandbox"
    RISK = "risk"
    HOLDS = "holds"


class Reason(StrEnum):
    """The built-in reason codes; a policy adds its own and can't redefine these."""

    WITHIN_POLICY = "within_policy"
    NEEDS_HUMAN_REVIEW = "needs_human_review"
    NO_POLICY = "no_policy"
    TOOL_UNKNOWN = "tool_unknown"
    SCHEMA_INVALID = "schema_invalid"
    AMOUNT_NOT_EXACT = "amount_not_exact"
    NUMBER_NOT_EXACT = "number_not_exact"
    NOT_GRANTED = "not_granted"
    FORBIDDEN = "forbidden"
    OUTSIDE_REQUESTED_SCOPE = "outside_requested_scope"
    GRANT_NEEDS_APPROVAL = "grant_needs_approval"
    FACT_UNAVAILABLE = "fact_unavailable"
    RULE_ERROR = "rule_error"
    SANDBOX_FAILED = "sandbox_failed"
    SANDBOX_BUSY = "sandbox_busy"
    INVARIANT_BROKEN = "invariant_broken"
    BLAST_RADIUS_EXCEEDED = "blast_radius_exceeded"
    RISK_ERROR = "risk_error"
    RISK_TOO_HIGH = "risk_too_high"
    HOLD_EXCEEDS_LIMIT = "hold_exceeds_limit"
    BUDGET_EXCEEDED = "budget_exceeded"
    CALL_ID_REUSED = "call_id_reused"
    SESSION_NOT_YOURS = "session_not_yours"
    APPROVAL_MISMATCH = "approval_mismatch"
    TENANT_FROZEN = "tenant_frozen"
    PRINCIPAL_FROZEN = "principal_frozen"
    SESSION_FROZEN = "session_frozen"
    TOOL_FROZEN = "tool_frozen"


ABSENT: object = object()
"""Stands for a value that isn't there, where null would be a value."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a layer; `actual` and `expected` are JSON values, `expected` a JSON Schema fragment."""

    name: str
    outcome: Outcome
    reason: str | None = None
    field: str | None = None
    fact: str | None = None
    actual: object = ABSENT
    expected: object = ABSENT
    message: str | None = None


@lru_cache(maxsize=4_096)
def accepted(name: str) -> Check:
    """Give the check of that name that found nothing wrong."""
    return Check(name, Outcome.ACCEPTED)


@lru_cache(maxsize=4_096)
def skipped(name: str) -> Check:
    """Give the check of that name that wasn't needed or not reached."""
    return Check(name, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What one layer said. `outcome` is the strictest of its checks."""

    name: Layer
    outcome: Outcome
    checks: tuple[Check, ...]
    duration_us: int = 0

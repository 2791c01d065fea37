"""The fix hint: what a model needs to correct itself (SPEC S3.2, S3.12). Values only; `dialects` renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.domain.decision import ABSENT


class DenialClass(StrEnum):
    STRUCTURAL = "structural"
    PERMISSION = "permission"
    STATE = "state"
    BUDGET = "budget"
    RISK = "risk"
    TRANSIENT = "transient"
    LOOP = "loop"


class Retryable(StrEnum):
    """`never` and `after_change` settle a call id; the other two don't (SPEC S3.9)."""

    NEVER = "never"
    AFTER_CHANGE = "after_change"
    AFTER_DELAY = "after_delay"
    AFTER_APPROVAL = "after_approval"


class NextActionKind(StrEnum):
    CALL_AGAIN = "call_again"
    CALL_FIRST = "call_first"
    WAIT = "wait"
    WAIT_FOR_APPROVAL = "wait_for_approval"
    SEND_META_REQUEST = "send_meta_request"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class NextAction:
    kind: NextActionKind
    tool: str | None = None
    approval_id: str | None = None


CALL_AGAIN = NextAction(NextActionKind.CALL_AGAIN)
STOP = NextAction(NextActionKind.STOP)
WAIT = NextAction(NextActionKind.WAIT)
WAIT_FOR_APPROVAL = NextAction(NextActionKind.WAIT_FOR_APPROVAL)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Arguments that no layer refuses, and the decision that they would get."""

    arguments: Mapping[str, object]
    decision: str


@dataclass(frozen=True, slots=True)
class FixHint:
    denial_class: DenialClass
    retryable: Retryable
    message: str
    next_action: NextAction
    field: str | None = None
    fact: str | None = None
    actual: object = ABSENT
    expected: object = ABSENT
    retry_after_ms: int | None = None
    suggestion: Suggestion | None = None
    attempts_left: int | None = None

    def document(self) -> dict[str, object]:
        """Give the `fix_hint` of an answer, its keys in the order of API.md; what is absent is left out."""
        document: dict[str, object] = {"denial_class": self.denial_class.value, "retryable": self.retryable.value}
        if self.field is not None:
            document["field"] = self.field
        if self.fact is not None:
            document["fact"] = self.fact
        if self.actual is not ABSENT:
            document["actual"] = self.actual
        if self.expected is not ABSENT:
            document["expected"] = self.expected
        if self.retry_after_ms is not None:
            document["retry_after_ms"] = self.retry_after_ms
        document["message"] = self.message
        action: dict[str, object] = {"kind": self.next_action.kind.value}
        if self.next_action.tool is not None:
            action["tool"] = self.next_action.tool
        if self.next_action.approval_id is not None:
            action["approval_id"] = self.next_action.approval_id
        document["next_action"] = action
        if self.suggestion is not None:
            document["suggested_arguments"] = dict(self.suggestion.arguments)
            document["suggestion_verified"] = True  # a Suggestion is made only of arguments that no layer refuses
            document["suggestion_decision"] = self.suggestion.decision
        if self.attempts_left is not None:
            document["attempts_left"] = self.attempts_left
        return document

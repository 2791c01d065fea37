"""How a layer says no: one place where a failed check becomes a hint and a refusal, so that every refusal names the same things.

The hint of a refusal is about one check, and repeats its field, fact, actual and expected. Who refuses chooses the check, and says what
would help; a sentence is never written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome
from app.domain.hint import CALL_AGAIN, DenialClass, FixHint, NextAction, Retryable
from app.guards.context import LayerVerdict, Refused

_DECISIONS: Mapping[Outcome, Decision] = {Outcome.DENIED: Decision.DENIED, Outcome.NEEDS_USER: Decision.NEEDS_USER}


def refusal_of(
    layer: Layer,
    check: Check,
    denial_class: DenialClass,
    retryable: Retryable = Retryable.AFTER_CHANGE,
    action: NextAction = CALL_AGAIN,
    *,
    message: str | None = None,
    retry_after_ms: int | None = None,
    suggested: Mapping[str, object] | None = None,
) -> Refused:
    """Make the refusal of a check that was denied or needs a person.

    `message` stands in for the check's own sentence where the hint says another one or the check says none.
    """
    assert check.reason is not None, "a check that refuses has a reason"
    hint = FixHint(
        denial_class,
        retryable,
        message if message is not None else check.message or "",
        action,
        field=check.field,
        fact=check.fact,
        actual=check.actual,
        expected=check.expected,
        retry_after_ms=retry_after_ms,
    )
    return Refused(_DECISIONS[check.outcome], layer, str(check.reason), hint, check.name, suggested)


def layer_refuses(refused: Refused, checks: Iterable[Check]) -> LayerVerdict:
    """Give the verdict of the layer that refuses, with all of its checks."""
    return LayerVerdict(LayerResult(refused.layer, Outcome(refused.decision.value), tuple(checks)), refused)

"""The risk layer: named factors make a number from 0 to 1; thresholds say what it means (SPEC S3.7).

The score is rounded to four digits first and compared then: what is shown is what was compared. A factor that can't be computed refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache

from app.domain.canonical import normalise_number
from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.guards.context import CallContext, LayerVerdict, Refused
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import Selector, Threshold

_DIGITS = Decimal("0.0001")
_ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class RiskVerdict:
    verdict: LayerVerdict
    risk: Mapping[str, object] | None = None


def check_risk(context: CallContext, bindings: Bindings) -> RiskVerdict:
    """Score the call and hold it against the thresholds of its tool, segment and principal; without any threshold it is refused."""
    threshold = strictest_threshold(context)
    if threshold is None:
        return RiskVerdict(_error("no threshold applies to this call, so it is refused; the policy needs one"))
    factors: list[dict[str, object]] = []
    total = Decimal(0)
    for factor in context.tool.risk:
        try:
            raw = factor.value.evaluate(bindings)
        except ExpressionFailed:
            return RiskVerdict(_error(f"the risk factor {factor.name} could not be computed, so the call is refused"))
        assert isinstance(raw, float)
        value = Decimal(repr(min(max(raw, 0.0), 1.0)))
        contribution = factor.weight * value
        total += contribution
        factors.append(
            {"name": factor.name, "value": _rounded(value), "weight": _plain(factor.weight), "contribution": _rounded(contribution)}
        )
    score = min(max(total, Decimal(0)), _ONE).quantize(_DIGITS, ROUND_HALF_EVEN)
    risk = {
        "score": _rounded(score),
        "review_at": _plain(threshold.review_at),
        "deny_at": _plain(threshold.deny_at),
        "thresholds_for": _selector(threshold.selector),
        "factors": factors,
    }
    return RiskVerdict(_judge(score, threshold), risk)


def strictest_threshold(context: CallContext) -> Threshold | None:
    """Give the pair that counts: most selectors first, at a tie the lower; over the possible segments the strictest."""
    chosen = [found for segment in context.possible_segments if (found := _best(context, segment)) is not None]
    return min(chosen, key=lambda each: (each.review_at, each.deny_at), default=None)


def selects(selector: Selector, tool: str, segment: str | None, principal: str) -> bool:
    """Say whether a selector is for this call."""
    return (
        (selector.tool is None or selector.tool == tool)
        and (selector.segment is None or selector.segment == segment)
        and (selector.principal is None or selector.principal == principal)
    )


def _best(context: CallContext, segment: str | None) -> Threshold | None:
    found = [t for t in context.policy.thresholds if selects(t.selector, context.tool.name, segment, context.principal.subject)]
    return min(found, key=lambda each: (-each.selector.weight, each.review_at, each.deny_at), default=None)


def _judge(score: Decimal, threshold: Threshold) -> LayerVerdict:
    actual = _rounded(score)
    if score >= threshold.deny_at:
        message = "the risk of this call is too high; it can't be approved"
        expected: Mapping[str, object] = {"exclusiveMaximum": normalise_number(threshold.deny_at)}
        check = Check("deny_at", Outcome.DENIED, Reason.RISK_TOO_HIGH, fact="risk.score", actual=actual, expected=expected, message=message)
        hint = FixHint(
            DenialClass.RISK,
            Retryable.AFTER_CHANGE,
            message,
            NextAction(NextActionKind.STOP),
            fact="risk.score",
            actual=actual,
            expected=expected,
        )
        refused = Refused(Decision.DENIED, Layer.RISK, Reason.RISK_TOO_HIGH, hint, "deny_at")
        return LayerVerdict(LayerResult(Layer.RISK, Outcome.DENIED, (check,)), refused)
    if score >= threshold.review_at:
        expected = {"exclusiveMaximum": normalise_number(threshold.review_at)}
        message = "a person has to approve this call; wait for the answer"
        check = Check("review_at", Outcome.NEEDS_USER, Reason.NEEDS_HUMAN_REVIEW, fact="risk.score", actual=actual, expected=expected)
        hint = FixHint(
            DenialClass.RISK,
            Retryable.AFTER_APPROVAL,
            message,
            NextAction(NextActionKind.WAIT_FOR_APPROVAL),
            fact="risk.score",
            actual=actual,
            expected=expected,
        )
        refused = Refused(Decision.NEEDS_USER, Layer.RISK, Reason.NEEDS_HUMAN_REVIEW, hint, "review_at")
        return LayerVerdict(LayerResult(Layer.RISK, Outcome.NEEDS_USER, (check,)), refused)
    return LayerVerdict(LayerResult(Layer.RISK, Outcome.ACCEPTED, (accepted("review_at"),)))


def _error(message: str) -> LayerVerdict:
    check = Check("factors", Outcome.DENIED, Reason.RISK_ERROR, message=message)
    hint = FixHint(DenialClass.RISK, Retryable.AFTER_CHANGE, message, NextAction(NextActionKind.STOP))
    refused = Refused(Decision.DENIED, Layer.RISK, Reason.RISK_ERROR, hint, "factors")
    return LayerVerdict(LayerResult(Layer.RISK, Outcome.DENIED, (check,)), refused)


def _rounded(value: Decimal) -> int | Decimal:
    return _plain(value.quantize(_DIGITS, ROUND_HALF_EVEN))


@lru_cache(maxsize=32_768)
def _plain(value: Decimal) -> int | Decimal:
    return normalise_number(value)


def _selector(selector: Selector) -> dict[str, str]:
    parts = (("tool", selector.tool), ("segment", selector.segment), ("principal", selector.principal))
    return {name: value for name, value in parts if value is not None}

"""The risk layer: named factors make a number from 0 to 1; thresholds say what it means (SPEC S3.7).

The score is rounded to four digits first and compared then: what is shown is what was compared. A factor that can't be computed refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache

from app.domain.canonical import normalise_number
from app.domain.decision import Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import STOP, WAIT_FOR_APPROVAL, DenialClass, Retryable
from app.domain.wording import Locales, say
from app.guards.call_money import money_of
from app.guards.context import CallContext, LayerVerdict
from app.guards.refusal import layer_refuses, refusal_of
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import Selector, Threshold

_DIGITS = Decimal("0.0001")
_ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class RiskVerdict:
    verdict: LayerVerdict
    risk: Mapping[str, object] | None = None


def check_risk(context: CallContext, bindings: Bindings) -> RiskVerdict:
    """Score the call and hold it against the thresholds of its tool, segment, principal and currency; without any it is refused."""
    money = money_of(context.tool, bindings)
    threshold, locales = strictest_threshold(context, money.unit if money is not None else None), context.call.locales
    if threshold is None:
        return RiskVerdict(_error(say(locales, "no_threshold")))
    factors: list[dict[str, object]] = []
    total = Decimal(0)
    for factor in context.tool.risk:
        try:
            raw = factor.value.evaluate(bindings)
        except ExpressionFailed:
            return RiskVerdict(_error(say(locales, "risk_error", name=factor.name)))
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
    return RiskVerdict(_judge(score, threshold, locales), risk)


def strictest_threshold(context: CallContext, currency: str | None) -> Threshold | None:
    """Give the pair that counts: most selectors first, at a tie the lower; over the possible segments the strictest."""
    chosen = [found for segment in context.possible_segments if (found := _best(context, segment, currency)) is not None]
    return min(chosen, key=lambda each: (each.review_at, each.deny_at), default=None)


def selects(selector: Selector, tool: str, segment: str | None, principal: str) -> bool:
    """Say whether a selector is for this call; the currency, which only thresholds name, is looked at where they are."""
    return (
        (selector.tool is None or selector.tool == tool)
        and (selector.segment is None or selector.segment == segment)
        and (selector.principal is None or selector.principal == principal)
    )


def _best(context: CallContext, segment: str | None, currency: str | None) -> Threshold | None:
    found = [
        each
        for each in context.policy.thresholds
        if each.selector.currency in (None, currency) and selects(each.selector, context.tool.name, segment, context.principal.subject)
    ]
    return min(found, key=lambda each: (-each.selector.weight, each.review_at, each.deny_at), default=None)


def _judge(score: Decimal, threshold: Threshold, locales: Locales) -> LayerVerdict:
    if score >= threshold.deny_at:
        check = _over("deny_at", Outcome.DENIED, Reason.RISK_TOO_HIGH, score, threshold.deny_at, say(locales, "risk_too_high"))
        return layer_refuses(refusal_of(Layer.RISK, check, DenialClass.RISK, action=STOP), (check,))
    if score >= threshold.review_at:
        check = _over("review_at", Outcome.NEEDS_USER, Reason.NEEDS_HUMAN_REVIEW, score, threshold.review_at)
        message = say(locales, "needs_human_review")
        asked = refusal_of(Layer.RISK, check, DenialClass.RISK, Retryable.AFTER_APPROVAL, WAIT_FOR_APPROVAL, message=message)
        return layer_refuses(asked, (check,))
    return LayerVerdict(LayerResult(Layer.RISK, Outcome.ACCEPTED, (accepted("review_at"),)))


def _over(name: str, outcome: Outcome, reason: Reason, score: Decimal, limit: Decimal, message: str | None = None) -> Check:
    return Check(name, outcome, reason, None, "risk.score", _rounded(score), {"exclusiveMaximum": normalise_number(limit)}, message)


def _error(message: str) -> LayerVerdict:
    check = Check("factors", Outcome.DENIED, Reason.RISK_ERROR, message=message)
    return layer_refuses(refusal_of(Layer.RISK, check, DenialClass.RISK, action=STOP), (check,))


def _rounded(value: Decimal) -> int | Decimal:
    return _plain(value.quantize(_DIGITS, ROUND_HALF_EVEN))


@lru_cache(maxsize=32_768)
def _plain(value: Decimal) -> int | Decimal:
    return normalise_number(value)


def _selector(selector: Selector) -> dict[str, str]:
    parts = (("tool", selector.tool), ("segment", selector.segment), ("principal", selector.principal), ("currency", selector.currency))
    return {name: value for name, value in parts if value is not None}

"""What a call's money is, and the threshold of its currency (SPEC S3.7, S9.1)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from app.domain.quantity import Quantity
from app.guards.call_money import money_of
from app.guards.pipeline import judge_semantic
from app.guards.risk import strictest_threshold
from app.policy.model import Threshold
from tests.guards.judging import ORDER, POLICY, evidence_for, policy_with, prepared_call

THRESHOLDS = "thresholds.yaml"


def test_the_first_money_argument_is_a_calls_money() -> None:
    prepared = prepared_call()
    assert prepared.bindings is not None
    assert money_of(prepared.context.tool, prepared.bindings) == Quantity(2000, "EUR", 2)


def test_a_tool_without_one_moves_what_its_first_hold_takes() -> None:
    prepared = prepared_call(tool="cancel_order", arguments={"order_id": "A-1001", "cause": "fraud"})
    assert prepared.bindings is not None
    assert money_of(prepared.context.tool, prepared.bindings) is None  # before the order is read
    semantic = judge_semantic(prepared, evidence_for(prepared, order={**ORDER, "status": "paid", "refunded_minor": 990}))
    assert semantic is not None
    assert money_of(prepared.context.tool, semantic.bindings) == Quantity(12000, "EUR", 2)


def test_a_tool_without_either_moves_none() -> None:
    prepared = prepared_call(tool="search_order")
    assert prepared.bindings is not None
    assert money_of(prepared.context.tool, prepared.bindings) is None


def chosen(*entries: str, currency: str | None, segment: str = "standard") -> Threshold | None:
    text = "  - {review_at: 0.60, deny_at: 0.95} " + "".join(f"\n  - {entry}" for entry in entries)
    old = "  - {review_at: 0.60, deny_at: 0.95} "
    bare = policy_with(
        (THRESHOLDS, "{currency: JPY}", "{principal: x}"), (THRESHOLDS, "{currency: KWD}", "{principal: y}"), (THRESHOLDS, old, text)
    )
    return strictest_threshold(prepared_call(bare, segment=segment).context, currency)


@pytest.mark.parametrize(
    ("entries", "currency", "review_at"),
    [
        ((), "EUR", "0.60"),
        (("{for: {currency: JPY}, review_at: 0.9, deny_at: 0.95}",), "EUR", "0.60"),
        (("{for: {currency: JPY}, review_at: 0.9, deny_at: 0.95}",), None, "0.60"),
        (("{for: {currency: JPY}, review_at: 0.9, deny_at: 0.95}",), "JPY", "0.9"),
        (("{for: {currency: JPY}, review_at: 0.9, deny_at: 0.95}", "{for: {tool: refund}, review_at: 0.8, deny_at: 0.95}"), "JPY", "0.8"),
        (("{for: {currency: JPY}, review_at: 0.3, deny_at: 0.95}", "{for: {tool: refund}, review_at: 0.8, deny_at: 0.95}"), "JPY", "0.3"),
        (
            ("{for: {currency: JPY, tool: refund}, review_at: 0.9, deny_at: 0.95}", "{for: {tool: refund}, review_at: 0.2, deny_at: 0.95}"),
            "JPY", "0.9",
        ),
    ],
)  # fmt: skip
def test_most_selectors_win_and_at_a_tie_the_stricter(entries: tuple[str, ...], currency: str | None, review_at: str) -> None:
    found = chosen(*entries, currency=currency)
    assert found is not None
    assert found.review_at == Decimal(review_at)


def test_the_shops_currencies_have_their_own() -> None:
    context = prepared_call().context
    pairs = {}
    for currency in ("EUR", "JPY", "KWD"):
        found = strictest_threshold(context, currency)
        assert found is not None
        pairs[currency] = (str(found.review_at), str(found.deny_at))
    assert pairs == {"EUR": ("0.60", "0.95"), "JPY": ("0.55", "0.90"), "KWD": ("0.50", "0.90")}
    assert POLICY.thresholds[0].selector.weight == 0

"""Each reason that this version can give: a call that gets it, and the nearest call that doesn't (SPEC S2, S3.3–S3.8)."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from app.domain.decision import Decision, Layer, Reason
from app.domain.tool_call import Role
from app.guards.context import Balance, DryRun
from app.guards.static import refuse_unknown_tool
from tests.guards.judging import AGENT, POLICY, amount, judge, policy_with, ran

REFUND, THRESHOLDS, GRANTS = "tools/refund.yaml", "thresholds.yaml", "grants.yaml"
ORDERS_ONLY = [{"action": "refund", "resource": "order:A-1001"}]
NEEDS_APPROVAL = policy_with(
    (GRANTS, "customer_service\n    effect: permit", "customer_service\n    effect: permit\n    needs_approval: true")
)
BROKEN_RULE = policy_with((REFUND, "require: history.same_refund.count == 0", "require: 10 / history.same_refund.count < 100"))
BROKEN_INVARIANT = policy_with((REFUND, "o.refunded_minor <= o.paid_minor)", "o.refunded_minor / o.paid_minor < 1)"))
BROKEN_RISK = policy_with((REFUND, "double(order.paid.minor)}", "double(order.refunded.minor)}"))
LOWER_HOLD = policy_with((REFUND, 'limit: "{refundable}"', 'limit: "{args.amount}"'))
DENYING_BUDGET = policy_with((THRESHOLDS, "on_exceed: needs_user", "on_exceed: deny"))
STATIC_RULE = policy_with(
    (
        REFUND,
        "\nfacts:\n",
        "\nstatic_rules:\n  - rule: odd\n    require: args.amount.minor % 2 == 0\n"
        '    refuse: {reason: odd_amount, field: /amount, expected: {multipleOf: 2}, message: {en: "odd"}}\n\nfacts:\n',
    )
)

Call = dict[str, Any]
# reason: decision, layer, check, the call that gets it, the nearest that doesn't
CASES: list[tuple[str, Decision, Layer, str, Call, Call]] = [
    ("needs_human_review", Decision.NEEDS_USER, Layer.RISK, "review_at", {"arguments": amount("108.31")}, {"arguments": amount("108.30")}),
    ("schema_invalid", Decision.DENIED, Layer.STATIC, "schema", {"arguments": {"cause": "because"}}, {"arguments": {"cause": "goodwill"}}),
    ("amount_not_exact", Decision.DENIED, Layer.STATIC, "amount_exact", {"arguments": amount("20.005")}, {"arguments": amount("20.05")}),
    (
        "number_not_exact",
        Decision.DENIED,
        Layer.STATIC,
        "number_not_exact",
        {"arguments": amount("0." + "1" * 35)},
        {"arguments": amount("0.11")},
    ),
    ("odd_amount", Decision.DENIED, Layer.STATIC, "odd", {"policy": STATIC_RULE, "arguments": amount("20.01")}, {"policy": STATIC_RULE}),
    (
        "not_granted",
        Decision.DENIED,
        Layer.SCOPE,
        "customer_service",
        {"arguments": amount("15000.01")},
        {
            "arguments": amount("15000.00"),
            "evidence": {"order": {"status": "paid", "currency": "EUR", "paid_minor": 9_000_000, "refunded_minor": 0}},
        },
    ),
    ("not_granted", Decision.DENIED, Layer.SCOPE, "default", {"principal": replace(AGENT, roles=frozenset({Role.REVIEWER}))}, {}),
    (
        "forbidden",
        Decision.DENIED,
        Layer.SCOPE,
        "no_test_orders",
        {"arguments": {"order_id": "T-9001"}},
        {"arguments": {"order_id": "U-9001"}},
    ),
    (
        "outside_requested_scope",
        Decision.DENIED,
        Layer.SCOPE,
        "requested_scope",
        {"requested": ORDERS_ONLY, "arguments": {"order_id": "A-1002"}},
        {"requested": ORDERS_ONLY},
    ),
    ("grant_needs_approval", Decision.NEEDS_USER, Layer.SCOPE, "customer_service", {"policy": NEEDS_APPROVAL}, {"policy": POLICY}),
    ("fact_unavailable", Decision.DENIED, Layer.SEMANTIC, "facts", {"evidence": {"failed": "57014"}}, {}),
    ("order_not_found", Decision.DENIED, Layer.SEMANTIC, "order", {"evidence": {"order": None}}, {}),
    ("customer_not_found", Decision.DENIED, Layer.SEMANTIC, "customer", {"evidence": {"customer": None}}, {}),
    ("currency_mismatch", Decision.DENIED, Layer.SEMANTIC, "currency_matches", {"arguments": {"currency": "JPY"}}, {}),
    (
        "order_state_forbids",
        Decision.DENIED,
        Layer.SEMANTIC,
        "order_is_refundable",
        {"evidence": {"order": {"status": "cancelled", "currency": "EUR", "paid_minor": 12990, "refunded_minor": 0}}},
        {"evidence": {"order": {"status": "shipped", "currency": "EUR", "paid_minor": 12990, "refunded_minor": 0}}},
    ),
    (
        "already_refunded",
        Decision.DENIED,
        Layer.SEMANTIC,
        "not_refunded_before",
        {"evidence": {"history": 1}},
        {"evidence": {"history": 0}},
    ),
    (
        "amount_exceeds_refundable",
        Decision.DENIED,
        Layer.SEMANTIC,
        "within_refundable",
        {"evidence": {"held": Balance("EUR", 10991, 0)}},
        {"evidence": {"held": Balance("EUR", 10990, 0)}},
    ),
    (
        "rule_error",
        Decision.DENIED,
        Layer.SEMANTIC,
        "not_refunded_before",
        {"policy": BROKEN_RULE},
        {"policy": BROKEN_RULE, "evidence": {"history": 1}},
    ),
    ("sandbox_failed", Decision.DENIED, Layer.SANDBOX, "dry_run", {"evidence": {"dry_run": DryRun(failed="23514", constraint="c")}}, {}),
    ("sandbox_busy", Decision.DENIED, Layer.SANDBOX, "dry_run", {"evidence": {"dry_run": DryRun(failed="55P03")}}, {}),
    (
        "invariant_broken",
        Decision.DENIED,
        Layer.SANDBOX,
        "never_over_paid",
        {"evidence": {"dry_run": ran(0, 12991)}},
        {"evidence": {"dry_run": ran(0, 12990)}},
    ),
    (
        "blast_radius_exceeded",
        Decision.DENIED,
        Layer.SANDBOX,
        "shop.orders.updated",
        {"evidence": {"dry_run": ran(counts={"shop.orders": (0, 2, 0)})}},
        {"evidence": {"dry_run": ran(counts={"shop.orders": (0, 1, 0)})}},
    ),
    (
        "risk_too_high",
        Decision.DENIED,
        Layer.RISK,
        "deny_at",
        {
            "arguments": amount("200.00"),
            "evidence": {"order": {"status": "paid", "currency": "EUR", "paid_minor": 20000, "refunded_minor": 0}},
        },
        {"arguments": amount("20.00")},
    ),
    (
        "risk_error",
        Decision.DENIED,
        Layer.RISK,
        "factors",
        {"policy": BROKEN_RISK},
        {"policy": BROKEN_RISK, "evidence": {"order": {"status": "paid", "currency": "EUR", "paid_minor": 99000, "refunded_minor": 40000}}},
    ),
    (
        "hold_exceeds_limit",
        Decision.DENIED,
        Layer.HOLDS,
        "order",
        {"policy": LOWER_HOLD, "evidence": {"held": Balance("EUR", 1, 0)}},
        {"policy": LOWER_HOLD},
    ),
    (
        "budget_exceeded",
        Decision.DENIED,
        Layer.HOLDS,
        "budget:refunds_per_agent_day",
        {"policy": DENYING_BUDGET, "evidence": {"budget": Balance("EUR", 98_001, 0)}},
        {"policy": DENYING_BUDGET, "evidence": {"budget": Balance("EUR", 98_000, 0)}},
    ),
    (
        "budget_exceeded",
        Decision.NEEDS_USER,
        Layer.HOLDS,
        "budget:refunds_per_agent_day",
        {"evidence": {"budget": Balance("EUR", 1, 98_000)}},
        {"evidence": {"budget": Balance("EUR", 0, 98_000)}},
    ),
]
OF_THE_ENGINE = {"call_id_reused", "session_not_yours", "approval_mismatch"}
"""Shown in tests/engine/test_idempotency.py."""
OF_FREEZES = {"tenant_frozen", "principal_frozen", "session_frozen", "tool_frozen"}
"""Shown in tests/engine/test_freezes.py."""


@pytest.mark.parametrize(
    ("reason", "decision", "layer", "check", "refused", "passing"), CASES, ids=[f"{case[0]}-{case[3]}-{case[1]}" for case in CASES]
)
def test_each_reason_is_given_and_not_given(
    reason: str, decision: Decision, layer: Layer, check: str, refused: Call, passing: Call
) -> None:
    found = judge(**refused)
    assert (found.reason, found.decision) == (reason, decision)
    assert found.refused is not None
    assert (found.refused.layer, found.refused.rule) == (layer, check)
    named = [each for result in found.layers for each in result.checks if each.name == check and each.reason is not None]
    assert [each.reason for each in named] == [reason]
    assert found.holds == ()
    assert found.layers[-1].outcome == decision.value or decision is Decision.NEEDS_USER
    other = judge(**passing)
    assert other.reason != reason
    assert [each.outcome.value for each in other.layers if each.name is layer] == ["accepted"]


def test_every_reason_of_this_version_is_shown() -> None:
    shown = {case[0] for case in CASES} | OF_THE_ENGINE | OF_FREEZES | {"within_policy", "no_policy", "tool_unknown"}
    assert {reason.value for reason in Reason} <= shown


def test_within_policy() -> None:
    found = judge()
    assert (found.decision, found.reason, found.refused) == (Decision.ACCEPTED, "within_policy", None)
    assert [layer.name.value for layer in found.layers] == ["static", "scope", "semantic", "sandbox", "risk", "holds"]
    assert (found.holds[0].account, found.holds[0].quantity.minor) == ("resource:order:A-1001", 2000)
    assert found.risk is not None
    assert found.risk["score"] == Decimal("0.1108")


@pytest.mark.parametrize(
    ("has_policy", "reason", "retryable"), [(True, "tool_unknown", "after_change"), (False, "no_policy", "after_delay")]
)
def test_what_no_policy_names_is_refused(has_policy: bool, reason: str, retryable: str) -> None:
    """S5.3: the default is deny, before anything is read."""
    found = refuse_unknown_tool(has_policy=has_policy)
    assert found.refused is not None
    assert (found.refused.decision, found.refused.layer, found.refused.reason) == (Decision.DENIED, Layer.STATIC, reason)
    assert found.refused.hint.retryable == retryable


def test_a_read_needs_static_and_scope_only() -> None:
    """S3.3: layers follow from the effect class; nothing is read or held for a read."""
    found = judge(tool="search_order")
    assert found.decision is Decision.ACCEPTED
    assert [layer.name.value for layer in found.layers] == ["static", "scope"]
    assert found.holds == ()


def test_a_refusal_names_every_check_of_its_layer() -> None:
    """S3.2: not the first only; the first gives the hint."""
    found = judge(
        arguments={**amount("200.00"), "currency": "EUR"},
        evidence={"order": {"status": "new", "currency": "EUR", "paid_minor": 100, "refunded_minor": 0}, "history": 3},
    )
    semantic = {check.name: check.reason for check in found.layers[-1].checks if check.reason}
    assert semantic == {
        "order_is_refundable": "order_state_forbids",
        "not_refunded_before": "already_refunded",
        "within_refundable": "amount_exceeds_refundable",
    }
    assert found.reason == "order_state_forbids"


def test_the_first_refusing_layer_ends_the_walk() -> None:
    """S3.3: what lies behind isn't entered."""
    assert [layer.name.value for layer in judge(arguments={"cause": "x"}).layers] == ["static"]
    assert [layer.name.value for layer in judge(arguments={"order_id": "T-9001"}).layers] == ["static", "scope"]
    assert [layer.name.value for layer in judge(evidence={"order": None}).layers] == ["static", "scope", "semantic"]


def test_what_waits_for_a_person_is_refused_where_a_later_layer_refuses() -> None:
    """S3.3: an approval isn't asked for what can't be done anyway."""
    found = judge(NEEDS_APPROVAL, evidence={"order": {"status": "cancelled", "currency": "EUR", "paid_minor": 12990, "refunded_minor": 0}})
    assert (found.decision, found.reason) == (Decision.DENIED, "order_state_forbids")

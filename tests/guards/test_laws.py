"""What holds for every policy and call: default deny, forbid beats permit, nothing more loosens, unknown is no yes (SPEC S5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.decision import Decision, Layer, Outcome
from app.domain.scope import parse_entry
from app.guards.context import Balance
from app.guards.pipeline import Verdict
from app.policy.currencies import exponent_of
from app.policy.model import Grant, Policy
from tests.guards.judging import AGENT, CUSTOMER, ORDER, POLICY, amount, judge, policy_with, prepared_call

STRICTNESS = {Decision.ACCEPTED: 0, Decision.MODIFIED: 1, Decision.NEEDS_USER: 2, Decision.DENIED: 3}
RULES = POLICY.tools["refund"].rules
FEW = settings(max_examples=60, deadline=None)

amounts = st.integers(min_value=1, max_value=13_500).map(lambda minor: Decimal(minor).scaleb(-2))
orders = st.builds(
    lambda status, paid, refunded: {"status": status, "currency": "EUR", "paid_minor": paid, "refunded_minor": min(paid, refunded)},
    st.sampled_from(["delivered", "paid", "cancelled", "new"]),
    st.integers(1, 20_000),
    st.integers(0, 9_000),
)
calls = st.fixed_dictionaries(
    {
        "arguments": st.fixed_dictionaries(
            {"amount": amounts, "cause": st.sampled_from(["damaged", "goodwill"]), "order_id": st.sampled_from(["A-1001", "T-9001"])}
        ),
        "segment": st.sampled_from(["standard", "trusted_buyer", "unheard", None]),
        "evidence": st.fixed_dictionaries(
            {
                "order": orders,
                "history": st.integers(0, 1),
                "held": st.integers(0, 12_000).map(lambda minor: Balance("EUR", minor, 0)),
                "budget": st.integers(0, 120_000).map(lambda minor: Balance("EUR", minor, 0)),
            }
        ),
    }
)
grant_entries = st.sampled_from(
    [
        {"action": "refund", "resource": "order:A-*"},
        {"action": "refund", "resource": "order:*", "constraints": {"amount": {"max": {"amount": "50.00", "currency": "EUR"}}}},
        {"action": "refund", "resource": "order:A-1001", "constraints": {"amount": {"max": {"amount": "500.00", "currency": "EUR"}}}},
        {"action": "search_order", "resource": "order:*"},
        {"action": "refund", "resource": "order:B-*"},
    ]
)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    entries = tuple(parse_entry(entry, exponent_of) for entry in draw(st.lists(grant_entries, min_size=1, max_size=3)))
    permit = draw(st.booleans())
    roles, subjects, segments = (
        draw(st.sampled_from([("agent",), ()])),
        draw(st.sampled_from([(), ("support-agent",), ("other",)])),
        draw(st.sampled_from([(), ("standard",)])),
    )
    name = draw(st.text("abcdef", min_size=3, max_size=6))
    return Grant(name, permit, permit and draw(st.booleans()), frozenset(roles), frozenset(subjects), frozenset(segments), entries)


def with_grants(*found: Grant) -> Policy:
    return replace(POLICY, grants=found)


def with_refund(**changes: Any) -> Policy:
    return replace(POLICY, tools={**POLICY.tools, "refund": replace(POLICY.tools["refund"], **changes)})


def said(verdict: Verdict) -> tuple[Any, ...]:
    """What a verdict says, but for the time that it took."""
    layers = [
        (layer.name, layer.outcome, frozenset((check.name, check.outcome, check.reason) for check in layer.checks))
        for layer in verdict.layers
    ]
    return (verdict.decision, verdict.reason, layers, verdict.holds, verdict.risk and verdict.risk["score"])


@FEW
@given(calls)
def test_without_a_grant_everything_is_denied(call: Mapping[str, Any]) -> None:
    found = judge(with_grants(), **call)
    assert (found.decision, found.reason, found.refused and found.refused.layer) == (Decision.DENIED, "not_granted", Layer.SCOPE)


@FEW
@given(calls, st.lists(grants(), max_size=5), st.integers(0, 5))
def test_a_forbid_beats_every_permit(call: Mapping[str, Any], others: list[Grant], place: int) -> None:
    everything = parse_entry({"action": "refund", "resource": "order:*"}, exponent_of)
    forbid = Grant("never", False, False, frozenset(), frozenset(), frozenset(), (everything,))
    found = judge(with_grants(*others[:place], forbid, *others[place:]), **call)
    assert found.decision is Decision.DENIED
    assert found.reason in ("forbidden", "not_granted")


@FEW
@given(calls, st.lists(grants(), max_size=5), grants())
def test_one_more_forbid_never_loosens(call: Mapping[str, Any], some: list[Grant], more: Grant) -> None:
    more = replace(more, permit=False, needs_approval=False)
    before, after = judge(with_grants(*some), **call), judge(with_grants(*some, more), **call)
    assert STRICTNESS[after.decision] >= STRICTNESS[before.decision]


@FEW
@given(calls, st.lists(grants(), max_size=4), st.randoms())
def test_the_order_and_duplicates_of_grants_do_not_matter(call: Mapping[str, Any], some: list[Grant], random: Any) -> None:
    named = [replace(grant, name=f"{grant.name}{number}") for number, grant in enumerate(some)]
    mixed = [*named, *named[:2]]
    random.shuffle(mixed)
    first, second = judge(with_grants(*named), **call), judge(with_grants(*mixed), **call)
    assert (first.decision, first.reason, first.holds) == (second.decision, second.reason, second.holds)


@FEW
@given(calls, st.sampled_from([*permutations(range(len(RULES))), (0, 1, 2, 3, 3, 0)]))
def test_the_order_and_duplicates_of_rules_do_not_matter(call: Mapping[str, Any], order: tuple[int, ...]) -> None:
    """The decision and the set of checks; which refusal is named first is the author's order."""
    first, second = judge(**call), judge(with_refund(rules=tuple(RULES[index] for index in order)), **call)
    assert (first.decision, first.holds, first.risk) == (second.decision, second.holds, second.risk)
    if len(order) == len(RULES):
        assert said(first)[2] == said(second)[2]


@FEW
@given(calls, st.sets(st.integers(0, len(RULES) - 1)), st.integers(0, len(RULES) - 1))
def test_one_more_rule_never_loosens(call: Mapping[str, Any], kept: set[int], more: int) -> None:
    fewer = tuple(RULES[index] for index in sorted(kept - {more}))
    before, after = judge(with_refund(rules=fewer), **call), judge(with_refund(rules=(*fewer, RULES[more])), **call)
    assert STRICTNESS[after.decision] >= STRICTNESS[before.decision]


@FEW
@given(calls)
def test_one_more_layer_never_loosens(call: Mapping[str, Any]) -> None:
    tool = POLICY.tools["refund"]
    wanted = [Layer.STATIC, Layer.SCOPE, Layer.SEMANTIC, Layer.SANDBOX, Layer.RISK]
    strictness = [
        STRICTNESS[judge(with_refund(layers=frozenset(wanted[:length]), holds=tool.holds if length > 2 else ()), **call).decision]
        for length in (3, 4, 5)
    ]
    assert strictness == sorted(strictness)


@FEW
@given(calls)
def test_the_same_values_give_the_same_verdict(call: Mapping[str, Any]) -> None:
    assert said(judge(**call)) == said(judge(**call))


@FEW
@given(calls)
def test_only_what_is_permitted_holds(call: Mapping[str, Any]) -> None:
    """S3.11: neither a refusal nor waiting consumes a budget; what is permitted holds on all accounts that count it."""
    found = judge(**call)
    assert bool(found.holds) is (found.decision is Decision.ACCEPTED)
    if found.holds:
        minor = int(call["arguments"]["amount"].scaleb(2))
        assert [hold.quantity.minor for hold in found.holds] == [minor, minor]
        assert call["evidence"]["budget"].held + minor <= 100_000
        assert (
            call["evidence"]["held"].held + minor <= call["evidence"]["order"]["paid_minor"] - call["evidence"]["order"]["refunded_minor"]
        )


@FEW
@given(calls)
def test_a_refusal_says_so_everywhere(call: Mapping[str, Any]) -> None:
    found = judge(**call)
    if found.decision is Decision.DENIED:
        assert found.refused is not None
        assert found.layers[-1].name is found.refused.layer
        assert found.layers[-1].outcome is Outcome.DENIED
        assert found.refused.hint.message
        assert found.refused.reason == found.reason
    else:
        assert all(layer.outcome is not Outcome.DENIED for layer in found.layers)


@FEW
@given(calls)
def test_a_segment_that_may_not_be_named_is_judged_as_the_strictest(call: Mapping[str, Any]) -> None:
    """S3.7"""
    each = [judge(**{**call, "segment": segment}) for segment in ("standard", "trusted_buyer")]
    for unnamed in ("unheard", None):
        assert STRICTNESS[judge(**{**call, "segment": unnamed}).decision] == max(STRICTNESS[found.decision] for found in each)


NOT_A_NUMBER = [None, "12990", True, Decimal("12990.5"), Decimal("NaN"), Decimal("Infinity"), 2**63, [], {}]


@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=repr)
@pytest.mark.parametrize("column", ["paid_minor", "refunded_minor"])
def test_a_number_that_is_none_is_no_fact(column: str, value: object) -> None:
    """Unknown never becomes yes: a missing, mistyped or endless value makes the fact unavailable."""
    found = judge(evidence={"order": {**ORDER, column: value}})
    assert (found.decision, found.reason) == (Decision.DENIED, "fact_unavailable")


@pytest.mark.parametrize("column", ["status", "currency", "paid_minor", "refunded_minor"])
@pytest.mark.parametrize("lost", [True, False], ids=["absent", "null"])
def test_a_column_that_is_not_there_is_no_fact(column: str, lost: bool) -> None:
    order = {name: value for name, value in ORDER.items() if name != column}
    found = judge(evidence={"order": order if lost else {**order, column: None}})
    assert (found.decision, found.reason) == (Decision.DENIED, "fact_unavailable")


@pytest.mark.parametrize("status", ["", "Delivered", "delivered ", "unheard_of"])
def test_an_unknown_status_is_not_one_of_the_known(status: str) -> None:
    assert judge(evidence={"order": {**ORDER, "status": status}}).reason == "order_state_forbids"


@pytest.mark.parametrize("fact", ["order", "customer"])
def test_a_fact_without_a_row_refuses_with_its_own_reason(fact: str) -> None:
    """S3.12: whatever else doesn't hold then."""
    found = judge(evidence={fact: None})
    assert (found.decision, found.reason) == (Decision.DENIED, f"{fact}_not_found")


@pytest.mark.parametrize("state", ["57014", "42501", "22P02", "XX000", ""])
def test_a_fact_that_could_not_be_read_is_a_matter_of_time(state: str) -> None:
    """S3.10"""
    found = judge(evidence={"failed": state})
    assert found.refused is not None
    assert (found.reason, found.refused.hint.retryable) == ("fact_unavailable", "after_delay")


@pytest.mark.parametrize(
    ("expression", "evidence"),
    [
        ("history.same_refund.count / 0 == 0", {}),
        ("double(history.same_refund.count) / 0.0 >= 0.0", {}),
        ("9223372036854775807 + order.paid.minor > 0", {}),
        ("[1, 2][order.paid.minor] == 1", {}),
        ('{"EUR": 1}[order.status] == 1', {}),
    ],
)
def test_a_rule_that_cannot_be_evaluated_does_not_hold(expression: str, evidence: Mapping[str, Any]) -> None:
    """0.0 / 0.0 is NaN, and NaN >= 0.0 is no yes."""
    policy = policy_with(("tools/refund.yaml", "require: history.same_refund.count == 0", f"require: '{expression}'"))
    found = judge(policy, evidence=evidence)
    assert found.decision is Decision.DENIED
    assert found.reason in ("rule_error", "already_refunded")


@pytest.mark.parametrize("value", ["double(order.refunded.minor) / double(order.refunded.minor)", "1.0 / double(order.refunded.minor)"])
def test_a_risk_that_is_no_number_refuses(value: str) -> None:
    """NaN and Infinity are no score."""
    policy = policy_with(("tools/refund.yaml", "value: double(args.amount.minor) / double(order.paid.minor)", f"value: {value}"))
    assert judge(policy).reason == "risk_error"


def test_an_order_of_nothing_has_no_share() -> None:
    """0 / 0: the rule refuses first; the factor would."""
    assert judge(evidence={"order": {**ORDER, "paid_minor": 0}}).reason == "amount_exceeds_refundable"


@pytest.mark.parametrize("order_id", ["A-1001*", "*", "A-1001/../T-9001", "A-1001\n"])
def test_a_value_never_becomes_a_pattern(order_id: str) -> None:
    """CWE-155: whatever the schema lets through, a resource is one exact name."""
    policy = policy_with(("tools/refund.yaml", 'order_id: {type: string, pattern: "^[A-Z]-[0-9]{4,12}$"}', "order_id: {type: string}"))
    found = judge(policy, arguments={"order_id": order_id})
    assert (found.decision, found.reason, found.refused and found.refused.layer) == (Decision.DENIED, "not_granted", Layer.SCOPE)


def test_a_permit_for_a_segment_needs_that_segment() -> None:
    only = replace(POLICY.grants[0], segments=frozenset({"trusted_buyer"}))
    policy = with_grants(only)
    assert judge(policy, segment="trusted_buyer").decision is Decision.ACCEPTED
    for segment in ("standard", None, "unheard"):
        assert judge(policy, segment=segment).reason == "not_granted"


def test_what_the_agent_sends_chooses_no_limit() -> None:
    """S12.4: a segment that the key may not name, an approval id and a task id move nothing."""
    plain = judge(arguments=amount("129.90"))
    alone = replace(AGENT, segments=frozenset({"standard"}))
    assert judge(arguments=amount("129.90"), principal=alone, segment="trusted_buyer").reason == plain.reason == "needs_human_review"
    assert judge(arguments=amount("129.90"), segment="trusted_buyer").reason == "within_policy"
    assert judge(arguments=amount("129.90"), approval_id="01a230d5-2fd8-7907-9af2-55e55f2a8983", task_id="t").reason == plain.reason


def test_a_complaint_history_lowers_the_score_and_never_below_zero() -> None:
    """S3.7: contributions are summed, the sum is clipped."""
    found = judge(arguments=amount("0.01"), evidence={"customer": {**CUSTOMER, "complaints": 9}})
    assert found.risk is not None
    assert (found.risk["score"], found.decision) == (0, Decision.ACCEPTED)


def test_accounts_are_named_from_the_call_alone() -> None:
    assert prepared_call().accounts.resources == {"order": "resource:order:A-1001"}


def test_a_key_without_segments_may_belong_to_any_that_the_policy_names() -> None:
    """S3.7: naming none, or one that the key doesn't list, never escapes what is meant for a segment."""
    blocked = Grant("no_blocked", False, False, frozenset(), frozenset(), frozenset({"blocked"}), POLICY.grants[0].scope)
    policy = replace(POLICY, grants=(*POLICY.grants, blocked))
    for segment in (None, "blocked"):
        found = judge(policy, principal=replace(AGENT, segments=frozenset()), segment=segment)
        assert (found.decision, found.reason) == (Decision.DENIED, "forbidden")
    assert judge(policy, segment="standard").decision is Decision.ACCEPTED

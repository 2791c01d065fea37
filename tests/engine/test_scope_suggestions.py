"""A call over a grant's ceiling gets a suggestion that the same layers have judged, in the same transaction (API.md 0.3, S3.2)."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from app.domain.errors import RequestInvalid
from tests.engine.conftest import Gates
from tests.engine.shop import SHOP_FILES, Shop, activate, changed, holds_agree, refund, search_order, working

LOW = changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00", currency: EUR', 'amount: "30.00", currency: EUR'))


def suggestion(answer: dict[str, Any]) -> tuple[object, object, object]:
    hint = answer["fix_hint"]
    arguments = hint.get("suggested_arguments")
    return arguments and arguments["amount"], hint.get("suggestion_decision"), hint.get("suggestion_verified")


async def test_an_amount_over_the_ceiling_is_suggested_lowered(shop: Shop) -> None:
    await activate(shop, shop.acme, LOW)
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", "80.00"))
        assert (found["decision"], found["reason"], found["refused_by"], found["holds"]) == ("denied", "not_granted", "scope", [])
        assert (found["fix_hint"]["field"], found["fix_hint"]["actual"], found["fix_hint"]["expected"]) == ("/amount", 80, {"maximum": 30})
        assert suggestion(found) == (30, "accepted", True)
        again = await worker.check(shop.acme.tokens["agent"], refund("c2", "30.00"))
    assert again["decision"] == "accepted"
    await holds_agree(shop)


async def test_it_says_which_decision_it_would_get(shop: Shop) -> None:
    """The exact ceiling, never an amount aimed just below the review threshold."""
    await activate(
        shop, shop.acme, changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00", currency: EUR', 'amount: "129.90", currency: EUR'))
    )
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", "500.00"))
    assert suggestion(found) == (Decimal("129.9"), "needs_user", True)


@pytest.mark.parametrize(
    ("order", "customer", "why"),
    [
        ("A-1006", "cust-77", "of the order 20.00 are left"),
        ("A-9999", "cust-77", "there is no such order"),
        ("A-1001", "cust-12", "it is another customer's order"),
        ("T-9001", "cust-77", "it is forbidden whatever the amount"),
    ],
)
async def test_what_another_layer_would_refuse_is_not_suggested(shop: Shop, order: str, customer: str, why: str) -> None:
    await activate(shop, shop.acme, LOW)
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", "80.00", order, on_behalf_of_id=customer))
    assert (found["decision"], found["refused_by"], suggestion(found)) == ("denied", "scope", (None, None, None)), why


async def test_what_is_held_already_counts(shop: Shop) -> None:
    """The suggestion is judged on the order's and the budget's accounts, as they are."""
    await activate(shop, shop.acme, LOW)
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        for number in range(4):  # four times 25.00, each by a reason of its own, on an order of 129.90
            call = refund(f"c{number}", f"{25 + number}.00")
            assert (await worker.check(token, call))["decision"] == "accepted"
        found = await worker.check(token, refund("c9", "80.00"))
    assert suggestion(found) == (None, None, None)  # 106.00 are held, 23.90 are left, and 30.00 would be refused
    await holds_agree(shop)


async def test_its_accounts_are_locked_while_it_is_judged(shop: Shop, gates: Gates) -> None:
    """S3.8: nobody else may hold on the order between the look and the answer; both workers meet on the account."""
    await activate(shop, shop.acme, LOW)
    locked: list[bool] = []

    async def look(connection: Any) -> None:
        other = await shop.rows("SELECT account FROM placet.accounts WHERE account = 'resource:order:A-1001' FOR UPDATE SKIP LOCKED")
        there = await connection.fetchval("SELECT count(*) FROM placet.accounts WHERE account = 'resource:order:A-1001'")
        locked.append(bool(there) and not other)

    async with gates.worker("first", shop) as worker:
        gates.before("first", "record_batch", look)
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", "80.00"))
    assert suggestion(found) == (30, "accepted", True)
    assert locked == [True]


async def test_many_at_once_never_get_more_than_there_is(shop: Shop) -> None:
    """Refused and permitted calls of one order in one batch: suggestions are judged after all that the batch decided."""
    await activate(shop, shop.acme, LOW)
    token = shop.acme.tokens["agent"]
    calls = [refund(f"o{number}", "80.00", "A-1006") for number in range(3)] + [refund("p", "15.00", "A-1006")]
    async with working(shop.url) as worker:
        found = await asyncio.gather(*(worker.check(token, call) for call in calls))
    assert [answer["decision"] for answer in found] == ["denied", "denied", "denied", "accepted"]
    assert [suggestion(answer)[0] for answer in found[:3]] == [None, None, None]
    await holds_agree(shop)


async def test_the_callers_own_ceiling_is_suggested_too(shop: Shop) -> None:
    requested = ({"action": "refund", "resource": "order:*", "constraints": {"amount": {"max": {"amount": "10.00", "currency": "EUR"}}}},)
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", "80.00", requested_scope=requested))
    assert (found["reason"], suggestion(found)) == ("outside_requested_scope", (10, "accepted", True))
    assert found["cuts"][0]["pointer"] == "/requested_scope/0/constraints/amount"


async def test_a_level_that_the_policy_does_not_know_is_no_request(shop: Shop) -> None:
    """The levels are the active policy's, and are named."""
    levels = changed(SHOP_FILES, "bundle.yaml", ("locales: [en, zh]", "locales: [en, zh], sensitivity: [public, internal]"))
    requested = ({"action": "refund", "resource": "order:*", "constraints": {"sensitivity": {"max": "secret"}}},)
    async with working(shop.url) as worker:
        with pytest.raises(RequestInvalid) as before:
            await worker.check(shop.acme.tokens["agent"], refund("c1", requested_scope=requested))
        await activate(shop, shop.acme, levels)
        await worker.authority.refresh(frozenset({shop.acme.tenant_id}))
        with pytest.raises(RequestInvalid) as after:
            await worker.check(shop.acme.tokens["agent"], refund("c1", requested_scope=requested))
    place = "/requested_scope/0/constraints/sensitivity/max"
    assert before.value.errors == ((place, "the policy names no levels of sensitivity; leave this out"),)
    assert after.value.errors == ((place, "a level of sensitivity is one of public, internal"),)


async def test_what_a_static_rule_suggests_is_judged_the_same_way(shop: Shop) -> None:
    """The call was refused before it had any accounts or facts; those of the suggestion are claimed and read for it."""
    rule = (
        "static_rules:\n  - {rule: small, require: args.amount.minor <= 3000,\n     refuse: {reason: too_much_at_once, field: /amount, "
        'expected: {maximum: 30}, suggest: {/amount: %s}, message: {en: "refund less", zh: "请减少"}}}\n\nfacts:'
    )
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        for amount, expected in (("30", (30, "accepted", True)), ("1000000", (None, None, None))):
            await activate(shop, shop.acme, changed(SHOP_FILES, "tools/refund.yaml", ("facts:", rule % amount)))
            await worker.authority.refresh(frozenset({shop.acme.tenant_id}))
            found = await worker.check(token, refund(f"c{amount}", "80.00"))
            assert (found["refused_by"], suggestion(found)) == ("static", expected)


async def test_a_static_rule_of_a_tool_without_accounts_may_suggest(shop: Shop) -> None:
    files = changed(
        SHOP_FILES,
        "tools/search_order.yaml",
        (
            "scope: {",
            'static_rules:\n  - {rule: known, require: args.order_id != "A-9999",\n     refuse: {reason: old_order, '
            "field: /order_id, expected: {},"
            ' suggest: {/order_id: A-1001}, message: {en: "an old order", zh: "旧订单"}}}\nscope: {',
        ),
    )
    await activate(shop, shop.acme, files)
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], search_order("c1", "A-9999"))
    assert (found["reason"], found["fix_hint"]["suggested_arguments"]) == ("old_order", {"order_id": "A-1001"})
    assert found["fix_hint"]["suggestion_decision"] == "accepted"

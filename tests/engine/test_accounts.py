"""spent + held never passes a limit whatever comes together; sums are those of holds; a refusal holds nothing (SPEC S3.8, S9.2)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.errors import DecisionUnavailable
from tests.engine.shop import SHOP_FILES, ResettableShop, Shop, SteppedClock, activate, changed, holds_agree, refund, working

OPEN = {"A-1002": 10_000, "A-1006": 2_000, "A-1007": 14_505}
SMALL_BUDGET = changed(
    SHOP_FILES, "thresholds.yaml", ('limit: {amount: "1000.00", currency: EUR}', 'limit: {amount: "150.00", currency: EUR}')
)
BUDGET = 15_000

asked = st.lists(
    st.tuples(
        st.sampled_from(["agent", "other"]),
        st.sampled_from(sorted(OPEN)),
        st.sampled_from(["5.00", "12.34", "19.99", "60.00", "88.01"]),
        st.integers(0, 1),  # the worker
        st.integers(0, 3),  # milliseconds to wait
    ),
    min_size=2,
    max_size=14,
)


@pytest.fixture(scope="module")
def small_budget(resettable_shop: ResettableShop) -> ResettableShop:
    """The shop with a budget that a few refunds exhaust."""
    asyncio.run(resettable_shop.reset())
    asyncio.run(activate(resettable_shop.shop, resettable_shop.shop.acme, SMALL_BUDGET))
    narrow = ResettableShop(resettable_shop.shop)
    asyncio.run(narrow.snapshot())
    return narrow


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(asked)
def test_no_account_is_oversold_under_any_interleaving(small_budget: ResettableShop, calls: list[tuple[str, str, str, int, int]]) -> None:
    """S3.8, S9.2: two workers, a few orders, two agents with a budget each."""
    asyncio.run(small_budget.reset())
    asyncio.run(_interleave(small_budget.shop, calls))


async def _interleave(shop: Shop, calls: list[tuple[str, str, str, int, int]]) -> None:
    async with working(shop.url) as first, working(shop.url) as second:
        workers = (first, second)

        async def ask(number: int, agent: str, order: str, amount: str, worker: int, delay_ms: int) -> dict[str, Any]:
            await asyncio.sleep(delay_ms / 1000)
            for _ in range(10):  # a machine that is too busy answers 503; whoever asks again with the same call id is never held twice
                with suppress(DecisionUnavailable):
                    return await workers[worker].check(
                        shop.acme.tokens[agent], refund(f"c{number}", amount, order, session_id=f"of {agent}")
                    )
            raise AssertionError("no decision in ten tries")

        found = await asyncio.gather(*(ask(number, *call) for number, call in enumerate(calls)))
    taken: dict[str, int] = {}
    for answer, (agent, order, amount, _, _) in zip(found, calls, strict=True):
        if answer["decision"] == "accepted":
            for account in (order, agent):
                taken[account] = taken.get(account, 0) + int(amount.replace(".", ""))
        else:
            assert answer["holds"] == []
            assert answer["reason"] in ("already_refunded", "amount_exceeds_refundable", "budget_exceeded", "needs_human_review")
    for order, limit in OPEN.items():
        assert taken.get(order, 0) <= limit
        assert await held(shop, f"resource:order:{order}") == taken.get(order, 0)
    for agent, subject in (("agent", "support-agent"), ("other", "second-agent")):
        assert taken.get(agent, 0) <= BUDGET
        assert await held(shop, f"budget:refunds\\_per\\_agent\\_day|%|{subject}|%") == taken.get(agent, 0)
    await holds_agree(shop)


async def held(shop: Shop, like: str) -> int:
    found = await shop.value("SELECT sum(held) FROM placet.accounts WHERE account LIKE $1 AND tenant_id = $2", like, shop.acme.tenant_id)
    return int(found or 0)


async def test_an_exhausted_budget_asks_a_person_and_holds_nothing(shop: Shop) -> None:
    """S9.1: `on_exceed: needs_user`; the hint says what is left, the answer what remains."""
    await activate(shop, shop.acme, SMALL_BUDGET)
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", "90.00", "A-1002"))
        second = await worker.check(token, refund("c2", "60.01", "A-1007"))
        third = await worker.check(token, refund("c3", "60.00", "A-1007"))
        of_another = await worker.check(shop.acme.tokens["other"], refund("c4", "20.00", "A-1006", session_id="other"))
    assert (first["decision"], third["decision"], of_another["decision"]) == ("accepted", "accepted", "accepted")
    assert (second["decision"], second["reason"], second["holds"]) == ("needs_user", "budget_exceeded", [])
    assert second["layers"][-1]["name"] == "holds"
    hint = second["fix_hint"]
    assert (hint["denial_class"], hint["retryable"], hint["fact"]) == ("budget", "after_approval", "budget:refunds_per_agent_day.remaining")
    assert (str(hint["actual"]), hint["expected"]) == ("60.01", {"maximum": 60})
    assert second["limits"][0]["remaining"] == {"amount": "60.00", "currency": "EUR"}
    assert third["limits"][0]["remaining"] == {"amount": "0.00", "currency": "EUR"}
    await holds_agree(shop)


async def test_a_new_day_begins_with_a_whole_budget(shop: Shop) -> None:
    """S9.1: at midnight in Berlin; yesterday's holds stay where they are, and so do the order's."""
    await activate(shop, shop.acme, SMALL_BUDGET)
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as today, working(shop.url, SteppedClock(timedelta(days=1))) as tomorrow:
        await today.check(token, refund("c1", "90.00", "A-1002"))
        assert (await today.check(token, refund("c2", "90.00", "A-1007")))["decision"] == "needs_user"
        assert (await tomorrow.check(token, refund("c3", "90.00", "A-1007")))["decision"] == "accepted"
        assert (await tomorrow.check(token, refund("c4", "10.01", "A-1002")))["reason"] == "amount_exceeds_refundable"
    budgets = await shop.rows("SELECT held FROM placet.accounts WHERE account LIKE 'budget:%'")
    assert [row["held"] for row in budgets] == [9_000, 9_000]
    await holds_agree(shop)


@pytest.mark.parametrize(("amount", "order"), [("12990.00", "A-1001"), ("20.00", "T-9001"), ("20.00", "A-1005"), ("129.90", "A-1001")])
async def test_what_is_not_permitted_holds_nothing(shop: Shop, amount: str, order: str) -> None:
    """S3.11"""
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", amount, order))
    assert found["decision"] in ("denied", "needs_user")
    assert await shop.value("SELECT count(*) FROM placet.holds") == 0
    assert await shop.value("SELECT coalesce(sum(held + spent), 0) FROM placet.accounts") == 0


async def test_a_hold_says_when_its_outcome_is_due(shop: Shop) -> None:
    """S8.2: `outcome.within_s` after the decision."""
    async with working(shop.url) as worker:
        found = await worker.check(shop.acme.tokens["agent"], refund("c1"))
    rows = await shop.rows(
        "SELECT hold_id::text, account, unit, quantity, status, created_at, outcome_due_at FROM placet.holds ORDER BY account DESC"
    )
    assert [row["hold_id"] for row in rows] == [hold["hold_id"] for hold in found["holds"]]
    decided_at = datetime.fromisoformat(found["decided_at"]).astimezone(UTC)
    for row in rows:
        assert (row["unit"], row["quantity"], row["status"]) == ("EUR", 2_000, "held")
        assert (row["created_at"], row["outcome_due_at"]) == (decided_at, decided_at + timedelta(seconds=900))


async def test_an_unheard_of_order_leaves_an_account_of_nothing(shop: Shop) -> None:
    """The account is only there to be locked: no unit, no sum, no hold."""
    async with working(shop.url) as worker:
        await worker.check(shop.acme.tokens["agent"], refund("c1", order="Z-0000"))
    rows = await shop.rows("SELECT unit, held, spent FROM placet.accounts WHERE account = 'resource:order:Z-0000'")
    assert rows == [{"unit": None, "held": 0, "spent": 0}]


async def test_attempts_of_a_rule_are_counted_and_end(shop: Shop) -> None:
    """API.md 1.1: three refusals of one rule in a task, then `loop`, `never` and `stop`; a refusal of another rule counts for itself."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        found = [await worker.check(token, refund(f"c{n}", "200.00", task_id="t1")) for n in range(3)]
        other_task = await worker.check(token, refund("d1", "200.00", task_id="t2"))
        other_rule = await worker.check(token, refund("d2", order="A-1005", task_id="t1"))
    assert [answer["fix_hint"]["attempts_left"] for answer in found] == [2, 1, 0]
    last = found[-1]["fix_hint"]
    assert (last["denial_class"], last["retryable"], last["next_action"]) == ("loop", "never", {"kind": "stop"})
    assert "suggested_arguments" not in last
    assert (other_task["fix_hint"]["attempts_left"], other_rule["fix_hint"]["attempts_left"]) == (2, 2)

"""A call id is decided once, unless its refusal leaves it open; a pending approval stays the call's own (SPEC S3.9, S7.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from app.domain.tool_call import Role
from app.engine.change_authority import SYSTEM, KeySpec
from tests.engine.shop import SHOP_FILES, Shop, SteppedClock, activate, changed, holds_agree, refund, search_order, working

ASKS_A_PERSON = "129.90"


async def stored(shop: Shop) -> list[dict[str, Any]]:
    """Everything that a second answer must leave as it is."""
    return await shop.rows("SELECT sequence, hash, body FROM placet.audit_rows WHERE event = 'tool_call.decided' ORDER BY sequence")


async def approvals(shop: Shop) -> dict[str, str]:
    return {str(row["approval_id"]): row["status"] for row in await shop.rows("SELECT approval_id, status FROM placet.approvals")}


async def attempts(shop: Shop) -> list[tuple[str, int, str, str]]:
    rows = await shop.rows("SELECT call_id, attempt, decision, reason FROM placet.decisions ORDER BY sequence")
    return [(row["call_id"], row["attempt"], row["decision"], row["reason"]) for row in rows]


async def test_a_replay_is_the_stored_decision_and_permits_nothing(shop: Shop) -> None:
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, working(shop.url) as another:
        first = await worker.check(token, refund("c1"))
        before = await stored(shop)
        again = [await worker.check(token, refund("c1")), await another.check(token, refund("c1"))]
    for each in again:
        assert each == {**first, "execution_permitted": False, "replayed": True}
    assert (first["execution_permitted"], first["replayed"]) == (True, False)
    assert await stored(shop) == before
    await holds_agree(shop)


@pytest.mark.parametrize(
    "other", [refund("c1", "20.01"), refund("c1", extra={"note": "again"}), search_order("c1"), refund("c1", order="A-1002")]
)
async def test_a_call_id_with_other_arguments_is_refused_and_changes_nothing(shop: Shop, other: Any) -> None:
    """AU: the first decision stays what it was, and can still be had."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1"))
        before = await stored(shop)
        claim = await shop.rows("SELECT * FROM placet.claims")
        reused = await worker.check(token, other)
        assert (reused["decision"], reused["reason"], reused["refused_by"]) == ("denied", "call_id_reused", "idempotency")
        assert [layer["name"] for layer in reused["layers"]] == ["idempotency"]
        assert reused["fix_hint"]["retryable"] == "after_change"
        assert (reused["holds"], reused["replayed"], reused["execution_permitted"]) == ([], False, False)
        assert (await stored(shop))[:-1] == before
        assert await shop.rows("SELECT * FROM placet.claims") == claim
        assert (await worker.check(token, refund("c1")))["decision_id"] == first["decision_id"]
    assert [each[1] for each in await attempts(shop)] == [1, 0]
    assert await shop.value("SELECT sum(held) FROM placet.accounts WHERE account LIKE 'resource:%'") == 2000


async def test_a_refusal_that_a_change_mends_settles_the_call_id(shop: Shop) -> None:
    """What became possible meanwhile needs a new call id."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", order="A-1005"))
        await shop.execute("UPDATE shop.orders SET status = 'paid' WHERE order_id = 'A-1005'")
        again = await worker.check(token, refund("c1", order="A-1005"))
        new = await worker.check(token, refund("c2", order="A-1005"))
    assert first["reason"] == "order_state_forbids"
    assert (again["replayed"], again["decision_id"], again["reason"]) == (True, first["decision_id"], "order_state_forbids")
    assert new["decision"] == "accepted"


async def test_without_a_policy_a_call_is_decided_again_once_there_is_one(shop: Shop) -> None:
    """`no_policy` is `after_delay`: it doesn't settle the call id."""
    token = shop.acme.tokens["agent"]
    await shop.execute("UPDATE placet.tenants SET active_policy_version = NULL WHERE name = 'acme'")
    async with working(shop.url) as worker:
        refused = await worker.check(token, search_order("c1"))
        await worker.writer.activate_policy(SYSTEM, shop.acme.tenant_id, 1)
        allowed = await worker.check(token, search_order("c1"))
    assert (refused["reason"], refused["fix_hint"]["retryable"]) == ("no_policy", "after_delay")
    assert (allowed["decision"], allowed["replayed"]) == ("accepted", False)
    assert await attempts(shop) == [("c1", 1, "denied", "no_policy"), ("c1", 2, "accepted", "within_policy")]


async def test_while_its_approval_is_pending_a_call_gets_the_same_approval(shop: Shop) -> None:
    """S3.9: decided again as attempt n+1 with a row of its own; waiting holds nothing."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, working(shop.url) as another:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON))
        second = await another.check(token, refund("c1", ASKS_A_PERSON))
    assert (first["decision"], first["reason"]) == ("needs_user", "needs_human_review")
    assert second["approval"] == first["approval"]
    assert second["decision_id"] != first["decision_id"]
    assert (second["replayed"], second["execution_permitted"]) == (False, False)
    assert second["fix_hint"]["next_action"] == {"kind": "wait_for_approval", "approval_id": first["approval"]["approval_id"]}
    assert [each[:2] for each in await attempts(shop)] == [("c1", 1), ("c1", 2)]
    assert await approvals(shop) == {first["approval"]["approval_id"]: "pending"}
    assert await shop.value("SELECT count(*) FROM placet.holds") == 0
    assert await shop.value("SELECT coalesce(sum(held), 0) FROM placet.accounts") == 0


async def change_effects(shop: Shop) -> None:
    await shop.execute("UPDATE shop.orders SET paid_minor = 13990, refunded_minor = 500 WHERE order_id = 'A-1001'")


async def change_policy(shop: Shop) -> None:
    await activate(
        shop, shop.acme, changed(SHOP_FILES, "thresholds.yaml", ("review_at: 0.60, deny_at: 0.95", "review_at: 0.61, deny_at: 0.95"))
    )


async def change_tool(shop: Shop) -> None:
    await activate(shop, shop.acme, changed(SHOP_FILES, "tools/refund.yaml", ("weight: 0.15", "weight: 0.16")))


@pytest.mark.parametrize("change", [change_effects, change_policy, change_tool], ids=lambda change: change.__name__)
async def test_what_an_approval_is_bound_to_changes_and_so_does_the_approval(shop: Shop, change: Any) -> None:
    """S7.1: effects and the policy parts that the decision rested on; the old one can't be answered any more."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON))
        await change(shop)
        second = await worker.check(token, refund("c1", ASKS_A_PERSON))
    assert second["decision"] == "needs_user"
    old, new = first["approval"]["approval_id"], second["approval"]["approval_id"]
    assert await approvals(shop) == {old: "void", new: "pending"}


async def test_another_state_version_gets_another_approval(shop: Shop) -> None:
    """S7.1: the task moved on, so what the reviewer sees moved on."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON, state_version=4))
        same = await worker.check(token, refund("c1", ASKS_A_PERSON, state_version=4))
        second = await worker.check(token, refund("c1", ASKS_A_PERSON, state_version=5))
    assert same["approval"] == first["approval"]
    assert await approvals(shop) == {first["approval"]["approval_id"]: "void", second["approval"]["approval_id"]: "pending"}


async def test_an_unrelated_policy_change_keeps_the_approval(shop: Shop) -> None:
    """S7.1: bound to the parts that it rested on, not to the version's number."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON))
        await activate(shop, shop.acme, changed(SHOP_FILES, "tools/search_order.yaml", ("look up an order", "find an order")))
        second = await worker.check(token, refund("c1", ASKS_A_PERSON))
    assert (first["policy_version"], second["policy_version"]) == (1, 2)
    assert second["approval"] == first["approval"]


async def test_an_expired_approval_is_followed_by_a_new_one(shop: Shop) -> None:
    token, clock = shop.acme.tokens["agent"], SteppedClock()
    async with working(shop.url, clock) as worker:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON))
        clock.step(timedelta(seconds=1799))
        assert (await worker.check(token, refund("c1", ASKS_A_PERSON)))["approval"] == first["approval"]
        clock.step(timedelta(seconds=2))
        second = await worker.check(token, refund("c1", ASKS_A_PERSON))
    found = await approvals(shop)
    assert second["approval"]["approval_id"] != first["approval"]["approval_id"]
    assert (found[first["approval"]["approval_id"]] == "pending", found[second["approval"]["approval_id"]]) == (False, "pending")


async def test_a_transient_refusal_between_keeps_the_approval(shop: Shop) -> None:
    """S3.9: while its approval is pending, a call gets the same approval again, whatever went wrong for a moment meanwhile."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, shop.superuser() as other:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON))
        await lock_customers(other)
        assert (await worker.check(token, refund("c1", ASKS_A_PERSON)))["reason"] == "fact_unavailable"
        await other.execute("ROLLBACK")
        third = await worker.check(token, refund("c1", ASKS_A_PERSON))
    assert third["approval"] == first["approval"]
    assert await approvals(shop) == {first["approval"]["approval_id"]: "pending"}


async def lock_customers(connection: asyncpg.Connection) -> None:
    await connection.execute("BEGIN")
    await connection.execute("LOCK TABLE shop.customers IN ACCESS EXCLUSIVE MODE")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE shop.orders SET status = 'cancelled' WHERE order_id = 'A-1001'", "order_state_forbids"),
        ("UPDATE shop.orders SET paid_minor = 20000 WHERE order_id = 'A-1001'", "within_policy"),
    ],
)
async def test_an_approval_that_nothing_waits_for_is_void(shop: Shop, change: str, reason: str) -> None:
    """S7.1: once the call is settled otherwise, a reviewer has nothing to answer."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", "115.00"))
        assert first["decision"] == "needs_user"
        await shop.execute(change)
        assert (await worker.check(token, refund("c1", "115.00")))["reason"] == reason
    assert await approvals(shop) == {first["approval"]["approval_id"]: "void"}


async def test_a_session_belongs_to_the_subject_that_used_it_first(shop: Shop) -> None:
    """S3.9: another agent gets nothing of it, not even a replay."""
    async with working(shop.url) as worker:
        first = await worker.check(shop.acme.tokens["agent"], refund("c1"))
        for call in (refund("c1"), refund("c2", order="A-1002")):
            foreign = await worker.check(shop.acme.tokens["other"], call)
            assert (foreign["decision"], foreign["reason"], foreign["refused_by"]) == ("denied", "session_not_yours", "idempotency")
            assert (foreign["holds"], foreign["execution_permitted"]) == ([], False)
            assert foreign["decision_id"] != first["decision_id"]
        assert (await worker.check(shop.acme.tokens["other"], refund("c1", order="A-1002", session_id="own")))["decision"] == "accepted"
    assert await shop.value("SELECT held FROM placet.accounts WHERE account = 'resource:order:A-1001'") == 2000
    await holds_agree(shop)


async def test_another_key_of_the_subject_goes_on_with_its_session(shop: Shop) -> None:
    """S3.9, S12.1: the key of a claim is the subject, so a rotated key replays."""
    async with working(shop.url) as worker:
        first = await worker.check(shop.acme.tokens["agent"], refund("c1"))
        spec = KeySpec("support-agent", "ops-team", (Role.AGENT,), ("standard",), timedelta(hours=1))
        second_key = await worker.writer.make_key(SYSTEM, shop.acme.tenant_id, spec)
        again = await worker.check(second_key.token, refund("c1"))
    assert (again["replayed"], again["decision_id"]) == (True, first["decision_id"])


async def test_one_call_id_in_two_sessions_is_two_calls(shop: Shop) -> None:
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, search_order("c1"))
        second = await worker.check(token, search_order("c1", session_id="chat-2"))
    assert first["decision_id"] != second["decision_id"]
    assert (first["replayed"], second["replayed"]) == (False, False)


async def test_a_replay_outlives_a_new_policy(shop: Shop) -> None:
    """What was decided stays decided; only calls that are decided again meet the new version."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1"))
        await activate(shop, shop.acme, changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00"', 'amount: "10.00"')))
        again = await worker.check(token, refund("c1"))
    assert again == {**first, "execution_permitted": False, "replayed": True}


async def test_an_approval_id_that_is_not_the_calls_own_is_refused_and_spends_nothing(shop: Shop) -> None:
    """S3.1: an approval_id is a pointer; a wrong one is `approval_mismatch`, and without it the same call passes."""
    token, wrong = shop.acme.tokens["agent"], "01a230d5-2fd8-7907-9af2-55e55f2a8983"
    async with working(shop.url) as worker:
        refused = await worker.check(token, refund("c1", order="A-1002", approval_id=wrong))
        assert (refused["decision"], refused["reason"], refused["refused_by"]) == ("denied", "approval_mismatch", "scope")
        assert refused["fix_hint"]["retryable"] == "after_approval"
        assert (await worker.check(token, refund("c1", order="A-1002")))["decision"] == "accepted"
        first = await worker.check(token, refund("c2", ASKS_A_PERSON))
        assert (await worker.check(token, refund("c2", ASKS_A_PERSON, approval_id=wrong)))["reason"] == "approval_mismatch"
        again = await worker.check(token, refund("c2", ASKS_A_PERSON, approval_id=first["approval"]["approval_id"]))
    assert again["approval"] == first["approval"]
    assert await approvals(shop) == {first["approval"]["approval_id"]: "pending"}


@pytest.mark.parametrize("change", [{"task_id": "t2"}, {"segment": "trusted_buyer"}])
async def test_another_task_or_segment_gets_another_approval(shop: Shop, change: dict[str, str]) -> None:
    """S7.1: an approval is bound to the task and the end user that it was asked for."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1", ASKS_A_PERSON, task_id="t1"))
        second = await worker.check(token, refund("c1", ASKS_A_PERSON, **{"task_id": "t1", **change}))
    assert first["decision"] == "needs_user"
    found = await approvals(shop)
    assert found[first["approval"]["approval_id"]] == "void"
    assert second.get("approval", {}).get("approval_id") != first["approval"]["approval_id"]

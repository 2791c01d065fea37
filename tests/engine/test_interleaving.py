"""Two workers stopped between any two round trips: call ids, orders and authority stay exact (SPEC S3.8, S3.9)."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from app.domain.errors import DecisionUnavailable, Unauthenticated
from app.engine import lane
from app.engine.change_authority import SYSTEM
from tests.engine.conftest import STEPS, At, Gates, as_far_as_it_gets
from tests.engine.shop import (
    SHOP_FILES,
    Shop,
    Worker,
    activate,
    activate_stored,
    changed,
    document,
    holds_agree,
    refund,
    search_order,
    store,
    working,
)

WHILE_THE_HEAD_IS_LOCKED = ("commit",)


def start_meanwhile(shop: Shop, started: list[asyncio.Task[Any]], work: Any, within_s: float = 0.35) -> At:
    """Give what stands at a gate: start `work` and let it get as far as it can while the gate is shut."""

    async def at(_connection: asyncpg.Connection) -> None:
        started.append(asyncio.create_task(work()))
        await as_far_as_it_gets(shop, started[0], within_s)

    return at


async def decisions_of(shop: Shop) -> list[dict[str, Any]]:
    return await shop.rows("SELECT decision_id, call_id, attempt, decision, reason, sequence FROM placet.decisions ORDER BY sequence")


async def held(shop: Shop, account: str) -> int:
    found = await shop.value("SELECT held FROM placet.accounts WHERE account = $1 AND tenant_id = $2", account, shop.acme.tenant_id)
    return int(found or 0)


@pytest.mark.parametrize("second_worker", ["b", "a"], ids=["another worker", "the same worker"])
@pytest.mark.parametrize("step", STEPS)
async def test_one_call_id_in_two_transactions_is_decided_once(shop: Shop, gates: Gates, step: str, second_worker: str) -> None:
    """S3.9: the second gets the first one's decision, and one of the two answers alone permits."""
    token, call = shop.acme.tokens["agent"], refund("c1")
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        started: list[asyncio.Task[Any]] = []
        second_one = {"a": a, "b": b}[second_worker]
        gates.before("a", step, start_meanwhile(shop, started, lambda: second_one.check(token, call)))
        first = await a.check(token, call)
        second = await started[0]
    assert sorted([first["replayed"], second["replayed"]]) == [False, True]
    assert sorted([first["execution_permitted"], second["execution_permitted"]]) == [False, True]
    assert first["replayed"] is not first["execution_permitted"]
    assert first["decision_id"] == second["decision_id"]
    assert first["audit"] == second["audit"]
    assert len(await decisions_of(shop)) == 1
    assert await held(shop, "resource:order:A-1001") == 2000
    await holds_agree(shop)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("known", [False, True], ids=["first call of the order", "accounts are there"])
@pytest.mark.parametrize(
    ("second_worker", "second_amount", "reason"),
    [("b", "60.00", "already_refunded"), ("b", "60.01", "amount_exceeds_refundable"), ("a", "60.01", "amount_exceeds_refundable")],
    ids=["60.00 another worker", "60.01 another worker", "60.01 the same worker"],
)
async def test_one_order_in_two_transactions_is_refunded_once(
    shop: Shop, gates: Gates, step: str, known: bool, second_worker: str, second_amount: str, reason: str
) -> None:
    """S3.8: 60.00 and 60.00 of an order of 100.00 can't both be accepted; new accounts meet at their insert, others at their lock."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        if known:
            await b.check(token, refund("c0", "1.00", "A-1002"))
        started: list[asyncio.Task[Any]] = []
        second_one, later = {"a": a, "b": b}[second_worker], refund("c2", second_amount, "A-1002", session_id="chat-2")
        gates.before("a", step, start_meanwhile(shop, started, lambda: second_one.check(token, later)))
        found = [await a.check(token, refund("c1", "60.00", "A-1002")), await started[0]]
    accepted = [each for each in found if each["decision"] == "accepted"]
    refused = [each for each in found if each["decision"] == "denied"]
    assert (len(accepted), len(refused)) == (1, 1)
    assert refused[0]["reason"] == reason
    semantic = {check["name"]: check["outcome"] for check in refused[0]["layers"][-1]["checks"]}
    assert semantic["within_refundable"] == "denied"
    before = 100 if known else 0
    assert await held(shop, "resource:order:A-1002") in (before + 6000, before + 6001)
    await holds_agree(shop)


@pytest.mark.parametrize("step", STEPS)
async def test_a_revoked_key_decides_nothing_after_its_revocation(shop: Shop, gates: Gates, step: str) -> None:
    """S12.1, TA-04: whichever commits first, no decision of the key is behind the row that says it was revoked."""
    tenant = shop.acme
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        started: list[asyncio.Task[Any]] = []

        async def revoke() -> Any:
            return await b.writer.revoke_key(SYSTEM, tenant.tenant_id, tenant.key_ids["agent"])

        gates.before("a", step, start_meanwhile(shop, started, revoke))
        if step in WHILE_THE_HEAD_IS_LOCKED:
            answer = await a.check(tenant.tokens["agent"], refund("c1"))
            assert answer["decision"] == "accepted"
            await started[0]
            revoked = "SELECT sequence FROM placet.audit_rows WHERE tenant_id = $1 AND body LIKE '%key.revoked%'"
            assert await shop.value(revoked, tenant.tenant_id) == answer["audit"]["sequence"] + 1
        else:
            with pytest.raises(Unauthenticated):
                await a.check(tenant.tokens["agent"], refund("c1"))
            await started[0]
            assert await decisions_of(shop) == []
            assert await held(shop, "resource:order:A-1001") == 0
        with pytest.raises(Unauthenticated):
            await a.check(tenant.tokens["agent"], refund("c3"))


@pytest.mark.parametrize("step", STEPS)
async def test_a_replaced_policy_decides_nothing_after_its_replacement(shop: Shop, gates: Gates, step: str) -> None:
    """S6.3: a call that was prepared under the old version is prepared again."""
    narrower = changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00"', 'amount: "10.00"'))
    token = shop.acme.tokens["agent"]
    version = await store(shop, shop.acme, narrower)
    async with gates.worker("a", shop) as a:
        started: list[asyncio.Task[Any]] = []
        gates.before("a", step, start_meanwhile(shop, started, lambda: activate_stored(shop, shop.acme, version), 5))  # it compiles first
        answer = await a.check(token, refund("c1"))
        await started[0]
        activated = await shop.value(
            "SELECT sequence FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'policy.activated'", shop.acme.tenant_id
        )
        if step in WHILE_THE_HEAD_IS_LOCKED:
            assert (answer["decision"], answer["policy_version"]) == ("accepted", 1)
            assert answer["audit"]["sequence"] < activated
        else:
            assert (answer["decision"], answer["reason"], answer["policy_version"]) == ("denied", "not_granted", 2)
            assert answer["audit"]["sequence"] > activated
        later = await a.check(token, refund("c2", "20.00", "A-1006"))
    assert (later["reason"], later["policy_version"]) == ("not_granted", 2)


@pytest.fixture
def one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait for the only connection share the next batch."""
    monkeypatch.setattr(lane, "MAIN_LANES", 1)


async def one_batch(gates: Gates, worker: Worker, *asked: tuple[str, Any]) -> list[Any]:
    """Send calls so that they share a batch: they queue while a first call is held up."""
    for token in {token for token, _ in asked}:
        await worker.authority.authenticate(token)
    tasks: list[asyncio.Task[Any]] = []

    async def queue_the_rest(_connection: asyncpg.Connection) -> None:
        tasks.extend(asyncio.create_task(worker.ask(token, call)) for token, call in asked)
        await asyncio.sleep(0.01)

    gates.before("a", "commit", queue_the_rest)
    await worker.ask(asked[0][0], search_order("first", session_id="held-up"))
    gates.passed.clear()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each if isinstance(each, BaseException) else document(each) for each in found]


def batches(gates: Gates) -> int:
    return gates.passed.count(("a", "open_batch"))


@pytest.mark.usefixtures("one_connection")
async def test_one_order_twice_in_one_batch_is_refunded_once(shop: Shop, gates: Gates) -> None:
    """S3.8: the later call of a batch sees what the earlier one held."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        calls = [
            (token, refund("c1", "60.00", "A-1002")),
            (token, refund("c2", "60.00", "A-1002")),
            (token, refund("c3", "40.01", "A-1002")),
        ]
        first, second, third = await one_batch(gates, worker, *calls)
    assert batches(gates) == 1
    assert (first["decision"], second["reason"], third["reason"]) == ("accepted", "already_refunded", "amount_exceeds_refundable")
    assert third["fix_hint"]["expected"] == {"exclusiveMinimum": 0, "maximum": 40}
    assert await held(shop, "resource:order:A-1002") == 6000
    await holds_agree(shop)


@pytest.mark.usefixtures("one_connection")
async def test_one_call_id_twice_in_one_queue_is_decided_once(shop: Shop, gates: Gates) -> None:
    """S3.9: two of one call id never share a batch; the second replays the first."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        first, second, other = await one_batch(
            gates, worker, (token, refund("c1")), (token, refund("c1")), (token, refund("c2", order="A-1006"))
        )
    assert batches(gates) == 2
    assert (first["replayed"], second["replayed"], other["replayed"]) == (False, True, False)
    assert (first["execution_permitted"], second["execution_permitted"]) == (True, False)
    assert first["decision_id"] == second["decision_id"]
    assert await held(shop, "resource:order:A-1001") == 2000


@pytest.mark.usefixtures("one_connection")
async def test_two_tenants_in_one_batch_see_each_only_their_own(shop: Shop, gates: Gates) -> None:
    """S2, TA: the same order, session and call id in two tenants are two of each."""
    await shop.execute("UPDATE shop.orders SET status = 'cancelled' WHERE tenant = 'globex' AND order_id = 'A-1001'")
    ours, theirs = shop.acme.tokens["agent"], shop.globex.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        found = await one_batch(
            gates,
            worker,
            (ours, refund("c1", "60.00", "A-1002")),
            (theirs, refund("c1", "60.00", "A-1002")),
            (ours, refund("c2")),
            (theirs, refund("c2")),
        )
    assert batches(gates) == 1
    assert [each["reason"] for each in found] == ["within_policy", "within_policy", "within_policy", "order_state_forbids"]
    assert [each["audit"]["chain"] for each in found] == ["acme", "globex", "acme", "globex"]
    accounts = await shop.rows("SELECT tenant_id, held FROM placet.accounts WHERE account = 'resource:order:A-1002'")
    assert {row["tenant_id"]: row["held"] for row in accounts} == {shop.acme.tenant_id: 6000, shop.globex.tenant_id: 6000}
    mixed = await shop.value(
        "SELECT count(*) FROM placet.decisions d JOIN placet.holds h USING (decision_id) WHERE d.tenant_id <> h.tenant_id"
    )
    assert mixed == 0


@pytest.mark.usefixtures("one_connection")
async def test_a_fact_that_raises_is_one_calls_failure(shop: Shop, gates: Gates) -> None:
    """S3.5, S3.10"""
    broken = (
        "AND customer_id = :customer_id ",
        "AND customer_id = :customer_id AND 1 / (CASE WHEN order_id = 'A-1006' THEN 0 ELSE 1 END) = 1 ",
    )
    await activate(shop, shop.acme, changed(SHOP_FILES, "tools/refund.yaml", broken))
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        calls = [(token, refund("c1")), (token, refund("c2", "5.00", "A-1006")), (token, refund("c3", "20.00", "A-1002"))]
        first, poisoned, last = await one_batch(gates, worker, *calls)
    assert batches(gates) == 1
    assert (first["decision"], last["decision"]) == ("accepted", "accepted")
    assert (poisoned["decision"], poisoned["reason"], poisoned["refused_by"]) == ("denied", "fact_unavailable", "semantic")
    assert poisoned["fix_hint"]["retryable"] == "after_delay"
    assert poisoned["holds"] == []


@pytest.mark.usefixtures("one_connection")
async def test_an_effect_that_raises_is_one_calls_failure(own_shop: Shop, gates: Gates) -> None:
    """S3.6: the answer names the constraint and the SQLSTATE, and not what the database says of the row."""
    await own_shop.execute("ALTER TABLE shop.refunds ADD CONSTRAINT never_a_1006 CHECK (order_id <> 'A-1006')")
    token = own_shop.acme.tokens["agent"]
    async with gates.worker("a", own_shop) as worker:
        calls = [(token, refund("c1")), (token, refund("c2", "5.00", "A-1006")), (token, refund("c3", "20.00", "A-1002"))]
        first, poisoned, last = await one_batch(gates, worker, *calls)
    assert batches(gates) == 1
    assert (first["decision"], last["decision"]) == ("accepted", "accepted")
    assert (poisoned["reason"], poisoned["refused_by"]) == ("sandbox_failed", "sandbox")
    message = "trying the call failed at constraint never_a_1006, table refunds (SQLSTATE 23514); the call would not have worked"
    assert poisoned["fix_hint"]["message"] == message


@pytest.mark.usefixtures("one_connection")
async def test_a_value_that_jsonb_refuses_is_one_calls_failure(shop: Shop, gates: Gates) -> None:
    """S3.10: the batch is cut in halves until the call that breaks it stands alone; routes refuse such a call id before."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        calls = [(token, refund("c1")), (token, refund("c\x00")), (token, refund("c3", "20.00", "A-1002")), (token, search_order("c4"))]
        first, poisoned, third, fourth = await one_batch(gates, worker, *calls)
    assert isinstance(poisoned, DecisionUnavailable)
    assert [each["decision"] for each in (first, third, fourth)] == ["accepted", "accepted", "accepted"]
    assert len({each["decision_id"] for each in (first, third, fourth)}) == 3
    assert await held(shop, "resource:order:A-1001") == 2000
    await holds_agree(shop)


SLOW_TOOL = {
    **SHOP_FILES,
    "tools/refund_slowly.yaml": changed(
        SHOP_FILES, "tools/refund.yaml", ("tool: refund\n", "tool: refund_slowly\n"), ("FROM shop.customers", "FROM shop.slow_customers")
    )["tools/refund.yaml"],
}
SLOW_VIEW = """
    CREATE FUNCTION shop.slow() RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(2) IS NOT NULL';
    CREATE VIEW shop.slow_customers AS SELECT * FROM shop.customers WHERE shop.slow();
    GRANT SELECT ON shop.slow_customers TO placet_facts;
"""


@pytest.mark.usefixtures("one_connection")
async def test_a_fact_that_times_out_is_its_tools_failure_and_slows_nobody_else(own_shop: Shop, gates: Gates) -> None:
    """S3.10: what stands behind it in the batch is read again; the tool goes to a lane of its own."""
    await own_shop.execute(SLOW_VIEW)
    await activate(own_shop, own_shop.acme, SLOW_TOOL)
    token, loop = own_shop.acme.tokens["agent"], asyncio.get_running_loop()
    async with gates.worker("a", own_shop) as worker:
        slow, second_slow, quick, read = await one_batch(
            gates,
            worker,
            (token, refund("c1", tool="refund_slowly")),
            (token, refund("c2", "5.00", "A-1006", tool="refund_slowly")),
            (token, refund("c3", "20.00", "A-1002")),
            (token, search_order("c4")),
        )
        assert batches(gates) == 1
        assert (quick["decision"], read["decision"]) == ("accepted", "accepted")
        for each in (slow, second_slow):
            assert (each["decision"], each["reason"], each["fix_hint"]["retryable"]) == ("denied", "fact_unavailable", "after_delay")
            assert each["fix_hint"]["retry_after_ms"] == 500
        started = loop.time()
        again = asyncio.create_task(worker.check(token, refund("c1", tool="refund_slowly")))
        await asyncio.sleep(0.02)
        assert (await worker.check(token, refund("c5", "20.00", "A-1007")))["decision"] == "accepted"
        assert loop.time() - started < 0.35, "a quick call waited behind the slow tool"
        assert not again.done()
        retried = await again
    assert (retried["reason"], retried["replayed"]) == ("fact_unavailable", False)
    attempts = [row["attempt"] for row in await decisions_of(own_shop) if row["call_id"] == "c1"]
    assert attempts == [1, 2]


@pytest.mark.usefixtures("one_connection")
async def test_a_table_that_someone_locks_makes_the_fact_unavailable(shop: Shop, gates: Gates) -> None:
    """S3.10: within two seconds, and the same call id is decided afresh once the lock is gone."""
    token, loop = shop.acme.tokens["agent"], asyncio.get_running_loop()
    async with gates.worker("a", shop) as worker, shop.superuser() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("LOCK TABLE shop.customers IN ACCESS EXCLUSIVE MODE")
        started = loop.time()
        waiting, read = await one_batch(gates, worker, (token, refund("c1")), (token, search_order("c2")))
        assert loop.time() - started < 2
        await transaction.rollback()
        assert (waiting["reason"], read["decision"]) == ("fact_unavailable", "accepted")
        assert (await worker.check(token, refund("c1")))["decision"] == "accepted"
    await holds_agree(shop)


async def test_a_key_revoked_while_the_body_comes_decides_nothing(shop: Shop) -> None:
    """S12.1: the key is known again when the call is there, so an old principal never meets a newer authority of its tenant."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        principal = await worker.authority.authenticate(token)  # as the route does before it reads the body
        await worker.writer.revoke_key(SYSTEM, shop.acme.tenant_id, principal.key_id)
        await worker.authority.refresh([shop.acme.tenant_id])  # another call of the tenant has learned of the change
        with pytest.raises(Unauthenticated):
            await worker.checker.check(token, principal, refund("c1"))
    assert await decisions_of(shop) == []

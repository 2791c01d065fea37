"""No database, no decision: 503 in time, never an accept, nothing held twice, and it mends by itself (SPEC S3.10)."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from app.domain.errors import DecisionUnavailable
from app.engine import lane
from app.engine.check_tool_call import ToolCallChecker
from app.telemetry import Metrics
from tests.engine.conftest import STEPS, At, Gates, as_far_as_it_gets
from tests.engine.shop import Shop, Worker, holds_agree, refund, search_order, working

ANSWER_WITHIN_S = 2.0


async def decided(shop: Shop) -> int:
    return int(await shop.value("SELECT count(*) FROM placet.decisions"))


async def is_unavailable(worker: Worker, token: str, call: Any) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(DecisionUnavailable):
        await worker.check(token, call)
    assert asyncio.get_running_loop().time() - started < ANSWER_WITHIN_S


def killing(shop: Shop) -> At:
    """Give what ends the worker's connection, as a restart of the server does."""

    async def kill(connection: asyncpg.Connection) -> None:
        async with shop.superuser() as superuser:
            await superuser.execute("SELECT pg_terminate_backend($1, 1000)", connection.get_server_pid())

    return kill


@pytest.mark.parametrize("step", STEPS)
async def test_a_connection_that_dies_keeps_nothing(shop: Shop, gates: Gates, step: str) -> None:
    """Before each round trip, just before COMMIT too."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as worker:
        gates.before("a", step, killing(shop))
        await is_unavailable(worker, token, refund("c1"))
        assert await decided(shop) == 0
        assert await shop.value("SELECT count(*) FROM placet.holds") == 0
        after = await worker.check(token, refund("c1"))
    assert (after["decision"], after["replayed"]) == ("accepted", False)
    await holds_agree(shop)


async def test_a_connection_that_dies_in_commit_may_have_kept_the_decision(shop: Shop, gates: Gates) -> None:
    """S3.9: nobody knows then, so the answer is 503, and the same call id finds out without holding twice."""
    token = shop.acme.tokens["agent"]

    async def commit_and_die(connection: asyncpg.Connection) -> None:
        await connection.execute("COMMIT")
        await killing(shop)(connection)

    async with gates.worker("a", shop) as worker:
        gates.before("a", "commit", commit_and_die)
        await is_unavailable(worker, token, refund("c1"))
        assert await decided(shop) == 1
        found = await worker.check(token, refund("c1"))
    assert (found["decision"], found["replayed"], found["execution_permitted"]) == ("accepted", True, False)
    assert await shop.value("SELECT held FROM placet.accounts WHERE account = 'resource:order:A-1001'") == 2000
    await holds_agree(shop)


async def test_a_server_that_cannot_be_reached_gives_no_decision(shop: Shop) -> None:
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        principal = await worker.authority.authenticate(token)
        away = ToolCallChecker(worker.authority, worker.clock, "postgresql://nobody@127.0.0.1:9/nowhere", Metrics())
        away.lanes.start()
        started = asyncio.get_running_loop().time()
        with pytest.raises(DecisionUnavailable):
            await away.check(token, principal, refund("c1"))
        assert asyncio.get_running_loop().time() - started < ANSWER_WITHIN_S
        await away.lanes.close()
    async with working("postgresql://nobody@127.0.0.1:9/nowhere") as worker:
        with pytest.raises(DecisionUnavailable):
            await worker.authority.authenticate(token)


@pytest.mark.parametrize("table", ["accounts", "call_keys", "chain_heads", "holds"])
async def test_a_statement_that_is_cancelled_keeps_nothing(shop: Shop, table: str) -> None:
    """Claims and accounts, reads, heads, the write: each runs into its time-out and is tried again, until it is given up in time."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, shop.superuser() as other:
        await worker.authority.authenticate(token)
        await other.execute("BEGIN")
        await other.execute(f"LOCK TABLE placet.{table} IN ACCESS EXCLUSIVE MODE")
        await is_unavailable(worker, token, refund("c1"))
        await other.execute("ROLLBACK")
        assert await decided(shop) == 0
        assert (await worker.check(token, refund("c1")))["decision"] == "accepted"
    await holds_agree(shop)


async def test_a_short_lock_is_waited_for(shop: Shop) -> None:
    """What a second try mends is no failure."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, shop.superuser() as other:
        await worker.authority.authenticate(token)
        await other.execute("BEGIN")
        await other.execute("LOCK TABLE placet.holds IN ACCESS EXCLUSIVE MODE")
        task = asyncio.create_task(worker.check(token, refund("c1")))
        await asyncio.sleep(0.5)
        await other.execute("ROLLBACK")
        assert (await task)["decision"] == "accepted"
    assert await decided(shop) == 1


async def test_a_batch_that_hangs_is_given_up_with_its_connection(shop: Shop, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "BATCH_WITHIN_S", 0.2)
    token = shop.acme.tokens["agent"]

    async def hang(_connection: asyncpg.Connection) -> None:
        await asyncio.sleep(10)

    async with gates.worker("a", shop) as worker:
        gates.before("a", "record_batch", hang)
        await is_unavailable(worker, token, refund("c1"))
        assert await decided(shop) == 0
        assert (await worker.check(token, refund("c1")))["decision"] == "accepted"


async def test_a_full_queue_refuses_at_once(shop: Shop, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued is still decided."""
    monkeypatch.setattr(lane, "QUEUE_MAX", 2)
    monkeypatch.setattr(lane, "MAIN_LANES", 1)
    token = shop.acme.tokens["agent"]
    queued: list[asyncio.Task[Any]] = []

    async with gates.worker("a", shop) as worker:
        await worker.authority.authenticate(token)

        async def fill(_connection: asyncpg.Connection) -> None:
            queued.extend(asyncio.create_task(worker.check(token, search_order(f"q{n}"))) for n in range(2))
            await asyncio.sleep(0.01)
            with pytest.raises(DecisionUnavailable) as full:
                await worker.check(token, search_order("q3"))
            assert full.value.retry_after_s == 1

        gates.before("a", "commit", fill)
        assert (await worker.check(token, search_order("c1")))["decision"] == "accepted"
        assert [each["decision"] for each in await asyncio.gather(*queued)] == ["accepted", "accepted"]
    assert await shop.value("SELECT count(*) FROM placet.decisions WHERE call_id = 'q3'") == 0


async def test_a_caller_who_leaves_does_not_lose_the_decision(shop: Shop, gates: Gates) -> None:
    """S3.9: the batch goes on, and the same call id replays what was decided."""
    token = shop.acme.tokens["agent"]
    tasks: list[asyncio.Task[Any]] = []

    async def leave(_connection: asyncpg.Connection) -> None:
        tasks[0].cancel()
        await asyncio.sleep(0)

    async with gates.worker("a", shop) as worker:
        await worker.authority.authenticate(token)
        gates.before("a", "record_batch", leave)
        tasks.append(asyncio.create_task(worker.check(token, refund("c1"))))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        found = await worker.check(token, refund("c1"))
    assert (found["decision"], found["replayed"]) == ("accepted", True)
    assert await decided(shop) == 1
    await holds_agree(shop)


async def test_closing_answers_what_is_queued(shop: Shop) -> None:
    token = shop.acme.tokens["agent"]
    worker = Worker(shop.url)
    worker.checker.lanes.start()
    await worker.authority.authenticate(token)
    tasks = [asyncio.create_task(worker.check(token, search_order(f"c{n}"))) for n in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await worker.checker.lanes.close()
    assert [(await task)["decision"] for task in tasks] == ["accepted"] * 5
    with pytest.raises(DecisionUnavailable):
        await worker.check(token, search_order("late"))
    await worker.close()


@pytest.mark.parametrize("step", ["read_facts", "commit"])
async def test_a_killed_worker_leaves_its_locks_to_the_next(shop: Shop, gates: Gates, step: str) -> None:
    """The other worker waits for the claim of the one that dies, and decides."""
    token = shop.acme.tokens["agent"]
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        started: list[asyncio.Task[Any]] = []

        async def die(connection: asyncpg.Connection) -> None:
            started.append(asyncio.create_task(b.check(token, refund("c1"))))
            await as_far_as_it_gets(shop, started[0])
            await killing(shop)(connection)

        gates.before("a", step, die)
        await is_unavailable(a, token, refund("c1"))
        found = await started[0]
    assert (found["decision"], found["replayed"]) == ("accepted", False)
    assert await decided(shop) == 1
    await holds_agree(shop)

"""Faults of PostgreSQL under asyncio that others shipped: connections in a wrong state, lock order, sums that overflow."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from decimal import Decimal

import pytest

from app.launcher.embedded_postgres import EmbeddedPostgres
from app.launcher.sessions import NoSession, require_sessions
from tests.cases.stage import Stage, call, calm, counted, said, together, written

ACCEPTED = ("accepted", "within_policy")
EXCEEDS = ("denied", "amount_exceeds_refundable")
TLS_WANTED = 80877103
IN_TRANSACTION = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'placet' AND state LIKE 'idle in transaction%'"


async def _deadlocks(stage: Stage) -> int:
    return int(await stage.superuser.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


async def _disconnecting(stage: Stage, key: str, calls: int) -> None:
    """Send checks and leave at a random moment, from before the body has arrived to after the answer."""

    async def leave(number: int) -> None:
        body = written(call("search_order", {"order_id": "A-1001"}, f"gone-{number}"))
        with contextlib.suppress(OSError):
            async with stage.socket() as (_, writer):
                sent = stage.request(key, body)
                writer.write(sent if random.random() < 0.8 else sent[: random.randrange(len(sent))])
                await writer.drain()
                await asyncio.sleep(random.random() * 0.02)
                writer.transport.abort()

    for first in range(0, calls, 50):
        await asyncio.gather(*(leave(number) for number in range(first, min(first + 50, calls))))


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "and the server cancels"])
async def test_pg_01_disconnects_leave_no_connection_in_a_wrong_state(stage: Stage, cancelled: bool) -> None:
    """300 clients leave; what is acknowledged afterwards is in the table, seen from another connection. Also with statements cancelled
    under the service meanwhile (a short server timeout)."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 100_00)
    canceller = asyncio.create_task(_cancel(stage)) if cancelled else None
    try:
        await _disconnecting(stage, key, 300)
    finally:
        if canceller is not None:
            canceller.cancel()
            await asyncio.gather(canceller, return_exceptions=True)
    answers = await together(tenant.call("search_order", {"order_id": "A-1001"}, f"here-{number}") for number in range(50))
    assert said(answers) == {ACCEPTED: 50}
    stored = await tenant.rows("SELECT decision_id FROM placet.decisions WHERE tenant_id = $1 AND call_id LIKE 'here-%'")
    assert {str(row["decision_id"]) for row in stored} == {answer["decision_id"] for answer in answers}
    await asyncio.sleep(0.1)
    assert await stage.superuser.fetchval(IN_TRANSACTION) == 0
    refund = await tenant.refund("A-1001", "20.00")
    assert (refund.said, await tenant.held("resource:order:A-1001")) == (ACCEPTED, 20_00)
    await tenant.is_sound()


async def _cancel(stage: Stage) -> None:
    while True:
        await stage.superuser.fetch(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'placet' AND state = 'active' AND random() < 0.2"
        )
        await asyncio.sleep(0.01)


async def test_pg_03_opposite_orders_never_deadlock(stage: Stage) -> None:
    """100 rounds of two orders and one budget in opposite orders, on both workers: no deadlock, no 5xx, exact sums."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_000_00)
    await tenant.order("A-1002", 100_000_00)
    await tenant.refund("A-1001", "0.01")  # warm
    before = await _deadlocks(stage)

    async def play(number: int) -> None:
        amount = f"1.{number:02}"
        pair = ["A-1001", "A-1002"]
        answers = await together(tenant.refund(order, amount, session_id=f"s{number}") for order in (*pair, *reversed(pair)))
        wanted = sorted([ACCEPTED, ACCEPTED, ("denied", "already_refunded"), ("denied", "already_refunded")])
        assert sorted(answer.said for answer in answers) == wanted

    for first in range(0, 100, 10):
        await asyncio.gather(*(play(number) for number in range(first, first + 10)))
    await stage.superuser.execute("SELECT pg_stat_clear_snapshot()")
    assert await _deadlocks(stage) == before
    each = sum(100 + number for number in range(100))
    assert (await tenant.held("resource:order:A-1001"), await tenant.held("resource:order:A-1002")) == (each + 1, each)
    await tenant.is_sound()


async def test_pg_04_one_budget_row_many_calls(stage: Stage) -> None:
    """50 parallel refunds of 60.00 against a budget of 1000.00: 16 fit, the others ask; none is a 5xx, none is lost."""
    tenant = await stage.tenant()
    for number in range(50):
        await tenant.order(f"A-{1000 + number}", 500_00)
    answers = await together(tenant.refund(f"A-{1000 + number}", "60.00", session_id=f"s{number}") for number in range(50))
    assert said(answers) == {ACCEPTED: 16, ("needs_user", "budget_exceeded"): 34}
    budgets = await tenant.rows("SELECT held FROM placet.accounts WHERE tenant_id = $1 AND account LIKE 'budget:%'")
    assert [row["held"] for row in budgets] == [960_00]
    await tenant.is_sound()


async def test_pg_04_many_tenants_on_one_worker_pair(stage: Stage) -> None:
    """The same race in five tenants at once, whose rows meet in the same batches."""
    tenants = [await stage.tenant() for _ in range(5)]
    for tenant in tenants:
        await tenant.order("A-1001", 1_000_00)
    answers = await together(tenant.refund("A-1001", f"20.0{number}") for number in range(10) for tenant in tenants)
    assert said(answers) == {ACCEPTED: 50}
    for tenant in tenants:
        assert await tenant.held("resource:order:A-1001") == 200_45
        await tenant.is_sound()


@pytest.mark.parametrize("near", [2**31 - 2, 2**31, 2**32, 2**53 - 2, 2**53, 2**53 + 1, 2**62])
async def test_pg_07_sums_near_the_edges_are_exact(stage: Stage, near: int) -> None:
    """An order and what is held on it near 2^31 and 2^53 minor units: the last units are told apart, and shown exactly."""
    tenant = await stage.tenant(calm())
    await tenant.order("A-1001", near + 5)
    await _hold(stage, tenant.tenant_id, "resource:order:A-1001", near)
    refused = await tenant.refund("A-1001", "0.06")
    assert refused.said == EXCEEDS
    assert refused["fix_hint"]["expected"]["maximum"] == Decimal("0.05")
    accepted = await tenant.refund("A-1001", "0.05")
    assert accepted.said == ACCEPTED
    assert await tenant.held("resource:order:A-1001") == near + 5
    await tenant.is_sound()


@pytest.mark.parametrize("near", [2**31, 2**53, 2**53 + 1, 2**62])
async def test_pg_07_large_amounts_are_text_and_exact(stage: Stage, near: int) -> None:
    """One amount that large: holds and limits show it as decimal text; the hint's number has all its digits."""
    files = {**calm(), "grants.yaml": calm()["grants.yaml"].replace("15000.00", "90000000000000000.00")}
    tenant = await stage.tenant(files)
    await tenant.order("A-1001", near)
    whole = f"{near // 100}.{near % 100:02}"
    more = f"{(near + 1) // 100}.{(near + 1) % 100:02}"
    refused = await tenant.refund("A-1001", more)
    assert refused.said == EXCEEDS
    assert refused["fix_hint"]["expected"]["maximum"] == Decimal(whole)
    assert refused["fix_hint"]["actual"] == Decimal(more)
    accepted = await tenant.refund("A-1001", whole)
    assert accepted.said == ACCEPTED
    assert accepted.holds == {"order:A-1001": (whole, "EUR")}
    assert accepted["side_effects"]["rows"][0]["after"] == {"refunded_minor": near}
    read = await stage.get(f"/decisions/{accepted['decision_id']}", await tenant.key())
    assert read["request"]["arguments"]["amount"] == Decimal(whole)
    await tenant.is_sound()


async def test_pg_07_a_full_account_refuses_instead_of_overflowing(stage: Stage) -> None:
    """At the end of 64 bits one more unit is a refusal with a reason, not an error of the database."""
    tenant = await stage.tenant(calm())
    await tenant.order("A-1001", 2**63 - 1)
    await _hold(stage, tenant.tenant_id, "resource:order:A-1001", 2**63 - 1)
    refused = await tenant.refund("A-1001", "0.01")
    assert refused.said == EXCEEDS
    assert refused["fix_hint"]["expected"]["maximum"] == 0


@pytest.mark.parametrize("near", [2**31 - 2, 2**31 - 1])
async def test_pg_07_counters_of_refusals_and_attempts_go_on(stage: Stage, near: int) -> None:
    """A counter near 2^31 goes on counting: the refusal is given, not a 503 for ever."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    for _ in range(2):
        assert (await tenant.refund("A-1001", "500.00")).said == EXCEEDS
        await stage.superuser.execute("UPDATE placet.rule_refusals SET refusals = $2 WHERE tenant_id = $1", tenant.tenant_id, near)
    asked = await tenant.refund("A-1001", "129.90", "waits")
    assert asked.said == ("needs_user", "needs_human_review")
    await stage.superuser.execute(
        "UPDATE placet.claims SET attempt = $2 WHERE tenant_id = $1 AND call_id = 'waits'", tenant.tenant_id, near
    )
    for _ in range(2):
        assert (await tenant.refund("A-1001", "500.00")).said == EXCEEDS
        assert (await tenant.refund("A-1001", "129.90", "waits")).said == asked.said
    assert await tenant.value("SELECT max(refusals) FROM placet.rule_refusals WHERE tenant_id = $1") == near + 2
    assert await tenant.value("SELECT attempt FROM placet.claims WHERE tenant_id = $1 AND call_id = 'waits'") == near + 2


async def test_pg_07_a_chain_near_the_edge_goes_on(stage: Stage) -> None:
    """Audit sequences and the metric of all rows near 2^31 and 2^53. The chain can't verify here: its first rows were never written."""
    tenant = await stage.tenant()
    for near in (2**31 - 1, 2**53):
        await stage.superuser.execute("UPDATE placet.chain_heads SET sequence = $2 WHERE tenant_id = $1", tenant.tenant_id, near)
        answer = await tenant.call("search_order", {"order_id": "A-1001"})
        assert answer["audit"]["sequence"] == near + 1
        assert counted(await stage.metrics(), "placet_chain_rows") >= near + 1


async def _hold(stage: Stage, tenant_id: object, account: str, quantity: int) -> None:
    """Put a hold there, as if earlier decisions had."""
    await stage.superuser.execute(
        "INSERT INTO placet.accounts (tenant_id, account, unit, held, spent) VALUES ($1, $2, 'EUR', $3, 0)", tenant_id, account, quantity
    )
    await stage.superuser.execute(
        "INSERT INTO placet.holds (tenant_id, hold_id, decision_id, account, unit, quantity, status, created_at, outcome_due_at)"
        " VALUES ($1, uuidv7(), uuidv7(), $2, 'EUR', $3, 'held', now(), now())",
        tenant_id,
        account,
        quantity,
    )


class _Pooler:
    """What a transaction pooler does to start-up parameters: refuse them, or drop them."""

    def __init__(self, server: str, how: str) -> None:
        self._server, self._how = server, how

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, code = struct.unpack("!ii", await reader.readexactly(8))
        if code == TLS_WANTED:
            writer.write(b"N")
            size, code = struct.unpack("!ii", await reader.readexactly(8))
        words = (await reader.readexactly(size - 8)).rstrip(b"\0").split(b"\0")
        options = dict(zip(words[::2], words[1::2], strict=True))
        if self._how == "refuses" and b"statement_timeout" in options:
            told = b"SFATAL\0C08P01\0Munsupported startup parameter: statement_timeout\0\0"
            writer.write(b"E" + struct.pack("!i", len(told) + 4) + told)
            writer.close()
            return
        kept = {name: value for name, value in options.items() if self._how != "drops" or not name.endswith(b"_timeout")}
        sent = b"".join(name + b"\0" + value + b"\0" for name, value in kept.items()) + b"\0"
        there, here = await asyncio.open_unix_connection(self._server)
        here.write(struct.pack("!ii", len(sent) + 8, code) + sent)
        await asyncio.gather(_copy(there, writer), _copy(reader, here))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("refuses", "refuses the service's settings (unsupported startup parameter: statement_timeout), as a pooler does"),
        ("drops", "drops the service's `statement_timeout`, as a pooler does"),
        ("passes on", None),
    ],
)
async def test_pg_06_a_pooler_without_sessions_is_refused_at_the_start(stage: Stage, how: str, told: str | None) -> None:
    """Lanes prepare statements and set time-outs once a connection, so an address that gives them no session of their own is refused in one
    clear line. (PgBouncer itself isn't a locked dependency; what it does is played here.)"""
    server = EmbeddedPostgres(stage.service.data / "postgres")
    pooler = _Pooler(str(server.socket_folder / ".s.PGSQL.5432"), how)
    listening = await asyncio.start_server(pooler.serve, "127.0.0.1")
    address = f"postgresql://placet_app@127.0.0.1:{listening.sockets[0].getsockname()[1]}/placet"
    try:
        if told is None:
            await require_sessions(address)
        else:
            with pytest.raises(NoSession) as refused:
                await require_sessions(address)
            assert told in str(refused.value)
            assert "a pooler in session mode" in str(refused.value)
    finally:
        listening.close()

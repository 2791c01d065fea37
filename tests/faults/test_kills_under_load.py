"""Kills under load: every answer that a client received is there afterwards, nothing is held twice, and the service comes back by itself
(S3.8, S3.9, S3.10, S10.1, S14.1)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import asyncpg
import httpx
import pytest

from app.launcher import process_table
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import PROJECT
from tests.faults.load import Agent, Load
from tests.faults.service import OWN_COMMAND, Service, descriptions, eventually

pytestmark = pytest.mark.faults
Start = Callable[..., Service]
Kill = Callable[["Shop"], None]

BOOTSTRAP_KEY = "bootstrap-of-the-fault-tests"
VERIFY = (*OWN_COMMAND[:-1], "audit", "verify")
TENANTS = ("acme", "globex")
SUBJECTS = 4  # of each tenant
FRESH_ORDERS, FRESH_PAID = 600, 500  # cents
HOT_ORDERS, HOT_PAID = 6, 20_000
BUDGET = 100_000  # policies/shop: refunds_per_agent_day
ANSWERS_AGAIN_S = 10.0
ANSWERED_S = 2.0


@dataclass(slots=True)
class Shop:
    """A service with two tenants whose orders have the same names, and the agents of both."""

    start: Start
    data: Path
    port: int
    service: Service
    agents: tuple[Agent, ...] = ()
    random: Random = field(default_factory=lambda: Random(1))

    @property
    def superuser_dsn(self) -> str:
        return EmbeddedPostgres(self.data / "postgres").dsn()

    def begin(self) -> None:
        """Start the service again in the same folder, on the same port."""
        self.service = _serve(self.start, self.port)

    def postgres(self) -> tuple[int, ...]:
        """Give every process of the database server."""
        return tuple(pid for pid in self.service.family() if process_table.program(pid).startswith("postgres"))

    def backends(self) -> tuple[int, ...]:
        """Give the database server's processes that serve the workers."""
        return tuple(pid for pid in self.postgres() if " placet_app placet " in process_table.command_line(pid))


@pytest.fixture
def shop(start: Start, data: Path) -> Shop:
    port = _port()
    made = Shop(start, data, port, _serve(start, port))
    made.agents = tuple(_make_tenants(made.service.url))
    asyncio.run(_fill(made.superuser_dsn))
    return made


def kill_worker(shop: Shop) -> None:
    os.kill(shop.random.choice(shop.service.workers), signal.SIGKILL)


def kill_postmaster(shop: Shop) -> None:
    os.kill(shop.service.postmaster, signal.SIGKILL)


def kill_backend(shop: Shop) -> None:
    """Kill one process of the database server: it takes all connections down and recovers, as after a crash of its own."""
    os.kill(shop.random.choice(shop.backends()), signal.SIGKILL)


def kill_service(shop: Shop) -> None:
    """Kill the parent, which takes everything along, and start the next one at once."""
    shop.service.signal(signal.SIGKILL)
    shop.begin()


KINDS: tuple[Kill, ...] = (kill_worker, kill_backend, kill_postmaster, kill_service)


def test_no_answer_is_lost_when_a_worker_the_database_and_the_service_are_killed(shop: Shop) -> None:
    _kill_under_load(shop, (kill_worker, kill_postmaster, kill_service))


@pytest.mark.slow
def test_no_answer_is_lost_in_two_dozen_kills(shop: Shop) -> None:
    _kill_under_load(shop, KINDS * 6)


def test_a_database_that_hangs_or_is_gone_is_answered_within_two_seconds_and_holds_nothing_twice(shop: Shop) -> None:
    """S3.10, S11.4: 503 in time, not ready, alive; and it comes back by itself."""
    with Load(shop.port, shop.agents[::4], pause_s=0.05) as load:
        assert eventually(lambda: load.everybody_answered_since(0.0))
        hung = _hang(shop, 6.0)
        _expect_back(load, hung[1])
        assert eventually(lambda: httpx.get(f"{shop.service.url}/readyz").status_code == 200)
        killed_at = time.monotonic()
        kill_postmaster(shop)
        _expect_back(load, killed_at)
        assert eventually(lambda: httpx.get(f"{shop.service.url}/readyz").status_code == 200)
        gone = (killed_at, time.monotonic())
    slowest = {name: max(attempt.took_s for attempt in load.between(*times)) for name, times in (("hung", hung), ("gone", gone))}
    print(f"slowest answers: {slowest}")
    assert load.statuses()[None] == 0, [attempt for attempt in load.attempts if attempt.status is None]
    assert slowest["hung"] < ANSWERED_S
    assert slowest["gone"] < ANSWERED_S
    while_hung = load.between(hung[0] + ANSWERED_S, hung[1])
    assert len(while_hung) >= len(load.agents)
    assert {attempt.status for attempt in while_hung if attempt.ended < hung[1]} == {503}
    _expect_all_kept(shop, load)
    _end(shop)


def _kill_under_load(shop: Shop, kills: Sequence[Kill]) -> None:
    times: dict[str, list[float]] = {}
    order = list(kills)
    shop.random.shuffle(order)
    with Load(shop.port, shop.agents, pause_s=0.03) as load:
        assert eventually(lambda: load.everybody_answered_since(0.0))
        for kill in order:
            time.sleep(shop.random.uniform(0.3, 1.5))
            killed_at = time.monotonic()
            kill(shop)
            times.setdefault(kill.__name__, []).append(_expect_back(load, killed_at, f"{kill.__name__}: {shop.service.output[-2000:]}"))
    for name, taken in times.items():
        print(f"{name}: {len(taken)} times, back after {statistics.median(taken):.2f} s (median), {max(taken):.2f} s (worst)")
    print(f"{len(load.answers)} answers {_counted(load)}, attempts {dict(load.statuses())}")
    _expect_all_kept(shop, load)
    _end(shop)


def _expect_back(load: Load, moment: float, what: str = "") -> float:
    """Wait until every client is answered again; give how long that took, in seconds."""
    back = eventually(lambda: load.everybody_answered_since(moment), ANSWERS_AGAIN_S)
    assert back, f"not everybody was answered {ANSWERS_AGAIN_S} s later; {dict(load.statuses())} {load.wrong[:3]} {what}"
    return time.monotonic() - moment


def _hang(shop: Shop, for_s: float) -> tuple[float, float]:
    """Stop the database's processes where they are for a while, and go on asking; give from when to when."""
    processes = shop.postgres()
    assert shop.service.postmaster in processes
    assert len(processes) > 6
    started = time.monotonic()
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        while time.monotonic() < started + for_s:
            _expect_alive_but_not_ready(shop.service.url)
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    return started, time.monotonic()


def _expect_alive_but_not_ready(url: str) -> None:
    with httpx.Client(base_url=url, timeout=5) as client:
        ready, took = _timed(lambda: client.get("/readyz"))
        assert ready.status_code == 503
        assert ready.json() == {"status": "not_ready", "checks": {"database": "can't be reached"}}
        assert took < ANSWERED_S
        alive, took = _timed(lambda: client.get("/healthz"))
        assert alive.json() == {"status": "ok"}
        assert took < ANSWERED_S / 2
        # a key that no worker remembers can't be looked up: unknown is not `unauthenticated`
        check, took = _timed(lambda: client.post("/tool-calls/check", json={}, headers={"authorization": f"Bearer {'x' * 30}"}))
        assert (check.status_code, check.json()["execution_permitted"]) == (503, False)
        assert took < ANSWERED_S


def _timed(ask: Callable[[], httpx.Response]) -> tuple[httpx.Response, float]:
    asked = time.monotonic()
    answer = ask()
    took = time.monotonic() - asked
    print(f"{answer.request.url.path}: {answer.status_code} after {took:.2f} s")
    return answer, took


def _expect_all_kept(shop: Shop, load: Load) -> None:
    assert load.wrong == []
    assert set(load.statuses()) <= {200, 503, None}
    assert sum(answer.decision == "accepted" for answer in load.answers) >= len(load.agents)
    asyncio.run(_compare(shop.superuser_dsn, load))
    verified = Service(shop.data, command=VERIFY, PLACET_DATA_DIR=str(shop.data), PYTHONPATH=str(PROJECT))
    code = verified.process.wait(120)
    verified.end()
    reports = [json.loads(line) for line in verified.lines]
    assert code == 0, verified.output
    assert {report["chain"] for report in reports} >= {*TENANTS, "demo", "platform"}
    assert [report for report in reports if report["verified"] is not True] == []


async def _compare(dsn: str, load: Load) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await _compare_answers(connection, load)
        await _compare_sums(connection)
    finally:
        await connection.close()


async def _compare_answers(connection: asyncpg.Connection, load: Load) -> None:
    """Hold what the clients have in hand against decisions, audit rows and holds."""
    rows = await connection.fetch(
        "SELECT t.name AS tenant, d.decision_id::text, d.session_id, d.call_id, d.decision, d.reason, d.sequence, a.hash,"
        " a.decision_id::text AS audited, a.decision AS audited_decision"
        " FROM placet.decisions d JOIN placet.tenants t USING (tenant_id)"
        " LEFT JOIN placet.audit_rows a ON a.tenant_id = d.tenant_id AND a.sequence = d.sequence"
    )
    decisions = {(row["tenant"], row["decision_id"]): row for row in rows}
    assert len(decisions) == len(rows), "two audit rows have one sequence"
    held: dict[str, set[tuple[str, str, str]]] = {}
    for row in await connection.fetch("SELECT decision_id::text, hold_id::text, account, unit, quantity, status FROM placet.holds"):
        assert (row["unit"], row["status"]) == ("EUR", "held")
        shown = row["account"].removeprefix("resource:").partition("|")[0]
        held.setdefault(row["decision_id"], set()).add((row["hold_id"], shown, f"{row['quantity'] // 100}.{row['quantity'] % 100:02d}"))
    for answer in load.answers:
        row = decisions.get((answer.call.agent.tenant, answer.decision_id))
        assert row is not None, f"an answer was lost: {answer}"
        told = (answer.call.session_id, answer.call.call_id, answer.decision, answer.reason, answer.sequence, answer.hash)
        kept = tuple(row[name] for name in ("session_id", "call_id", "decision", "reason", "sequence", "hash"))
        assert kept == told
        assert (row["audited"], row["audited_decision"]) == (answer.decision_id, answer.decision)
        assert held.get(answer.decision_id, set()) == answer.holds, answer
    for row in rows:  # those that nobody received, too
        amounts = {amount for _, _, amount in held.get(row["decision_id"], ())}
        assert len(held.get(row["decision_id"], ())) == (2 if row["decision"] == "accepted" else 0)
        assert len(amounts) <= 1
    accepted = Counter((row["tenant"], row["session_id"], row["call_id"]) for row in rows if row["decision"] == "accepted")
    assert [call for call, times in accepted.items() if times > 1] == []


async def _compare_sums(connection: asyncpg.Connection) -> None:
    assert await connection.fetch(
        "SELECT account, a.held, a.spent, s.sum FROM placet.accounts a FULL JOIN"
        " (SELECT tenant_id, account, sum(quantity) FROM placet.holds WHERE status = 'held' GROUP BY 1, 2) s USING (tenant_id, account)"
        " WHERE (a.held, a.spent) IS DISTINCT FROM (coalesce(s.sum, 0), 0)"
    ) == []  # fmt: skip
    over = await connection.fetch(
        "SELECT a.account, a.held + a.spent AS used, o.paid_minor FROM placet.accounts a JOIN placet.tenants t USING (tenant_id)"
        " LEFT JOIN shop.orders o ON o.tenant = t.name AND a.account = 'resource:order:' || o.order_id"
        " WHERE a.held + a.spent > coalesce(o.paid_minor - o.refunded_minor, $1)",
        BUDGET,
    )
    assert over == []
    budgets = await connection.fetch("SELECT held FROM placet.accounts WHERE account LIKE 'budget:%' AND held > 0")
    assert len(budgets) >= len(TENANTS)  # it was about something


def _end(shop: Shop) -> None:
    shop.service.signal(signal.SIGTERM)
    assert shop.service.end() == 0
    assert descriptions(shop.service.family()) == {}


def _serve(start: Start, port: int) -> Service:
    return start(workers=2, port=port, PLACET_BOOTSTRAP_KEY=BOOTSTRAP_KEY)


def _port() -> int:
    """Give a free port below those that clients are given: a client that knocks at a closed one of those may meet itself."""
    if sys.platform != "linux":
        pytest.skip("these tests read /proc")
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    random = Random()
    while True:
        port = random.randrange(10_000, first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _counted(load: Load) -> dict[str, int]:
    return dict(Counter(answer.decision if answer.decision != "denied" else answer.reason for answer in load.answers))


def _make_tenants(url: str) -> list[Agent]:
    """Make both tenants with their agents' keys, each agent twice: two clients share a budget. The first one asks for larger amounts."""
    fresh = tuple(f"F-{10_000 + number}" for number in range(FRESH_ORDERS))
    hot = tuple(f"H-{10_000 + number}" for number in range(HOT_ORDERS))
    agents = []
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {BOOTSTRAP_KEY}"}, timeout=10) as client:
        for tenant in TENANTS:
            assert client.post("/tenants", json={"tenant": tenant}).status_code == 201
            for number in range(SUBJECTS):
                subject = f"agent-{number}"
                key = client.post(
                    "/keys", json={"tenant": tenant, "subject": subject, "roles": ["agent"], "segments": ["standard"], "expires_in_s": 3600}
                )
                assert key.status_code == 201, key.text
                token, most = key.json()["secret"], 450 if number == 0 else 60
                agents += [Agent(tenant, subject, token, orders, most) for orders in (fresh, fresh[:100] + hot * 10)]
    return agents


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for tenant in TENANTS:
            await connection.execute("INSERT INTO shop.customers (tenant, customer_id, name) VALUES ($1, 'cust-77', 'Ada Berg')", tenant)
            for letter, count, paid in (("F", FRESH_ORDERS, FRESH_PAID), ("H", HOT_ORDERS, HOT_PAID)):
                await connection.execute(
                    "INSERT INTO shop.orders (tenant, order_id, customer_id, status, currency, paid_minor)"
                    " SELECT $1, $2 || '-' || (10000 + n), 'cust-77', 'delivered', 'EUR', $3 FROM generate_series(0, $4 - 1) n",
                    tenant, letter, paid, count,
                )  # fmt: skip
    finally:
        await connection.close()

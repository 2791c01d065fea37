"""The decision history's pages: one index each, a bounded look, and only what the transaction's tenants own (SPEC S10.4, S12.1)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.decision import Layer
from app.storage import decision_history
from app.storage.database import Database
from app.storage.decision_history import DecisionFilter, read_page
from tests.engine.shop import Shop, refund, working

ROWS = 3_000
START = datetime(2026, 1, 1, tzinfo=UTC)
FILL = """
    INSERT INTO placet.decisions (tenant_id, decision_id, kind, subject, session_id, task_id, call_id, attempt, tool, decision, reason,
        refused_by, status, policy_version, decided_at, recorded_at, sequence, resource, risk_score)
    SELECT $1, uuidv7(), 'tool_call', 'agent-' || g % 3, 'chat-' || g / 10, CASE WHEN g % 2 = 0 THEN 'task-' || g / 5 END, 'call-' || g, 1,
        CASE WHEN g = 17 THEN 'rare' ELSE 'refund' END, 'accepted', 'within_policy', NULL, 'permitted', 1, r.recorded_at, r.recorded_at, g,
        'order:A-' || g % 100, 0.5
    FROM generate_series(1, $2::int) g, LATERAL (SELECT now() - make_interval(mins => $2 - g) AS recorded_at) r;
"""
FILL_CHAIN = """
    INSERT INTO placet.audit_rows (tenant_id, recorded_at, sequence, event, body, previous_hash, hash, decision_id, resources)
    SELECT tenant_id, recorded_at, sequence, 'tool_call.decided', '{}', '', 'sha256:' || sequence, decision_id, ARRAY[resource]
    FROM placet.decisions WHERE tenant_id = $1
"""


@pytest.fixture
async def filled(shop: Shop) -> Shop:
    """ROWS decisions of acme, one a minute, and as many of globex."""
    async with shop.superuser() as connection:
        for tenant in (shop.acme, shop.globex):
            await connection.execute("DELETE FROM placet.audit_rows WHERE tenant_id = $1", tenant.tenant_id)
            await connection.execute(FILL, tenant.tenant_id, ROWS)
            await connection.execute(FILL_CHAIN, tenant.tenant_id)
            await connection.execute("UPDATE placet.chain_heads SET sequence = $2 WHERE tenant_id = $1", tenant.tenant_id, ROWS)
        await connection.execute("ANALYZE placet.decisions")
    return shop


@pytest.fixture
async def connection(filled: Shop) -> AsyncIterator[AsyncConnection]:
    database = Database(filled.url)
    async with database.transaction([filled.acme.tenant_id]) as opened:
        yield opened
    await database.close()


async def sequences(
    connection: AsyncConnection, tenant_id: uuid.UUID, wanted: DecisionFilter, after: int | None = None, *, newest_first: bool = True
) -> tuple[list[int], int | None]:
    page = await read_page(connection, tenant_id, wanted, 5, after, newest_first=newest_first)
    return [row.sequence for row in page.rows], page.after


async def test_a_page_looks_at_no_more_than_it_may(connection: AsyncConnection, filled: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that no index serves and that lets nothing through: the page is empty and says where to go on."""
    monkeypatch.setattr(decision_history, "SCAN_ROWS_MAX", 1_000)
    nothing = DecisionFilter({"refused_by": Layer.STATIC.value})
    tenant_id = filled.acme.tenant_id
    assert await sequences(connection, tenant_id, nothing) == ([], 2_001)
    assert await sequences(connection, tenant_id, nothing, 2_001) == ([], 1_001)
    assert await sequences(connection, tenant_id, nothing, 1_001) == ([], 1)
    assert await sequences(connection, tenant_id, nothing, 1) == ([], None)
    assert await sequences(connection, tenant_id, nothing, newest_first=False) == ([], 1_000)
    assert await sequences(connection, tenant_id, nothing, 2_500, newest_first=False) == ([], None)


@pytest.mark.parametrize(
    ("equal", "found"),
    [
        ({"tool": "rare"}, [17]),
        ({"subject": "agent-2", "tool": "rare"}, [17]),
        ({"subject": "agent-1", "tool": "rare"}, []),
        ({"tool": "rare", "resource": "order:A-17"}, [17]),
        ({"reason": "within_policy", "session_id": "chat-200"}, [2_009, 2_008, 2_007, 2_006, 2_005]),
        ({"task_id": "task-400", "call_id": "call-2002"}, [2_002]),
    ],
)
async def test_the_telling_filter_serves_the_page(
    connection: AsyncConnection, filled: Shop, monkeypatch: pytest.MonkeyPatch, equal: dict[str, str], found: list[int]
) -> None:
    """With a look of 100 rows only, what few rows have is still found at once, whatever is asked for besides."""
    monkeypatch.setattr(decision_history, "SCAN_ROWS_MAX", 100)
    monkeypatch.setattr(decision_history, "PROBE_ROWS_MAX", 50)
    assert (await sequences(connection, filled.acme.tenant_id, DecisionFilter(equal)))[0] == found


async def test_times_narrow_to_a_part_of_the_chain(connection: AsyncConnection, filled: Shop) -> None:
    """[from, until) of recorded_at, found by the audit's own key."""
    at = {
        row["sequence"]: row["recorded_at"]
        for row in await filled.rows("SELECT sequence, recorded_at FROM placet.audit_rows WHERE tenant_id = $1", filled.acme.tenant_id)
    }
    tenant_id = filled.acme.tenant_id
    narrow = DecisionFilter({}, at[1_000], at[1_003])
    assert await sequences(connection, tenant_id, narrow) == ([1_002, 1_001, 1_000], None)
    assert await sequences(connection, tenant_id, narrow, newest_first=False) == ([1_000, 1_001, 1_002], None)
    between = DecisionFilter({"resource": "order:A-1"}, at[1_000] + timedelta(seconds=1))
    assert (await sequences(connection, tenant_id, between, newest_first=False))[0] == [1_001, 1_101, 1_201, 1_301, 1_401]
    assert await sequences(connection, tenant_id, DecisionFilter({}, START, START + timedelta(days=1))) == ([], None)


async def test_rows_of_another_tenant_are_not_there_whatever_is_asked(connection: AsyncConnection, filled: Shop) -> None:
    """The database's own row level security: the transaction is acme's, so globex has no decisions in it."""
    for wanted in (DecisionFilter(), DecisionFilter({"tool": "rare"}), DecisionFilter({}, START)):
        assert await sequences(connection, filled.globex.tenant_id, wanted) == ([], None)
    assert len((await sequences(connection, filled.acme.tenant_id, DecisionFilter()))[0]) == 5


async def test_each_filter_is_read_from_its_index(connection: AsyncConnection, filled: Shop) -> None:
    """The columns that are called indexed have an index that begins with the tenant and ends with the order of the pages."""
    found = await filled.rows("SELECT indexdef FROM pg_indexes WHERE schemaname = 'placet' AND tablename = 'decisions'")
    keys = {row["indexdef"].partition("USING btree (")[2].partition(")")[0] for row in found}
    assert {f"tenant_id, {name}, sequence" for name in decision_history.INDEXED} | {"tenant_id, sequence"} <= keys


async def test_the_write_keeps_what_is_searched_by(shop: Shop) -> None:
    """`record_batch` stores the resource and the risk beside the decision, as the audit row has them."""
    async with working(shop.url) as worker:
        await worker.check(shop.acme.tokens["agent"], refund("c1"))
        await worker.check(shop.acme.tokens["agent"], refund("c2", extra={"cause": "because"}))
    rows = await shop.rows(
        "SELECT d.resource, d.risk_score, r.resources, r.risk_score AS chained FROM placet.decisions d"
        " JOIN placet.audit_rows r USING (tenant_id, recorded_at, sequence) ORDER BY sequence"
    )
    assert rows[0]["resource"] == "order:A-1001"
    assert rows[0]["risk_score"] is not None
    assert rows[0]["risk_score"] == rows[0]["chained"]
    assert (rows[1]["resource"], rows[1]["resources"], rows[1]["risk_score"]) == (None, None, None)

"""What the service's role, the facts role and the sandbox role can't do, whatever a statement asks for (SPEC S10.2, S12.1)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.engine.shop import Shop, refund, working

INSERT_ONLY = ("audit_rows", "audit_payloads", "audit_checkpoints", "call_keys", "policy_versions")


@pytest.fixture
async def service(shop: Shop) -> AsyncIterator[asyncpg.Connection]:
    """A connection as the service's role, after a decision in each tenant."""
    async with working(shop.url) as worker:
        for tenant in (shop.acme, shop.globex):
            await worker.check(tenant.tokens["agent"], refund("c1"))
            await worker.check(tenant.tokens["agent"], refund("c2", "145.05", "A-1007"))
    connection = await asyncpg.connect(shop.url)
    yield connection
    await connection.close()


async def tenant_tables(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'placet'"
        " AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_version' ORDER BY 1"
    )
    return [row["relname"] for row in rows]


@pytest.mark.parametrize("table", INSERT_ONLY)
@pytest.mark.parametrize("statement", ["UPDATE placet.{} SET tenant_id = tenant_id", "DELETE FROM placet.{}", "TRUNCATE placet.{}"])
async def test_the_service_cannot_change_what_was_written(service: asyncpg.Connection, shop: Shop, table: str, statement: str) -> None:
    """S10.2: not even inside its own tenant."""
    await service.execute("SELECT set_config('app.tenants', $1, false)", str(shop.acme.tenant_id))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await service.execute(statement.format(table))


async def test_the_service_deletes_nothing(service: asyncpg.Connection) -> None:
    for table in await tenant_tables(service):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service.execute(f"DELETE FROM placet.{table}")


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE placet_owner",
        "SET ROLE postgres",
        "SET session_replication_role = replica",
        "ALTER TABLE placet.audit_rows DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE placet.audit_rows NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY tenants_of_the_transaction ON placet.audit_rows",
        "CREATE TABLE placet.mine (x int)",
        "CREATE TABLE public.mine (x int)",
        "CREATE FUNCTION placet.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "ALTER ROLE placet_app BYPASSRLS",
        "UPDATE placet.schema_version SET version_num = '0000'",
        "SELECT * FROM shop.orders",
        "SELECT pg_read_file('/etc/passwd')",
        "COPY placet.audit_rows TO PROGRAM 'cat'",
    ],
)
async def test_the_service_has_no_way_to_more(service: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await service.execute(statement)


async def test_a_partition_has_no_door_of_its_own(service: asyncpg.Connection) -> None:
    """Row level security of the parent doesn't hold for a partition that is asked directly."""
    partitions = await service.fetch(
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'placet' AND c.relispartition AND c.relkind = 'r'"
    )
    assert len(partitions) >= 10
    for row in partitions:
        assert (row["relrowsecurity"], row["relforcerowsecurity"]) == (True, True)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service.fetch(f"SELECT * FROM placet.{row['relname']}")


async def test_every_table_has_row_level_security(service: asyncpg.Connection) -> None:
    """S12.1: forced, so that it holds for the owner too; every key begins with the tenant (S17.2)."""
    tables = await tenant_tables(service)
    assert len(tables) >= 16
    for table in tables:
        row = await service.fetchrow(
            "SELECT relrowsecurity, relforcerowsecurity, (SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
            " AND a.attnum = i.indkey[0] WHERE i.indrelid = c.oid AND i.indisprimary) AS first_key"
            " FROM pg_class c WHERE c.oid = $1::regclass",
            f"placet.{table}",
        )
        assert dict(row) == {"relrowsecurity": True, "relforcerowsecurity": True, "first_key": "tenant_id"}, table


@pytest.mark.parametrize("setting", [None, "", str(UUID(int=7))])
async def test_without_a_tenant_nothing_is_seen(service: asyncpg.Connection, setting: str | None) -> None:
    if setting is not None:
        await service.execute("SELECT set_config('app.tenants', $1, false)", setting)
    for table in await tenant_tables(service):
        assert await service.fetchval(f"SELECT count(*) FROM placet.{table}") == 0, table


@pytest.mark.parametrize("setting", ["*", "%", "acme", "' OR true --", "NULL", "{}"])
async def test_what_is_no_tenant_opens_nothing(service: asyncpg.Connection, setting: str) -> None:
    await service.execute("SELECT set_config('app.tenants', $1, false)", setting)
    for table in await tenant_tables(service):
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await service.fetchval(f"SELECT count(*) FROM placet.{table}")


async def test_a_transactions_tenants_are_all_that_it_sees(service: asyncpg.Connection, shop: Shop) -> None:
    seen = 0
    await service.execute("SELECT set_config('app.tenants', $1, false)", str(shop.globex.tenant_id))
    for table in await tenant_tables(service):
        tenants = {row["tenant_id"] for row in await service.fetch(f"SELECT DISTINCT tenant_id FROM placet.{table}")}
        assert tenants <= {shop.globex.tenant_id}, table
        seen += len(tenants)
    assert seen >= 12, "most tables have rows, or this shows nothing"


async def test_a_row_of_another_tenant_can_be_neither_written_nor_changed(service: asyncpg.Connection, shop: Shop) -> None:
    await service.execute("SELECT set_config('app.tenants', $1, false)", str(shop.globex.tenant_id))
    theirs = shop.acme.tenant_id
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await service.execute("INSERT INTO placet.accounts (tenant_id, account, held, spent) VALUES ($1, 'x', 0, 0)", theirs)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await service.execute("UPDATE placet.accounts SET tenant_id = $1", theirs)
    assert await service.execute("UPDATE placet.accounts SET held = 0 WHERE tenant_id = $1", theirs) == "UPDATE 0"
    account = {"tenant_id": str(theirs), "account": "resource:order:A-1001", "unit": "EUR", "held": 0}
    hold = {"tenant_id": str(theirs), "hold_id": str(uuid4()), "decision_id": str(uuid4()), "account": "x", "unit": "EUR", "quantity": 1}
    hold |= {"status": "held", "created_at": "2026-12-01", "outcome_due_at": "2026-12-01"}
    rows = json.dumps({"claims": [], "accounts": [account], "holds": [hold]})
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await service.execute("SELECT placet.record_batch($1::jsonb, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')", rows)
    assert await shop.value("SELECT held FROM placet.accounts WHERE tenant_id = $1 AND account = 'resource:order:A-1001'", theirs) == 2000


async def test_the_tenants_end_with_their_transaction(service: asyncpg.Connection, shop: Shop) -> None:
    """A connection that goes back to a pool opens nothing for the next."""
    async with service.transaction():
        await service.execute("SELECT set_config('app.tenants', $1, true)", str(shop.acme.tenant_id))
        assert await service.fetchval("SELECT count(*) FROM placet.decisions") == 2
    assert await service.fetchval("SELECT count(*) FROM placet.decisions") == 0


@pytest.mark.parametrize("role", ["placet_facts", "placet_sandbox"])
async def test_the_roles_of_authors_statements_see_nothing_of_placet(service: asyncpg.Connection, role: str) -> None:
    await service.execute(f"SET ROLE {role}")
    for statement in (
        "SELECT * FROM placet.api_keys",
        "SELECT placet.tenant_of_name('acme')",
        "SELECT * FROM placet.platform_gauges()",
        "SELECT placet.ensure_partitions()",
        "SELECT placet.open_batch('[]', '[]')",
        "INSERT INTO placet.audit_rows SELECT * FROM placet.audit_rows",
        "CREATE TABLE shop.mine (x int)",
        "CREATE SCHEMA mine",
        "SET ROLE placet_owner",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO shop.refunds (tenant, order_id, amount_minor, currency) VALUES ('acme', 'A-1001', 1, 'EUR')",
        "UPDATE shop.orders SET refunded_minor = 0",
        "DELETE FROM shop.orders",
    ],
)
async def test_the_facts_role_writes_nothing(service: asyncpg.Connection, statement: str) -> None:
    await service.execute("SET ROLE placet_facts")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await service.execute(statement)


@pytest.mark.parametrize("role", [None, "placet_facts", "placet_sandbox"])
@pytest.mark.parametrize(
    "call",
    [
        "pg_advisory_lock(1)",
        "pg_advisory_lock_shared(1)",
        "pg_try_advisory_lock(1)",
        "pg_notify('a', 'b')",
        "lo_create(0)",
        "lo_from_bytea(0, '')",
        "pg_logical_emit_message(false, 'a', 'b')",
    ],
)
async def test_what_a_rollback_leaves_behind_may_not_be_called(service: asyncpg.Connection, role: str | None, call: str) -> None:
    """S3.6, SB-03: session locks, notifications, large objects and messages in the log outlive a dry run."""
    if role is not None:
        await service.execute(f"SET ROLE {role}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await service.execute(f"SELECT {call}")


async def test_a_function_of_the_owner_tells_only_what_it_is_for(service: asyncpg.Connection, shop: Shop) -> None:
    """A name gives an id, and the gauges are sums over all tenants."""
    assert await service.fetchval("SELECT placet.tenant_of_name('acme')") == shop.acme.tenant_id
    assert await service.fetchval("SELECT placet.tenant_of_name('nobody')") is None
    gauges = await service.fetchrow("SELECT * FROM placet.platform_gauges()")
    assert set(gauges.keys()) == {"approvals_waiting", "holds_open", "chain_rows", "policy_version"}
    assert (gauges["approvals_waiting"], gauges["holds_open"]) == (2, 4)

"""The round trips that run authors' statements: one call's trouble is its own, what was tried leaves nothing (SPEC S3.5, S3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from app.policy.expressions import Environment
from app.policy.statements import compile_effect, compile_fact
from app.storage.database import BatchConnection
from app.storage.decision_batch import DryRunAsk, FactsAsk, FactsFound, dry_run, read_facts
from tests.engine.shop import SHOP_FILES, Shop, activate, changed, refund, working

EMPTY = Environment({})
REFUND_ROW = "INSERT INTO shop.refunds (tenant, order_id, amount_minor, currency) VALUES ('acme', 'A-1001', 1, 'EUR')"
SIDE_TABLES = """
    CREATE TABLE shop.lines (tenant text NOT NULL, order_id text NOT NULL, line int NOT NULL, PRIMARY KEY (tenant, order_id, line),
        CONSTRAINT line_has_an_order FOREIGN KEY (tenant, order_id) REFERENCES shop.orders ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE shop.log (text text NOT NULL);
    CREATE FUNCTION shop.logs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$ BEGIN INSERT INTO shop.log SELECT 'a' FROM generate_series(1, 3); RETURN NULL; END $$;
    CREATE TRIGGER logs AFTER UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.logs();
    INSERT INTO shop.lines SELECT 'acme', 'A-1003', n FROM generate_series(1, 5) n;
    GRANT SELECT, INSERT ON shop.lines TO placet_sandbox;
    GRANT DELETE ON shop.orders TO placet_sandbox;
"""


def effects(*statements: str, index: int = 0) -> DryRunAsk:
    compiled = tuple(compile_effect(sql, {}, EMPTY, shared=True).statement.sql for sql in statements)
    return DryRunAsk(index, "acme", compiled, tuple({} for _ in compiled))


def fact(sql: str, index: int = 0, tenant: str = "acme", **values: object) -> FactsAsk:
    return FactsAsk(index, tenant, {"it": (f"SELECT to_jsonb(f) FROM ({sql}) f LIMIT 2", values)})


async def try_effects(shop: Shop, *asks: DryRunAsk) -> Mapping[int, Mapping[str, object]]:
    lane = BatchConnection(shop.url)
    try:
        prepared = await lane.prepare("placet_sandbox", [sql for ask in asks for sql in ask.statements])
        tables = await lane.counted_tables()
        async with lane.transaction([shop.acme.tenant_id]) as connection:
            found = await dry_run(connection, asks, prepared, tables)
            assert await connection.fetchval("SELECT current_user") == "placet_app"
            assert await connection.fetchval("SHOW lock_timeout") == "500ms"
    finally:
        await lane.close()
    return found


async def try_facts(shop: Shop, *asks: FactsAsk) -> Mapping[int, FactsFound]:
    lane = BatchConnection(shop.url)
    try:
        prepared = await lane.prepare("placet_facts", [sql for ask in asks for sql, _ in ask.facts.values()])
        async with lane.transaction([shop.acme.tenant_id]) as connection:
            found = (await read_facts(connection, (), (), asks, prepared)).facts
            assert await connection.fetchval("SELECT current_user") == "placet_app"
            assert await connection.fetchval("SHOW transaction_read_only") == "off"
    finally:
        await lane.close()
    return found


@pytest.fixture
async def side_tables(own_shop: Shop) -> Shop:
    await own_shop.execute(SIDE_TABLES)
    return own_shop


async def everything(shop: Shop) -> dict[str, Any]:
    """Every row of the shop with its place and the transaction that made it."""
    tables = await shop.rows("SELECT relname FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relkind = 'r' ORDER BY 1")
    return {
        row["relname"]: await shop.rows(f"SELECT ctid::text, xmin::text, t.* FROM shop.{row['relname']} t ORDER BY ctid") for row in tables
    }


async def test_effects_are_seen_and_leave_nothing(side_tables: Shop) -> None:
    """SB-04: before and after of each row, and not one row differs when it is over."""
    before = await everything(side_tables)
    found = await try_effects(
        side_tables, effects("UPDATE shop.orders SET refunded_minor = 7 WHERE tenant = 'acme' AND order_id = 'A-1001'", REFUND_ROW)
    )
    update, insert = found[0]["rows"]  # type: ignore[misc]  # raw findings
    assert (update[0][0]["refunded_minor"], update[0][1]["refunded_minor"]) == (0, 7)
    assert (insert[0][0], insert[0][1]["amount_minor"]) == (None, 1)
    assert await everything(side_tables) == before


async def test_what_triggers_and_cascades_touch_is_counted(side_tables: Shop) -> None:
    """S3.6: the blast radius is of every table, whoever did it."""
    update = effects("UPDATE shop.orders SET refunded_minor = 7 WHERE tenant = 'acme' AND order_id = 'A-1001'")
    delete = effects("DELETE FROM shop.orders WHERE tenant = 'acme' AND order_id = 'A-1003'", index=1)
    again = effects("UPDATE shop.orders SET refunded_minor = 8 WHERE tenant = 'acme' AND order_id = 'A-1001'", index=2)
    found = await try_effects(side_tables, update, delete, again)
    assert found[0]["counts"] == {"shop.orders": [0, 1, 0], "shop.log": [3, 0, 0]}
    assert found[1]["counts"] == {"shop.orders": [0, 0, 1], "shop.lines": [0, 0, 5]}
    assert found[2]["counts"] == found[0]["counts"], "what an earlier call of the batch did isn't this one's"


async def test_each_call_starts_from_the_state_as_it_is(shop: Shop) -> None:
    """Two calls of a batch don't see each other's effects."""
    more = "UPDATE shop.orders SET refunded_minor = refunded_minor + 5 WHERE tenant = 'acme' AND order_id = 'A-1001'"
    found = await try_effects(shop, effects(more), effects(more, index=1), effects(more, more, index=2))
    assert [found[n]["rows"][0][0][1]["refunded_minor"] for n in (0, 1)] == [5, 5]  # type: ignore[index]  # raw findings
    assert found[2]["rows"][1][0][1]["refunded_minor"] == 10  # type: ignore[index]  # raw findings


async def test_sb_01_a_deferred_constraint_fails_the_dry_run(side_tables: Shop) -> None:
    """SB-01: COMMIT would fail, and there is none to do it."""
    bad = effects("INSERT INTO shop.lines (tenant, order_id, line) VALUES ('acme', 'Z-0000', 1)")
    good = effects("INSERT INTO shop.lines (tenant, order_id, line) VALUES ('acme', 'A-1001', 1)", index=1)
    found = await try_effects(side_tables, bad, good)
    assert (found[0]["failed"], found[0]["constraint"], found[0]["table"]) == ("23503", "line_has_an_order", "lines")
    assert found[1]["counts"] == {"shop.lines": [1, 0, 0]}


async def test_a_deferred_trigger_fails_the_dry_run(side_tables: Shop) -> None:
    await side_tables.execute(
        "CREATE FUNCTION shop.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'secret 4711'; END $$;"
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON shop.lines DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION shop.no()"
    )
    found = await try_effects(side_tables, effects("INSERT INTO shop.lines (tenant, order_id, line) VALUES ('acme', 'A-1001', 1)"))
    assert found[0]["failed"] == "P0001"
    assert "4711" not in str(found)


async def test_sb_03_a_sequence_does_not_move(own_shop: Shop) -> None:
    """SB-03: a dry run can't take a number of a sequence, because the role may not."""
    await own_shop.execute(
        "CREATE TABLE shop.invoices (invoice serial PRIMARY KEY, tenant text NOT NULL);"
        "GRANT SELECT, INSERT ON shop.invoices TO placet_sandbox"
    )
    found = await try_effects(own_shop, effects("INSERT INTO shop.invoices (tenant) VALUES ('acme')"))
    assert found[0]["failed"] == "42501"
    assert await own_shop.value("SELECT is_called FROM shop.invoices_invoice_seq") is False


@pytest.mark.parametrize("statement", ["pg_advisory_lock(4711)", "pg_notify('a', 'b')"])
async def test_sb_03_a_trigger_leaves_no_session_lock_and_no_notice(own_shop: Shop, statement: str) -> None:
    """SB-03: what a rollback doesn't undo is kept out by what the role may execute."""
    await own_shop.execute(
        f"CREATE FUNCTION shop.locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM {statement}; RETURN NULL; END $$;"
        "CREATE TRIGGER locks AFTER INSERT ON shop.refunds FOR EACH ROW EXECUTE FUNCTION shop.locks()"
    )
    found = await try_effects(own_shop, effects(REFUND_ROW))
    assert found[0]["failed"] == "42501"
    assert await own_shop.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE shop.orders SET paid_minor = 0 WHERE tenant = 'acme'",
        "DELETE FROM shop.customers WHERE tenant = 'acme'",
    ],
)
async def test_effects_reach_only_what_the_sandbox_role_may_touch(shop: Shop, statement: str) -> None:
    found = await try_effects(shop, effects(statement), effects(REFUND_ROW, index=1))
    assert found[0]["failed"] == "42501"
    assert found[1]["counts"] == {"shop.refunds": [1, 0, 0]}


async def test_effects_and_facts_see_the_calls_tenant_only(shop: Shop) -> None:
    """S12.1: whatever the author's text says, the state's own row level security holds by `app.tenant`."""
    other = "SELECT count(*) AS n FROM shop.orders WHERE tenant = :tenant OR true"
    of_nobody = fact("SELECT count(*) AS n FROM shop.orders", index=1, tenant="nobody")
    rows = await try_facts(shop, fact(other.replace(":tenant", "'x'")), of_nobody)
    own = await shop.value("SELECT count(*) FROM shop.orders WHERE tenant = 'acme'")
    assert 0 < own < await shop.value("SELECT count(*) FROM shop.orders")
    assert [rows[0].rows["it"], rows[1].rows["it"]] == [{"n": own}, {"n": 0}]
    found = await try_effects(shop, effects("UPDATE shop.orders SET refunded_minor = 1 WHERE tenant <> 'acme'"))
    assert found[0]["counts"] == {}


async def test_a_fact_that_leaves_its_role_fails_and_the_next_has_its_own_again(shop: Shop) -> None:
    """CWE-269: a function that runs text could switch the role back; the switch is seen and doesn't last."""
    escape = "SELECT set_config('role', 'none', true) AS was"
    rows = await try_facts(shop, fact(escape), fact("SELECT current_user::text AS who", index=1))
    assert rows[0].failed == "42501"
    assert rows[1].rows["it"] == {"who": "placet_facts"}


async def test_sb_06_a_row_that_someone_locks_is_busy_and_no_rule(shop: Shop) -> None:
    """SB-06: `sandbox_busy`, `after_delay`, in time; the next try is a new attempt."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker, shop.superuser() as other:
        await other.execute("BEGIN")
        await other.execute("SELECT * FROM shop.orders WHERE tenant = 'acme' AND order_id = 'A-1001' FOR UPDATE")
        busy = await worker.check(token, refund("c1"))
        free = await worker.check(token, refund("c2", order="A-1002"))
        await other.execute("ROLLBACK")
        assert (busy["decision"], busy["reason"], busy["refused_by"]) == ("denied", "sandbox_busy", "sandbox")
        assert (busy["fix_hint"]["retryable"], busy["fix_hint"]["denial_class"]) == ("after_delay", "transient")
        assert (busy["holds"], free["decision"]) == ([], "accepted")
        again = await worker.check(token, refund("c1"))
    assert (again["decision"], again["replayed"]) == ("accepted", False)


async def test_what_a_trigger_touches_counts_against_the_tools_limits(side_tables: Shop) -> None:
    """S3.6: `shop.log` isn't named in the limits, so nothing may happen to it."""
    async with working(side_tables.url) as worker:
        found = await worker.check(side_tables.acme.tokens["agent"], refund("c1"))
        await activate(
            side_tables,
            side_tables.acme,
            changed(
                SHOP_FILES, "tools/refund.yaml", ("shop.refunds: {inserted: 1}}", "shop.refunds: {inserted: 1}, shop.log: {inserted: 3}}")
            ),
        )
        allowed = await worker.check(side_tables.acme.tokens["agent"], refund("c2"))
    assert (found["reason"], found["refused_by"]) == ("blast_radius_exceeded", "sandbox")
    assert found["fix_hint"]["fact"] == "effects.shop.log.inserted"
    assert (found["fix_hint"]["actual"], found["fix_hint"]["expected"]) == (3, {"maximum": 0})
    assert found["side_effects"]["counts"]["shop.log"] == {"inserted": 3, "updated": 0, "deleted": 0}
    assert allowed["decision"] == "accepted"


async def test_a_fact_of_a_call_sees_its_tenant(shop: Shop) -> None:
    found = await try_facts(
        shop, fact("SELECT current_setting('app.tenant') AS t"), fact("SELECT current_setting('app.tenant') AS t", 1, "globex")
    )
    assert [found[n].rows["it"] for n in (0, 1)] == [{"t": "acme"}, {"t": "globex"}]


async def test_a_fact_that_fails_is_its_calls_alone(shop: Shop) -> None:
    asks = (
        fact("SELECT 1 / 0 AS x"),
        fact("SELECT 2 AS x", 1),
        fact("SELECT ('x' || $1::jsonb::text)::int AS x", 2),
        fact("SELECT 3 AS x WHERE false", 3),
    )
    found = await try_facts(shop, *asks)
    assert [found[n].failed for n in range(4)] == ["22012", None, "22P02", None]
    assert (found[1].rows, found[3].rows) == ({"it": {"x": 2}}, {"it": None})


async def test_a_fact_with_two_rows_is_no_fact(shop: Shop) -> None:
    """Which of the two would count is nobody's to choose: unknown never becomes yes."""
    compiled = compile_fact("SELECT status FROM shop.orders WHERE customer_id = 'cust-77'", {}, EMPTY, shared=True)
    found = await try_facts(shop, FactsAsk(0, "acme", {"it": (compiled.sql, {})}), fact("SELECT 2 AS x", 1))
    assert found[0].failed == "21000"
    assert found[1].rows == {"it": {"x": 2}}


@pytest.mark.parametrize("definer", ["INVOKER", "DEFINER"])
async def test_a_fact_writes_nothing_whatever_it_calls(own_shop: Shop, definer: str) -> None:
    """S3.5: a function with its owner's rights meets a read-only transaction."""
    await own_shop.execute(
        f"CREATE FUNCTION shop.writes() RETURNS int LANGUAGE sql SECURITY {definer}"
        " AS $$ UPDATE shop.orders SET refunded_minor = 1 RETURNING 1 $$"
    )
    found = await try_facts(
        own_shop, fact("SELECT shop.writes() AS x"), fact("SELECT set_config('transaction_read_only', 'off', true) AS x", 1)
    )
    assert (found[0].failed, found[1].failed) == ("25006", "25001")
    assert await own_shop.value("SELECT count(*) FROM shop.orders WHERE refunded_minor = 1") == 0


@pytest.mark.parametrize("table", ["placet.api_keys", "placet.audit_rows", "placet.policy_versions", "pg_authid"])
async def test_a_fact_reads_nothing_of_placet(shop: Shop, table: str) -> None:
    found = await try_facts(shop, fact(f"SELECT count(*) AS x FROM {table}"))
    assert found[0].failed == "42501"


async def test_a_time_out_ends_the_reading_and_says_who_was_not_read(own_shop: Shop) -> None:
    """S3.10: 400 ms for the round trip; whoever isn't in the answer was not reached."""
    found = await try_facts(own_shop, fact("SELECT 1 AS x"), fact("SELECT pg_sleep(1)::text AS x", 1), fact("SELECT 2 AS x", 2))
    assert (found[0].failed, found[1].failed, 2 in found) == (None, "57014", False)


async def test_an_effect_that_times_out_ends_the_trying(own_shop: Shop) -> None:
    await own_shop.execute(
        "CREATE FUNCTION shop.waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;"
        "CREATE TRIGGER waits AFTER INSERT ON shop.refunds FOR EACH ROW EXECUTE FUNCTION shop.waits()"
    )
    update = "UPDATE shop.orders SET refunded_minor = 7 WHERE tenant = 'acme' AND order_id = 'A-1001'"
    found = await try_effects(own_shop, effects(update), effects(REFUND_ROW, index=1), effects(update, index=2))
    assert ("counts" in found[0], found[1]["failed"], 2 in found) == (True, "57014", False)


async def test_a_connection_that_failed_is_never_used_again(shop: Shop) -> None:
    lane = BatchConnection(shop.url)
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with lane.transaction([shop.acme.tenant_id]) as connection:
            await connection.execute("SELECT 1 / 0")
    async with lane.transaction([shop.acme.tenant_id]) as connection:
        assert await connection.fetchval("SELECT current_setting('app.tenants')") == str(shop.acme.tenant_id)
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    await lane.close()

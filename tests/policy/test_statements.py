"""The SQL of facts and effects: one statement, typed binds, nothing that a rollback leaves behind (SPEC S3.5, S3.6)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.policy.expressions import Environment, ValueType
from app.policy.statements import StatementInvalid, compile_effect, compile_fact
from tests.conftest import TestDatabase

ENVIRONMENT = Environment(
    {
        "args.minor": ValueType.INT,
        "args.order_id": ValueType.STRING,
        "args.note": ValueType.DYN,
        "args.more": ValueType.DYN,
        "args.tags": ValueType.STRINGS,
        "args.flag": ValueType.BOOL,
        "now": ValueType.TIMESTAMP,
    },
    {"args.note": "a", "args.more": ["a"]},
)
BINDS = {"id": "args.order_id", "minor": "args.minor"}
TEXT = "($1::jsonb->>'tenant')::text"


def fact(sql: str, binds: dict[str, str] | None = None, columns: frozenset[str] = frozenset(), shared: bool = False) -> str:
    return compile_fact(sql, binds or {}, ENVIRONMENT, columns, shared).sql


def test_a_fact_is_read_as_at_most_two_rows_of_json() -> None:
    statement = compile_fact("SELECT a FROM t WHERE tenant = :tenant AND id = :id;", {"id": "args.order_id"}, ENVIRONMENT, frozenset({"a"}))
    assert statement.sql == (
        f"SELECT to_jsonb(f) FROM (\nSELECT a FROM t WHERE tenant = {TEXT} AND id = ($1::jsonb->>'id')::text\n) f LIMIT 2"
    )
    assert [(name, expression.source) for name, expression in statement.binds] == [("id", "args.order_id")]
    assert statement.uses_tenant


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("args.order_id", "($1::jsonb->>'x')::text"),
        ("args.minor", "($1::jsonb->>'x')::bigint"),
        ("args.minor * 2", "($1::jsonb->>'x')::bigint"),
        ("args.flag", "($1::jsonb->>'x')::boolean"),
        ("now", "($1::jsonb->>'x')::timestamptz"),
        ("args.note", "($1::jsonb->>'x')::text"),
        ("args.tags", "(CASE WHEN jsonb_typeof($1::jsonb->'x') = 'array' THEN "
                      "ARRAY(SELECT x::text FROM jsonb_array_elements_text($1::jsonb->'x') x) END)"),
        ("args.more", "(CASE WHEN jsonb_typeof($1::jsonb->'x') = 'array' THEN "
                      "ARRAY(SELECT x::text FROM jsonb_array_elements_text($1::jsonb->'x') x) END)"),
    ],
)  # fmt: skip
def test_a_bind_is_read_by_its_type(source: str, read: str) -> None:
    assert f"b = {read}\n" in fact("SELECT a FROM t WHERE tenant = :tenant AND b = :x", {"x": source})


def test_only_binds_are_replaced() -> None:
    """A name in a text, a comment, a quoted identifier or a cast isn't a bind."""
    sql = """SELECT ':id', E'\\':id', $q$ :id $q$, "o:id", a::text, b[1 : 2], 'x\\' /* :id /* :id */ :id */
FROM t WHERE tenant = :tenant AND a = :id -- :id"""
    assert fact(sql, {"id": "args.order_id"}) == (
        "SELECT to_jsonb(f) FROM (\n" + sql.replace(":tenant", TEXT).replace("a = :id", "a = ($1::jsonb->>'id')::text") + "\n) f LIMIT 2"
    )


def test_a_keyword_can_be_the_name_of_a_bind() -> None:
    assert "= ($1::jsonb->>'order')::text" in fact("SELECT a FROM t WHERE tenant = :tenant AND a = :order", {"order": "args.order_id"})


@pytest.mark.parametrize(
    ("sql", "line", "message"),
    [
        ("SELECT a FROM t", 1, "the statement reads all tenants; compare a column with `:tenant`, or mark it `shared: true`"),
        (
            "SELECT a FROM t WHERE t = ':tenant'",
            1,
            "the statement reads all tenants; compare a column with `:tenant`, or mark it `shared: true`",
        ),
        (
            "SELECT a FROM t WHERE t = :tenant FOR UPDATE",
            1,
            "rows of the state are read without locking; leave out FOR UPDATE and FOR SHARE",
        ),
        (
            "SELECT (SELECT a FROM t WHERE t = :tenant FOR SHARE)",
            1,
            "rows of the state are read without locking; leave out FOR UPDATE and FOR SHARE",
        ),
        ("SELECT a INTO q FROM t WHERE t = :tenant", 1, "SELECT INTO makes a table; leave out INTO"),
        ("WITH d AS (DELETE FROM t WHERE t = :tenant RETURNING *) SELECT * FROM d", 1, "a SELECT with a writing WITH clause isn't a read"),
        ("DELETE FROM s.t WHERE t = :tenant", 1, "a fact is one SELECT"),
        ("EXPLAIN SELECT 1", 1, "a fact is one SELECT"),
        ("TRUNCATE s.t", 1, "a fact is one SELECT"),
        ("COPY s.t TO PROGRAM 'x'", 1, "a fact is one SELECT"),
        ("DO $$ BEGIN END $$", 1, "a fact is one SELECT"),
        ("COMMIT", 1, "a fact is one SELECT"),
        ("SELECT 1; SELECT 2", 1, "write exactly one statement"),
        ("  ", 1, "a statement has 1 to 8192 characters"),
        (
            "SELECT a FROM t\nWHERE t = :tenant AND b = :q",
            2,
            "`:q` isn't bound; add it to `bind` (for a slice, write a blank after the colon)",
        ),
        ("SELECT a FROM t WHERE t = :tenant AND b = $1", 1, "write `:name` for a bind, not `$1`"),
        ("SELECT a FROM t WHERE t = :tenant AND b = ?", 1, "write `:name` for a bind, not `?`"),
        (
            "SELECT a FROM t\nWHERE nextval('s') > 1 AND t = :tenant",
            2,
            "`nextval` can't be rolled back or reaches outside, and may not be called",
        ),
        (
            "SELECT pg_catalog.set_config ('a', :tenant, true)",
            1,
            "`set_config` can't be rolled back or reaches outside, and may not be called",
        ),
        ('SELECT "pg_advisory_lock"(1), :tenant', 1, "`pg_advisory_lock` can't be rolled back or reaches outside, and may not be called"),
        ("SELECT PG_SLEEP(1), :tenant", 1, "`pg_sleep` can't be rolled back or reaches outside, and may not be called"),
        ("SELECT * FROM dblink('x', :tenant) AS t(a int)", 1, "`dblink` can't be rolled back or reaches outside, and may not be called"),
        ("SELECT lo_import(:tenant)", 1, "`lo_import` can't be rolled back or reaches outside, and may not be called"),
        ('SELECT U&"\\006eextval"(:tenant)', 1, 'an identifier or string with escapes (`U&"…"`) can\'t be checked'),
    ],
)
def test_what_is_not_a_plain_read_is_no_fact(sql: str, line: int, message: str) -> None:
    with pytest.raises(StatementInvalid) as raised:
        fact(sql)
    assert (str(raised.value), raised.value.line) == (message, line)


def test_a_statement_that_does_not_parse_has_its_line() -> None:
    with pytest.raises(StatementInvalid, match="not a statement of PostgreSQL") as raised:
        fact("SELECT a\nFROM t\nWHERE (")
    assert raised.value.line == 3


@pytest.mark.parametrize(
    ("binds", "bind", "message"),
    [
        ({"id": "args.order_id", "unused": "args.minor"}, "unused", "the bind `unused` isn't used; remove it or write `:unused`"),
        ({"id": "args.ordr_id"}, "id", "bind `id`: undeclared reference to 'args.ordr_id'"),
        ({"id": "args.order_id", "tenant": "args.order_id"}, "tenant", "`:tenant` is bound by the service; give the bind another name"),
        ({"id": "dyn(args.order_id)"}, "id", "bind `id` has no type; convert it, such as `string(dyn(args.order_id))`"),
        ({"id": "null"}, "id", "bind `id`: the result has to be"),
    ],
)
def test_binds_are_typed_used_and_the_authors_own(binds: dict[str, str], bind: str, message: str) -> None:
    """S12.4: nothing that a caller sends chooses the tenant."""
    with pytest.raises(StatementInvalid) as raised:
        fact("SELECT a FROM t WHERE t = :tenant AND id = :id", binds)
    assert raised.value.bind == bind
    assert str(raised.value).startswith(message)


def test_a_shared_statement_needs_no_tenant() -> None:
    statement = compile_fact("SELECT rate FROM rates", {}, ENVIRONMENT, frozenset(), shared=True)
    assert not statement.uses_tenant


def test_a_fact_selects_its_columns() -> None:
    with pytest.raises(StatementInvalid, match="the SELECT gives no column `b`"):
        fact("SELECT a FROM t WHERE t = :tenant", columns=frozenset({"a", "b"}))
    fact("SELECT a, x AS b FROM t WHERE t = :tenant", columns=frozenset({"a", "b"}))
    fact("SELECT * FROM t WHERE t = :tenant", columns=frozenset({"a", "b"}))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE orders SET a = 1 WHERE t = :tenant", "name the table with its schema, such as `shop.orders`"),
        ("UPDATE s.o SET a = 1 WHERE t = :tenant RETURNING *", "an effect has no RETURNING; the rows that it touched are captured anyway"),
        ("WITH d AS (DELETE FROM s.t RETURNING *) UPDATE s.o SET a = 1 WHERE t = :tenant",
         "a WITH clause of an effect only reads; write one statement for each write"),
        ("SELECT :tenant", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("TRUNCATE s.o", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("ALTER TABLE s.o ADD COLUMN b int", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("COPY s.o FROM PROGRAM 'x'", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("CALL s.p()", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("COMMIT", "an effect is one INSERT, UPDATE, DELETE or MERGE"),
        ("INSERT INTO s.o (a) SELECT a FROM s.q WHERE t = :tenant FOR UPDATE",
         "rows of the state are read without locking; leave out FOR UPDATE and FOR SHARE"),
        ("UPDATE s.o SET a = 1", "the statement reads all tenants; compare a column with `:tenant`, or mark it `shared: true`"),
    ],
)  # fmt: skip
def test_what_is_not_one_plain_write_is_no_effect(sql: str, message: str) -> None:
    with pytest.raises(StatementInvalid) as raised:
        compile_effect(sql, {}, ENVIRONMENT)
    assert str(raised.value) == message


@pytest.fixture
async def connection(database: TestDatabase) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    opened = await asyncpg.connect(database.superuser_url)
    await opened.execute("CREATE SCHEMA s; CREATE TABLE s.o (t text, id text, m bigint, PRIMARY KEY (t, id))")
    await opened.execute("INSERT INTO s.o VALUES ('acme', 'a', 1), ('acme', 'b', 2), ('other', 'a', 9)")
    yield opened
    await opened.close()


OLD_A, NEW_A = {"t": "acme", "id": "a", "m": 1}, {"t": "acme", "id": "a", "m": 6}


@pytest.mark.parametrize(
    ("sql", "operation", "pairs"),
    [
        ("INSERT INTO s.o (t, id, m) VALUES (:tenant, :id || '2', :minor)", "insert", [[None, {"t": "acme", "id": "a2", "m": 5}]]),
        ("UPDATE s.o AS x SET m = x.m + :minor WHERE t = :tenant AND id = :id -- all of it", "update", [[OLD_A, NEW_A]]),
        ("DELETE FROM s.o WHERE t = :tenant AND id = :id AND :minor > 0;", "delete", [[OLD_A, None]]),
        ("INSERT INTO s.o (t, id, m) VALUES (:tenant, :id, :minor) ON CONFLICT (t, id) DO UPDATE SET m = s.o.m + excluded.m", "insert",
         [[OLD_A, NEW_A]]),
        ("INSERT INTO s.o (t, id, m) VALUES (:tenant, :id, :minor) ON CONFLICT DO NOTHING", "insert", []),
        ("WITH x AS (SELECT :minor AS k) UPDATE s.o SET m = m + k FROM x WHERE t = :tenant AND id = :id", "update", [[OLD_A, NEW_A]]),
        ("MERGE INTO s.o o USING (SELECT :tenant AS t, unnest(ARRAY[:id, 'b', 'c']) AS id) u ON o.t = u.t AND o.id = u.id "
         "WHEN MATCHED AND o.id = 'b' THEN DELETE WHEN MATCHED THEN UPDATE SET m = m + :minor "
         "WHEN NOT MATCHED THEN INSERT (t, id, m) VALUES (u.t, u.id, :minor)", "merge",
         [[OLD_A, NEW_A], [{"t": "acme", "id": "b", "m": 2}, None], [None, {"t": "acme", "id": "c", "m": 5}]]),
        ("UPDATE s.o SET m = 1 WHERE t = :tenant AND id = 'none' AND :id <> '' AND :minor > 0", "update", []),
    ],
)  # fmt: skip
async def test_an_effect_gives_old_and_new_of_each_row(
    connection: asyncpg.Connection[asyncpg.Record], sql: str, operation: str, pairs: list[object]
) -> None:
    """S3.6, on the real server: old is null for what is new, new for what is gone."""
    effect = compile_effect(sql, BINDS, ENVIRONMENT)
    assert (effect.table, effect.operation) == ("s.o", operation)
    found = json.loads(await connection.fetchval(effect.statement.sql, json.dumps({"tenant": "acme", "id": "a", "minor": 5})))
    assert sorted(found, key=json.dumps) == sorted(pairs, key=json.dumps)


async def test_values_bind_and_never_become_sql(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    statement = compile_fact("SELECT count(*) AS n FROM s.o WHERE t = :tenant AND id = ANY(:ids)", {"ids": "args.tags"}, ENVIRONMENT)
    for ids, count in ((["a", "b"], 2), (["' OR 1=1 --"], 0), ([], 0), (None, 0)):
        row = json.loads(await connection.fetchval(statement.sql, json.dumps({"tenant": "acme", "ids": ids})))
        assert row == {"n": count}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT word FROM ts_stat('select to_tsvector(1)')",
        "SELECT ts_rewrite('a'::tsquery, 'select 1') AS q",
        "SELECT database_to_xml_and_xmlschema(true, true, '') AS x",
        "SELECT pg_terminate_backend(1) AS x",
        "SELECT statement FROM pg_prepared_statements",
        "SELECT rolname FROM pg_catalog.pg_roles",
        "SELECT subject FROM placet.api_keys",
        "SELECT 1 AS x {# ; DROP TABLE shop.orders #}",
    ],
)
def test_what_runs_text_or_reads_the_catalogs_is_refused(sql: str) -> None:
    """CWE-89: SQL inside a string is SQL that nobody has looked at; the catalogs and Placet's own tables aren't state."""
    with pytest.raises(StatementInvalid):
        compile_fact(sql, {}, ENVIRONMENT, shared=True)


def test_only_a_table_of_many_rows_is_ordered_and_digested() -> None:
    """What runs for every call stays the cheap form."""
    sql = "DELETE FROM s.o WHERE t = :tenant"
    few, other, many = (
        compile_effect(sql, {}, ENVIRONMENT, many=each).statement.sql for each in (None, {"s.x": ("id",)}, {"s.o": ("id",)})
    )
    assert few == other
    assert few.endswith("SELECT coalesce(jsonb_agg(p), '[]'::jsonb) FROM (SELECT jsonb_build_array(o, n) AS p FROM e LIMIT 101) c")
    assert ("sha256" in few, "sha256" in many) == (False, True)


@pytest.mark.parametrize(("rows", "kept", "omitted"), [(0, 0, None), (1, 1, None), (100, 100, None), (101, 100, 1), (5000, 100, 4900)])
async def test_many_rows_are_cut_and_a_digest_stands_for_all(
    connection: asyncpg.Connection[asyncpg.Record], rows: int, kept: int, omitted: int | None
) -> None:
    """S3.6: the first hundred by their watched columns, how many more there are, and a digest that any row of them changes."""
    effect = compile_effect("UPDATE s.o SET m = m + 1 WHERE t = :tenant", {}, ENVIRONMENT, many={"s.o": ("id", "m")})
    capped = compile_effect("UPDATE s.o SET m = m + 1 WHERE t = :tenant", {}, ENVIRONMENT)

    async def tried(sql: str) -> list[object]:
        transaction = connection.transaction()
        await transaction.start()
        found = json.loads(await connection.fetchval(sql, json.dumps({"tenant": "many"})))
        await transaction.rollback()
        assert isinstance(found, list)
        return found

    fill = "INSERT INTO s.o SELECT 'many', to_char(n, 'FM00000'), n FROM generate_series(1, $1) n ORDER BY random()"
    await connection.execute(fill, rows)
    found = await tried(effect.statement.sql)
    cut = found.pop() if omitted is not None else {}
    assert isinstance(cut, dict)
    assert (len(found), cut.get("omitted")) == (kept, omitted)
    assert sorted(found, key=lambda pair: pair[0]["id"]) == [
        [{"t": "many", "id": f"{n:05}", "m": n}, {"t": "many", "id": f"{n:05}", "m": n + 1}] for n in range(1, kept + 1)
    ]
    assert len(await tried(capped.statement.sql)) == min(rows, 101)
    if omitted is None:
        return
    await connection.execute("UPDATE s.o SET m = m WHERE t = 'many'")  # another place on the disk, the same rows
    assert (await tried(effect.statement.sql))[-1] == cut
    await connection.execute("UPDATE s.o SET m = -1 WHERE t = 'many' AND id = $1", f"{rows:05}")
    assert (await tried(effect.statement.sql))[-1] != cut

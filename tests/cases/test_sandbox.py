"""Faults of dry runs that others shipped: what only COMMIT would refuse, what a rollback leaves behind, what isn't rolled back at all."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from httpx import AsyncClient

from tests.cases.stage import SHOP, Answer, Stage, Tenant, call, calm, changed, said, superuser_url, together

ACCEPTED = ("accepted", "within_policy")
FAILED = ("denied", "sandbox_failed")
BUSY = ("denied", "sandbox_busy")
TEXT = {"type": "string"}


@pytest.fixture
def mark() -> str:
    """A name that is in no other table of the shop."""
    return uuid.uuid4().hex[:10]


def with_effects(tool: str, statements: Sequence[str], limits: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Give the shop with one more tool of the arguments `a` and `b` (texts), whose dry run does `statements`."""
    written = {re.search(r"(?:INTO|UPDATE) (shop\.\w+)", sql)[1] for sql in statements}  # type: ignore[index]  # each names its table
    document = {
        "tool": tool,
        "description": {"en": tool},
        "effect_class": "write",
        "layers": ["static", "scope", "semantic", "sandbox"],
        "arguments": {"type": "object", "additionalProperties": False, "required": ["a", "b"], "properties": {"a": TEXT, "b": TEXT}},
        "scope": {"action": tool, "resource": "file:notes/all"},
        "rules": [
            {
                "rule": "some_text",
                "require": 'args.a != ""',
                "refuse": {"reason": "no_text", "field": "/a", "expected": {"minLength": 1}, "message": {"en": "there is no text"}},
            }
        ],
        "sandbox": {
            "strategy": "transaction",
            "statements": [{"sql": sql, "bind": {name: f"args.{name}" for name in ("a", "b") if f":{name}" in sql}} for sql in statements],
            "watch": {table: {"key": ["a"], "columns": ["tenant"]} for table in sorted(written)},
            "limits": limits,
        },
    }
    files = calm()
    grants = files["grants.yaml"].replace("    scope:\n", f'    scope:\n      - {{action: {tool}, resource: "file:**"}}\n', 1)
    return {**files, f"tools/{tool}.yaml": json.dumps(document, indent=1), "grants.yaml": grants}


async def shop_rows(stage: Stage) -> dict[str, list[Any]]:
    """Read every row outside the service's own schema, with its place, the transaction that made it and who has locked or ended it."""
    return await _rows(stage, "n.nspname NOT IN ('placet', 'pg_catalog', 'information_schema', 'pg_toast')", "ctid::text, xmin::text, t.*")


async def placet_rows(stage: Stage) -> dict[str, list[Any]]:
    return await _rows(stage, "n.nspname = 'placet'", "t.*")


async def _rows(stage: Stage, which: str, columns: str) -> dict[str, list[Any]]:
    tables = await stage.superuser.fetch(
        "SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE c.relkind = 'r' AND {which} ORDER BY 1"
    )
    return {row["name"]: [tuple(each) for each in await stage.superuser.fetch(f"SELECT {columns} FROM {row['name']} t")] for row in tables}


def new_rows(before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]) -> Counter[str]:
    """Count by table (a partition is its table's) the rows that are there now and were not. The windows of the request limits are left
    out: every request is counted there, whatever it asks."""
    found: Counter[str] = Counter()
    for name in after.keys() - {"placet.request_windows"}:
        table = re.sub(r"_\d{4}_\d{2}$", "", name.removeprefix("placet."))
        found[table] += len(set(map(repr, after[name])) - set(map(repr, before[name])))
    return +found


def refused_in_sandbox(answer: Answer, *, retryable: str, denial_class: str) -> None:
    """Assert that it's the sandbox layer that spoke, and nobody behind it."""
    assert (answer["refused_by"], answer["execution_permitted"], answer["holds"]) == ("sandbox", False, [])
    assert (answer["fix_hint"]["retryable"], answer["fix_hint"]["denial_class"]) == (retryable, denial_class)
    assert [layer["outcome"] for layer in answer["layers"]] == ["accepted", "accepted", "accepted", "denied"]
    assert not {"permit", "approval", "effective_arguments", "effective_scope"} & answer.body.keys()


BREAKS = {
    "a foreign key": (
        "CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL, b text NOT NULL,"
        " CONSTRAINT broken_{mark} FOREIGN KEY (tenant, a) REFERENCES shop.orders (tenant, order_id) DEFERRABLE INITIALLY DEFERRED)",
        "23503",
        "constraint broken_{mark}, table t_{mark}",
    ),
    "a unique key": (
        "CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL, b text NOT NULL,"
        " CONSTRAINT broken_{mark} UNIQUE (tenant, b) DEFERRABLE INITIALLY DEFERRED)",
        "23505",
        "constraint broken_{mark}, table t_{mark}",
    ),
    "a trigger": (
        "CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL, b text NOT NULL);"
        "CREATE FUNCTION shop.f_{mark}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.a = 'Z-9999' THEN"
        " RAISE EXCEPTION 'card 4711 of Ada' USING ERRCODE = '23514', CONSTRAINT = 'broken_{mark}'; END IF; RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON shop.t_{mark} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION shop.f_{mark}()",
        "23514",
        "constraint broken_{mark}",
    ),
}


@pytest.mark.parametrize("what", BREAKS)
async def test_sb_01_what_commit_would_refuse_is_refused(stage: Stage, mark: str, what: str) -> None:
    """S3.6: deferred constraints are checked before the rollback. The hint names the constraint, and no value."""
    ddl, state, place = (text.format(mark=mark) for text in BREAKS[what])
    await stage.superuser.execute(f"{ddl}; GRANT SELECT, INSERT ON shop.t_{mark} TO placet_sandbox")
    sql = f"INSERT INTO shop.t_{mark} (tenant, a, b) VALUES (:tenant, :a, :b)"
    tenant = await stage.tenant(with_effects("attach", [sql], {f"shop.t_{mark}": {"inserted": 1}}))
    await tenant.order("A-1001", 100_00)
    await stage.superuser.execute(f"INSERT INTO shop.t_{mark} VALUES ($1, 'A-1001', 'taken')", tenant.name)
    before = await shop_rows(stage)
    bad = await tenant.call("attach", {"a": "Z-9999", "b": "taken"}, "bad")
    assert bad.said == FAILED
    refused_in_sandbox(bad, retryable="after_change", denial_class="state")
    assert bad["fix_hint"]["message"] == f"trying the call failed at {place} (SQLSTATE {state}); the call would not have worked"
    assert not any(word in bad.text for word in ("4711", "Z-9999", "Key (", "violates"))
    assert "side_effects" not in bad.body
    good = await tenant.call("attach", {"a": "A-1001", "b": "free"}, "good")
    assert good.said == ACCEPTED, good.text
    replayed = await tenant.call("attach", {"a": "Z-9999", "b": "taken"}, "bad")
    assert (replayed["replayed"], replayed.said) == (True, FAILED)
    assert [(row["decision"], row["reason"]) for row in await tenant.events("tool_call.decided")] == [FAILED, ACCEPTED]
    assert await shop_rows(stage) == before
    await tenant.is_sound()


async def test_sb_01_what_is_right_in_the_end_is_not_refused_on_the_way(stage: Stage, mark: str) -> None:
    """The constraints are checked behind the last effect, and each call of a batch begins with them deferred again."""
    await stage.superuser.execute(
        f"CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL, PRIMARY KEY (tenant, a));"
        f"CREATE TABLE shop.u_{mark} (tenant text NOT NULL, a text NOT NULL,"
        f" FOREIGN KEY (tenant, a) REFERENCES shop.t_{mark} DEFERRABLE INITIALLY DEFERRED);"
        f"GRANT SELECT, INSERT ON shop.t_{mark}, shop.u_{mark} TO placet_sandbox"
    )
    child_first = [f"INSERT INTO shop.{table}_{mark} (tenant, a) VALUES (:tenant, :a)" for table in "ut"]
    limits = {f"shop.{table}_{mark}": {"inserted": 1} for table in "ut"}
    tenant = await stage.tenant(with_effects("attach", child_first, limits))
    answers = await together(tenant.call("attach", {"a": f"n{number}", "b": ""}) for number in range(24))
    assert said(answers) == {ACCEPTED: 24}
    assert await stage.superuser.fetchval(f"SELECT count(*) FROM shop.t_{mark}") == 0
    await tenant.is_sound()


async def test_sb_03_a_hundred_dry_runs_take_no_number(stage: Stage, mark: str) -> None:
    """S3.6: the sandbox's role may not use a sequence, so such an effect is refused and the first real invoice has the number 1."""
    await stage.superuser.execute(
        f"CREATE SEQUENCE shop.s_{mark}; CREATE TABLE shop.t_{mark} (invoice bigint PRIMARY KEY DEFAULT nextval('shop.s_{mark}'),"
        f" tenant text NOT NULL, a text NOT NULL); GRANT SELECT, INSERT ON shop.t_{mark} TO placet_sandbox"
    )
    sql = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES (:tenant, :a)"
    tenant = await stage.tenant(with_effects("invoice", [sql], {f"shop.t_{mark}": {"inserted": 1}}))
    answers = await together(tenant.call("invoice", {"a": f"n{number}", "b": ""}, task_id=f"t{number}") for number in range(100))
    assert said(answers) == {FAILED: 100}
    for answer in answers:
        refused_in_sandbox(answer, retryable="after_change", denial_class="state")
        assert "SQLSTATE 42501" in answer["fix_hint"]["message"]
    assert await stage.superuser.fetchval(f"SELECT is_called FROM shop.s_{mark}") is False
    real = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES ($1, 'real') RETURNING invoice"
    assert await stage.superuser.fetchval(real, tenant.name) == 1


@pytest.mark.xfail(strict=True, reason="PostgreSQL asks nobody's right to an identity column's sequence; the shop's own tables have none")
async def test_sb_03_an_identity_column_takes_no_number_either(stage: Stage, mark: str) -> None:
    await stage.superuser.execute(
        f"CREATE TABLE shop.t_{mark} (invoice bigint GENERATED ALWAYS AS IDENTITY, tenant text NOT NULL, a text NOT NULL);"
        f"GRANT SELECT, INSERT (tenant, a) ON shop.t_{mark} TO placet_sandbox"
    )
    sql = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES (:tenant, :a)"
    tenant = await stage.tenant(with_effects("invoice", [sql], {f"shop.t_{mark}": {"inserted": 1}}))
    await tenant.call("invoice", {"a": "n", "b": ""})
    real = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES ($1, 'real') RETURNING invoice"
    assert await stage.superuser.fetchval(real, tenant.name) == 1


LEAVES_BEHIND = {
    "a lock": ("PERFORM pg_advisory_lock(4711)", FAILED),
    "a shared lock": ("PERFORM pg_try_advisory_lock_shared(4711)", FAILED),
    "a lock of two numbers": ("PERFORM pg_advisory_lock(47, 11)", FAILED),
    "a notice": ("PERFORM pg_notify('cases', 'hello')", FAILED),
    "a lock that ends with its transaction": ("PERFORM pg_advisory_xact_lock(4711)", ACCEPTED),
    "a notice by statement": ("NOTIFY cases, 'hello'", ACCEPTED),
    "an unlogged row": ("INSERT INTO shop.u_{mark} VALUES (NEW.tenant)", ACCEPTED),
}


@pytest.mark.parametrize("rights", ["", "SECURITY DEFINER"])
@pytest.mark.parametrize("what", LEAVES_BEHIND)
async def test_sb_03_nothing_outlives_a_dry_run(stage: Stage, mark: str, what: str, rights: str) -> None:
    """S3.6: a trigger takes a session's lock, sends a notice, writes an unlogged row. With the sandbox's rights it may not do what a
    rollback wouldn't undo. With its owner's it may, and still nothing is left: neither in the session, nor for a listener, nor in a table.
    """
    statement, expected = LEAVES_BEHIND[what]
    await stage.superuser.execute(
        f"CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL); CREATE UNLOGGED TABLE shop.u_{mark} (tenant text NOT NULL);"
        f"CREATE FUNCTION shop.f_{mark}() RETURNS trigger LANGUAGE plpgsql {rights} AS"
        f" $$ BEGIN {statement.format(mark=mark)}; RETURN NULL; END $$;"
        f"CREATE TRIGGER behind AFTER INSERT ON shop.t_{mark} FOR EACH ROW EXECUTE FUNCTION shop.f_{mark}();"
        f"GRANT SELECT, INSERT ON shop.t_{mark}, shop.u_{mark} TO placet_sandbox"
    )
    sql = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES (:tenant, :a)"
    tenant = await stage.tenant(with_effects("attach", [sql], {f"shop.{table}_{mark}": {"inserted": 1} for table in "tu"}))
    heard: list[Any] = []
    listener = await asyncpg.connect(superuser_url(stage.service.data))
    try:
        await listener.add_listener("cases", lambda *notice: heard.append(notice))
        answers = await together(tenant.call("attach", {"a": f"n{number}", "b": ""}) for number in range(20))
        if rights and "lock" in what:  # what one dry run has, another may wait for in vain
            assert ACCEPTED in said(answers)
            assert said(answers).keys() <= {ACCEPTED, BUSY}
        else:
            assert said(answers) == {ACCEPTED if rights else expected: 20}, answers[0].text
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        assert await stage.superuser.fetchval(locks) == 0
        await stage.superuser.execute("NOTIFY cases, 'the last one'")
        for _ in range(100):
            if heard:
                break
            await asyncio.sleep(0.02)
    finally:
        await listener.close()
    assert [notice[3] for notice in heard] == ["the last one"]
    assert [await stage.superuser.fetchval(f"SELECT count(*) FROM shop.{table}_{mark}") for table in "tu"] == [0, 0]
    await tenant.is_sound()


def _broken_invariant() -> dict[str, str]:
    return changed("tools/refund.yaml", ("o.refunded_minor <= o.paid_minor", "o.refunded_minor < 0"), files=calm())


def _too_many_rows() -> dict[str, str]:
    return changed("tools/refund.yaml", ("shop.refunds: {inserted: 1}}", "shop.refunds: {inserted: 0}}"), files=calm())


def _failing() -> dict[str, str]:
    return changed("tools/refund.yaml", ("bind: {minor: args.amount.minor, order_id: args.order_id}", "bind: {minor: -1 - order.paid.minor,"
        " order_id: args.order_id}"), files=calm())  # fmt: skip


DECIDED = {
    "audit_rows": 1,
    "audit_payloads": 1,
    "decisions": 1,
    "claims": 1,
    "sessions": 1,
    "chain_heads": 1,
    "accounts": 1,
    "call_keys": 1,
}
ENDS = {
    "accepted": (calm, ACCEPTED, {"holds": 1}),  # its account moved
    "asks a person": (lambda: dict(SHOP), ("needs_user", "needs_human_review"), {"approvals": 1, "accounts": 2}),
    "an invariant": (_broken_invariant, ("denied", "invariant_broken"), {"rule_refusals": 1}),
    "a limit": (_too_many_rows, ("denied", "blast_radius_exceeded"), {"rule_refusals": 1}),
    "a constraint": (_failing, FAILED, {"rule_refusals": 1}),
}


@pytest.mark.parametrize("end", ENDS)
async def test_sb_04_only_the_decision_is_written(stage: Stage, end: str) -> None:
    """S3.6, S3.8: of all tables only the service's own differ, by the rows of this one decision; both rows are there when the dry run
    fails, and nobody's order moved, not even to be the same again."""
    files, expected, more = ENDS[end]
    tenant = await stage.tenant(files())
    await tenant.order("A-1001", 500_00)
    shop, placet = await shop_rows(stage), await placet_rows(stage)
    answer = await tenant.refund("A-1001", "180.00")
    assert answer.said == expected, answer.text
    assert await shop_rows(stage) == shop
    after = await placet_rows(stage)
    assert new_rows(placet, after) == {**DECIDED, **more}
    assert {name for name in placet if len(after[name]) < len(placet[name])} == set()
    [event] = await tenant.events("tool_call.decided")
    assert (event["decision"], event["reason"], event["decision_id"]) == (*expected, answer["decision_id"])
    stored = await tenant.rows("SELECT decision_id::text, decision, reason FROM placet.decisions WHERE tenant_id = $1")
    assert stored == [{"decision_id": answer["decision_id"], "decision": expected[0], "reason": expected[1]}]
    assert await tenant.held("resource:order:A-1001") == (180_00 if expected == ACCEPTED else 0)
    await tenant.is_sound()


async def _lock(stage: Stage, tenant: Tenant, order: str) -> asyncpg.Connection:
    """Open a writer that has an order's row and hasn't committed."""
    writer = await asyncpg.connect(superuser_url(stage.service.data))
    await writer.execute("BEGIN")
    await writer.execute("UPDATE shop.orders SET status = 'shipped' WHERE tenant = $1 AND order_id = $2", tenant.name, order)
    return writer


async def test_sb_06_a_row_that_a_real_writer_holds_is_busy_and_no_rule(stage: Stage) -> None:
    """S3.5, S3.10: busy at once, `after_delay`, nothing held; when the writer is done the same call ids are decided again and pass."""
    tenant = await stage.tenant(calm())
    for order in ("A-1001", "A-1002"):
        await tenant.order(order, 500_00)
    writer = await _lock(stage, tenant, "A-1001")
    started = asyncio.get_running_loop().time()
    try:
        first = await tenant.refund("A-1001", "1.00", "c0")
        free = await tenant.refund("A-1002", "1.00", "free")
        many = await together(tenant.refund("A-1001", f"1.{number:02}", f"c{number}") for number in range(1, 13))
        assert free.said == ACCEPTED
        assert said([first, *many]) == {BUSY: 13}
        assert asyncio.get_running_loop().time() - started < 20
        for answer in (first, *many):
            refused_in_sandbox(answer, retryable="after_delay", denial_class="transient")
            assert answer["fix_hint"]["retry_after_ms"] == 500
            assert answer["fix_hint"]["next_action"]["kind"] == "wait"
            assert "rule" not in answer["fix_hint"]["message"]
        assert await tenant.held("resource:order:A-1001") == 0
        assert await tenant.value("SELECT count(*) FROM placet.rule_refusals WHERE tenant_id = $1") == 0
        assert await tenant.value("SELECT count(*) FROM placet.claims WHERE tenant_id = $1 AND settled") == 1
    finally:
        await writer.execute("COMMIT")
        await writer.close()
    again = [await tenant.refund("A-1001", f"1.{number:02}", f"c{number}") for number in range(13)]
    assert said(again) == {ACCEPTED: 13}
    assert {answer["replayed"] for answer in again} == {False}
    assert await tenant.held("resource:order:A-1001") == sum(100 + number for number in range(13))
    await tenant.is_sound()


async def test_sb_06_every_other_state_that_passes_is_busy_too(stage: Stage, mark: str) -> None:
    """A deadlock's victim, a serialisation failure, a time-out and too many connections are retryable; what an author raises isn't."""
    await stage.superuser.execute(
        f"CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL);"
        f"CREATE FUNCTION shop.f_{mark}() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = NEW.a; END $$;"
        f"CREATE TRIGGER fails AFTER INSERT ON shop.t_{mark} FOR EACH ROW EXECUTE FUNCTION shop.f_{mark}();"
        f"GRANT SELECT, INSERT ON shop.t_{mark} TO placet_sandbox"
    )
    sql = f"INSERT INTO shop.t_{mark} (tenant, a) VALUES (:tenant, :a)"
    tenant = await stage.tenant(with_effects("attach", [sql], {f"shop.t_{mark}": {"inserted": 1}}))
    found = {state: await tenant.call("attach", {"a": state, "b": ""}) for state in ("40P01", "40001", "55P03", "53300", "P0001", "23514")}
    assert {state: answer.said for state, answer in found.items()} == {
        "40P01": BUSY, "40001": BUSY, "55P03": BUSY, "53300": BUSY, "P0001": FAILED, "23514": FAILED,
    }  # fmt: skip
    for answer in found.values():
        if answer.said == BUSY:
            refused_in_sandbox(answer, retryable="after_delay", denial_class="transient")
        else:
            refused_in_sandbox(answer, retryable="after_change", denial_class="state")


async def _opposite(stage: Stage, mark: str, setting: str) -> Tenant:
    """Give a tenant whose tool `pair` updates row `a`, waits, and updates row `b`, under a setting of the owner's."""
    await stage.superuser.execute(
        f"CREATE TABLE shop.t_{mark} (tenant text NOT NULL, a text NOT NULL, n int NOT NULL, PRIMARY KEY (tenant, a));"
        f"CREATE FUNCTION shop.f_{mark}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        f" $$ BEGIN {setting} PERFORM pg_sleep(0.03); RETURN NULL; END $$;"
        f"CREATE TRIGGER slow AFTER UPDATE ON shop.t_{mark} FOR EACH ROW EXECUTE FUNCTION shop.f_{mark}();"
        f"GRANT SELECT, UPDATE ON shop.t_{mark} TO placet_sandbox"
    )
    one = f"UPDATE shop.t_{mark} SET n = n + 1 WHERE tenant = :tenant AND a = "
    tenant = await stage.tenant(with_effects("pair", [one + ":a", one + ":b"], {f"shop.t_{mark}": {"updated": 2}}))
    await stage.superuser.executemany(f"INSERT INTO shop.t_{mark} VALUES ($1, $2, 0)", [(tenant.name, "A"), (tenant.name, "B")])
    return tenant


DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


async def _deadlocks(tenant: Tenant, before: int) -> int:
    """Count the deadlocks since `before`: the workers' connections tell theirs at the end of a transaction, at most once a second."""
    for _ in range(10):
        await asyncio.sleep(1.1)
        await together(tenant.call("search_order", {"order_id": "A-1001"}) for _ in range(16))
        if (found := int(await tenant.stage.superuser.fetchval(DEADLOCKS))) > before:
            break
    return found - before


SETTINGS = {
    "lock time-outs": ("", "55P03"),
    "deadlocks": ("PERFORM set_config('deadlock_timeout', '10ms', true), set_config('lock_timeout', '5s', true);", "40P01"),
}


@pytest.mark.parametrize("which", SETTINGS)
async def test_sb_06_dry_runs_in_opposite_orders_are_busy_at_worst(stage: Stage, mark: str, which: str) -> None:
    """Calls on A, B and on B, A from both workers, each holding its first row for a while: some must be busy, none is a rule's refusal or
    a 5xx; sent again they all pass. Nothing is left of any of them."""
    tenant = await _opposite(stage, mark, SETTINGS[which][0])
    before = await stage.superuser.fetchval(DEADLOCKS)
    key, tries = await tenant.key(), Counter[str]()

    async def pair(caller: int, turn: int) -> Answer:
        """Ask on the caller's own connection, so that some are on each worker."""
        tries[f"c{turn}-{caller}"] += 1
        order = {"a": "AB"[caller % 2], "b": "BA"[caller % 2]}
        document = call("pair", order, f"c{turn}-{caller}", session_id=f"s{caller}", task_id=f"t{turn}")
        return await Stage(stage.service, clients[caller], stage.superuser).check(key, document)

    busy = 0
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(AsyncClient(base_url=stage.service.url, timeout=20, trust_env=False)) for _ in range(8)]
        for turn in range(8):
            waiting = list(range(8))
            for attempt in range(20):
                answers = await together(pair(caller, turn) for caller in (waiting if attempt < 3 else waiting[:1]))
                assert {answer.status for answer in answers} == {200}
                assert said(answers).keys() <= {ACCEPTED, BUSY}
                assert {answer["replayed"] for answer in answers} == {False}
                for caller, answer in zip(list(waiting), answers, strict=False):
                    if answer.said == ACCEPTED:
                        waiting.remove(caller)
                    else:
                        busy += 1
                        refused_in_sandbox(answer, retryable="after_delay", denial_class="transient")
                if not waiting:
                    break
            assert waiting == []
    assert busy > 0, "the dry runs never met"
    if SETTINGS[which][1] == "40P01":
        assert await _deadlocks(tenant, before) > 0
    rows = await tenant.rows("SELECT call_id, count(*) AS n FROM placet.decisions WHERE tenant_id = $1 GROUP BY 1")
    assert {row["call_id"]: row["n"] for row in rows if row["call_id"] in tries} == tries
    assert {row[0] for row in await stage.superuser.fetch(f"SELECT n FROM shop.t_{mark}")} == {0}
    await tenant.is_sound()

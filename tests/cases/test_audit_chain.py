"""Faults of hash-chained audit logs that others shipped: forks, order, spelling, rows that go missing, rewriting."""

from __future__ import annotations

import asyncio
import subprocess
import unicodedata
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import jiter
import pytest

from app.domain.canonical import canonical, digest_text
from app.engine.checkpoints import Checkpoints, load_signing_key
from app.engine.clock import Clock
from app.engine.verify_chain import verify_chain
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import PROJECT
from app.storage.database import Database
from tests.cases.stage import BOOTSTRAP_KEY, CUSTOMER, SHOP, Answer, Stage, Tenant, Text, call, said, together, with_tool, written
from tests.engine.shop import SteppedClock, search_order, working

ACCEPTED = ("accepted", "within_policy")
SERVICE_ROLE = "placet_app"


@asynccontextmanager
async def _database(stage: Stage, name: str | None = None) -> AsyncIterator[Database]:
    """Open the service's database, or another of its server, as the service does."""
    database = Database(EmbeddedPostgres(stage.service.data / "postgres").dsn(name, user=SERVICE_ROLE))
    try:
        yield database
    finally:
        await database.close()


async def _sign(stage: Stage, tenant: Tenant) -> int:
    """Sign the end of a chain now, with the service's own key: the service does it once a minute."""
    async with _database(stage) as database:
        made = await Checkpoints(database, Clock(), load_signing_key(stage.service.data)).sign(tenant.tenant_id, tenant.name)
    assert made is not None
    return made.sequence


async def _verification(tenant: Tenant) -> Answer:
    return await tenant.stage.get("/audit/verification", await tenant.key("auditor"))


async def _until_answered(stage: Stage, path: str, key: str, body: bytes) -> Answer:
    """Send again what a busy machine couldn't record in time (503), as a client does: with the same call id."""
    for _ in range(5):
        answer = await stage.send("POST", path, key, body)
        if answer.status != 503:
            break
        assert answer["code"] == "decision_unavailable"
        await asyncio.sleep(0.2)
    return answer


async def test_ac_01_two_hundred_at_once_make_one_chain(stage: Stage) -> None:
    """Parallel checks on both workers, mixed with refused requests and changes of authority: one line, no decision lost.

    A 503 within two seconds is an answer (S3.10) that a loaded machine may give; the same call id then gets its one decision.
    """
    tenant = await stage.tenant()
    key, operator = await tenant.key(), await tenant.key("operator")
    await tenant.order("A-1001", 129_90)
    expensive = {"order_id": "A-1001", "amount": Text("500.00"), "currency": "EUR", "cause": "damaged"}

    def asked(number: int) -> tuple[str, str, bytes]:
        match number % 10:
            case 0:
                return "/tool-calls/check", key, b'{"tool": "refund", "tool": "x"}'
            case 1 if number < 60:
                return "/keys", operator, written({"subject": f"agent-{number}", "roles": ["agent"]})
            case 2:
                document = call("refund", expensive, f"c-{number}", session_id=f"s{number}", on_behalf_of=CUSTOMER)
            case _:
                document = call("search_order", {"order_id": "A-1001"}, f"c-{number}", session_id=f"s{number % 7}")
        return "/tool-calls/check", key, written(document)

    answers = await together(_until_answered(stage, *asked(number)) for number in range(200))
    assert said(answer for answer in answers if answer.status != 201) == {
        ACCEPTED: 154,
        ("400", "body_malformed"): 20,
        ("denied", "amount_exceeds_refundable"): 20,
    }
    decided = [answer for answer in answers if answer.status == 200]
    stored = await tenant.rows("SELECT decision_id, sequence FROM placet.decisions WHERE tenant_id = $1")
    assert {(str(row["decision_id"]), row["sequence"]) for row in stored} == {
        (answer["decision_id"], answer["audit"]["sequence"]) for answer in decided
    }
    assert len(await tenant.events("request.refused")) >= 20
    await tenant.is_sound()


async def test_ac_03_rows_of_one_moment_verify_ten_times_and_after_a_restore(stage: Stage) -> None:
    """The order is the sequence's, not the time's: 100 rows within a second, many with the same millisecond."""
    tenant = await stage.tenant()
    for _ in range(2):
        await together(tenant.call("search_order", {"order_id": "A-1001"}) for _ in range(50))
    times = await tenant.rows("SELECT recorded_at FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'tool_call.decided'")
    assert len(times) == 100
    assert len({row["recorded_at"] for row in times}) < 100
    await tenant.is_sound()
    reports = [await _verification(tenant) for _ in range(10)]
    assert {(report["verified"], report["rows"]) for report in reports} == {(True, reports[0]["rows"])}
    restored = await asyncio.to_thread(_restore, stage)
    try:
        async with _database(stage, restored) as database:
            checkpoints = Checkpoints(database, Clock(), load_signing_key(stage.service.data))
            found = await verify_chain(database, checkpoints, tenant.tenant_id)
        assert (found.verification.verified, found.verification.rows) == (True, reports[0]["rows"])
        assert found.verification.head.hash == reports[0]["head"]["hash"]
    finally:
        await stage.superuser.execute(f"DROP DATABASE {restored} WITH (FORCE)")


def _restore(stage: Stage) -> str:
    """Dump the service's database and restore it under another name."""
    server = EmbeddedPostgres(stage.service.data / "postgres")
    name, dump = f"restored_{uuid.uuid4().hex[:8]}", stage.service.data / "cases.dump"
    with dump.open("wb") as file:
        subprocess.run([server.programs / "pg_dump", "-Fc", "-Z0", server.dsn()], stdout=file, check=True)
    subprocess.run([server.programs / "psql", "-qc", f"CREATE DATABASE {name}", server.dsn("postgres")], check=True)
    subprocess.run([server.programs / "pg_restore", "-e", "-d", server.dsn(name), dump], check=True)
    dump.unlink()
    return name


@pytest.mark.parametrize("step", [timedelta(minutes=-10), timedelta(hours=-26), timedelta(minutes=10)], ids=["10 min", "26 h", "ahead"])
async def test_ac_04_a_clock_that_steps_back_forks_nothing(stage: Stage, step: timedelta) -> None:
    """One worker's clock is off. Both write, at once too, and go on; recorded times are clamped; the chain verifies."""
    tenant = await stage.tenant()
    key = await tenant.key()
    clock = SteppedClock(step)
    async with working(EmbeddedPostgres(stage.service.data / "postgres").dsn(user=SERVICE_ROLE), clock) as other:
        for number in range(5):
            here = [tenant.call("search_order", {"order_id": "A-1001"}, f"here-{number}-{n}") for n in range(4)]
            there = [other.check(key, search_order(f"there-{number}-{n}")) for n in range(4)]
            answers = await asyncio.gather(*here, *there)
            assert {answer["decision"] for answer in answers} == {"accepted"}
        clock.step(-step)
        assert (await other.check(key, search_order("back")))["decision"] == "accepted"
    assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED
    times = [
        row["recorded_at"] for row in await tenant.rows("SELECT recorded_at FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence")
    ]
    assert times == sorted(times)
    assert await tenant.decisions() == 42
    await tenant.is_sound()


NOTE = with_tool("note", "{type: object}")
SPELLINGS = {
    "unsorted": '{"z":1,"a":{"y":[{"b":1,"a":2}],"\\u00e9":1,"B":2,"~":3,"A":4}}',
    "numbers": '{"n":[1.0,1e2,0.00001,1E-7,123456.1234567891,0.1000000000,-0.0,9007199254740993,1e21,1.5e-10,100000000000000000000]}',
    "ten digits": '{"n":1234567890.0123456789}',
    "emoji": '{"\\ud83d\\ude00":"\\ud83d\\ude00 \\u0041\\u030a \\u212b \\u00c5"}',
    "beyond the plane": '{"\\ud834\\udd1e":1,"\\ue000":2,"\\uffff":3,"z":4}',
    "empty": '{"o":{},"l":[],"s":"","n":null,"f":false,"":{}}',
    "escapes": '{"s":"\\u007f\\u0001\\t\\"\\\\\\/\\u2028<>&"}',
    "NFD": '{"' + unicodedata.normalize("NFD", "Ångström") + '":"' + unicodedata.normalize("NFD", "é") + '"}',
    "both forms": '{"\\u00e9":1,"e\\u0301":2}',
}


@pytest.mark.parametrize("arguments", SPELLINGS.values(), ids=SPELLINGS)
async def test_ac_06_the_stored_text_is_what_was_hashed(stage: Stage, arguments: str) -> None:
    """Keys in any order, every spelling of a number, emoji, NFD, empty objects: decided, verified, read back by value."""
    tenant = await stage.tenant(NOTE)
    decided = await tenant.call("note", Text(arguments))
    assert decided.said == ACCEPTED, decided.text
    await tenant.is_sound()
    for key in (await tenant.key(), await tenant.key("auditor")):
        read = await stage.get(f"/decisions/{decided['decision_id']}", key)
        assert read["request"]["arguments"] == jiter.from_json(arguments.encode(), float_mode="decimal")
        assert read["audit"] == decided["audit"]
    payload = await tenant.value(
        "SELECT p.body FROM placet.audit_payloads p JOIN placet.decisions d USING (tenant_id, recorded_at, sequence) WHERE p.tenant_id = $1"
    )
    assert payload == canonical(jiter.from_json(payload.encode(), float_mode="decimal"))


def _denying() -> dict[str, str]:
    """A shop in which every layer can refuse: a second refund tool's effects are out of bounds, and a budget denies."""
    budget = (
        '\n  - {budget: yen, level: tenant, for: {tool: refund}, limit: {amount: "600", currency: JPY}, window: total, on_exceed: deny}\n'
    )
    files = {**SHOP, "thresholds.yaml": SHOP["thresholds.yaml"].rstrip() + budget}
    wild = files["tools/refund.yaml"].replace("tool: refund\n", "tool: wild_refund\n", 1).replace("{inserted: 1}", "{inserted: 0}")
    wild = wild.replace("scope: {action: refund,", "scope: {action: wild_refund,").replace("{tool: refund,", "{tool: wild_refund,")
    grant = '      - {action: wild_refund, resource: "order:*"}\n'
    grants = files["grants.yaml"].replace("    scope:\n", "    scope:\n" + grant, 1)
    return {**files, "tools/wild_refund.yaml": wild, "grants.yaml": grants}


async def test_ac_08_every_refusal_of_every_layer_is_one_row(stage: Stage) -> None:
    """S10.1: what a layer refuses is in the chain like what it allows, although its dry run was rolled back, under the same decision id."""
    tenant = await stage.tenant(_denying())
    await tenant.order("A-1001", 200_00)
    await tenant.order("A-1003", 80_000, "JPY")
    await tenant.order("T-9001", 100_00)
    assert (await tenant.refund("A-1001", "1.00", "used")).said == ACCEPTED
    refund = {"order_id": "A-1001", "amount": Text("20.00"), "currency": "EUR", "cause": "damaged"}
    expected = [
        (tenant.refund("A-1001", "-1"), "static", "schema_invalid"),
        (tenant.refund("A-1001", "1.001"), "static", "amount_not_exact"),
        (tenant.call("no_such_tool", {}), "static", "tool_unknown"),
        (tenant.refund("T-9001", "1.00"), "scope", "forbidden"),
        (tenant.refund("A-1001", "16000.00"), "scope", "not_granted"),
        (tenant.refund("A-9999", "1.00"), "semantic", "order_not_found"),
        (tenant.refund("A-1001", "500.00"), "semantic", "amount_exceeds_refundable"),
        (tenant.call("wild_refund", refund, on_behalf_of=CUSTOMER), "sandbox", "blast_radius_exceeded"),
        (tenant.refund("A-1001", "195.00"), "risk", "risk_too_high"),
        (tenant.refund("A-1003", "601", currency="JPY"), "holds", "budget_exceeded"),
        (tenant.refund("A-1001", "2.00", "used"), "idempotency", "call_id_reused"),
        (tenant.refund("A-1001", "3.00", key=await tenant.key("agent", "second-agent")), "idempotency", "session_not_yours"),
    ]
    for asked, layer, reason in expected:
        before = len(await tenant.events())
        answer = await asked
        assert answer.said == ("denied", reason)
        (row,) = (await tenant.events())[before:]
        assert (row["event"], row["decision"], row["reason"]) == ("tool_call.decided", "denied", reason)
        assert row["decision_id"] == answer["decision_id"]
        assert row["refused_by"] == answer["refused_by"] == layer
        assert row["sequence"] == answer["audit"]["sequence"]
        read = await stage.get(f"/decisions/{answer['decision_id']}", await tenant.key("auditor"))
        assert (read["decision"], read["reason"]) == ("denied", reason)
    assert await tenant.held("resource:order:A-1001") == 1_00
    await tenant.is_sound()


async def test_ac_08_a_wrong_approval_is_a_refusal_and_a_row(stage: Stage) -> None:
    """S3.1: a wrong pointer is `approval_mismatch`, and nothing is held."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 200_00)
    refused = await tenant.refund("A-1001", "4.00", approval_id=str(uuid.uuid4()))
    assert refused.said == ("denied", "approval_mismatch")
    assert refused.holds == {}


async def test_ac_08_the_last_attempt_of_a_task_is_a_row_like_the_others(stage: Stage) -> None:
    """A rule's refusals run out (`refusals_of_a_rule: 3`): the hint says stop, and each refusal has its row."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 10_00)
    answers = [await tenant.refund("A-1001", f"50.0{number}") for number in range(5)]
    assert [answer["fix_hint"]["attempts_left"] for answer in answers] == [2, 1, 0, 0, 0]
    assert [answer["fix_hint"]["denial_class"] for answer in answers] == ["state", "state", "loop", "loop", "loop"]
    rows = await tenant.events("tool_call.decided")
    assert [row["decision_id"] for row in rows] == [answer["decision_id"] for answer in answers]
    await tenant.is_sound()


async def test_ac_08_every_refused_request_of_a_known_key_is_one_row(stage: Stage) -> None:
    """S10.1: 400, 403, 404, 409, 413, 415 and 422 of an authenticated key: one row with route, code, status and the answer's trace id."""
    tenant = await stage.tenant()
    agent, operator, author, auditor = [await tenant.key(role) for role in ("agent", "operator", "author", "auditor")]
    good, large = written(call("search_order", {"order_id": "A-1001"})), b" " * 1_048_577
    check = "/tool-calls/check"
    text = {"content-type": "text/plain"}
    key = b'{"subject": "x", "roles": ["agent"]}'
    expected: list[tuple[str, str, str, bytes | None, dict[str, str], str, int]] = [
        ("POST", check, agent, b"{", {}, "body_malformed", 400),
        ("POST", check, auditor, good, {}, "not_permitted", 403),
        ("POST", check, agent, large, {}, "body_too_large", 413),
        ("POST", check, agent, good, text, "unsupported_media_type", 415),
        ("POST", check, agent, good, {"content-encoding": "gzip"}, "unsupported_media_type", 415),
        ("POST", check, agent, b"{}", {}, "request_invalid", 422),
        ("POST", check + "?tenant=x", agent, good, {}, "request_invalid", 422),
        ("POST", "/keys", operator, b'{"subject": NaN}', {}, "body_malformed", 400),
        ("POST", "/keys", agent, key, {}, "not_permitted", 403),
        ("POST", "/keys", operator, b'{"subject": "x", "roles": ["agent"], "tenant": "other"}', {}, "not_permitted", 403),
        ("POST", "/keys", operator, large, {}, "body_too_large", 413),
        ("POST", "/keys", operator, key, text, "unsupported_media_type", 415),
        ("POST", "/keys", operator, b'{"subject": 5}', {}, "request_invalid", 422),
        ("POST", "/policies", author, b'{"files": {"bundle.yaml": "x: y"}}', {}, "policy_invalid", 422),
        ("GET", "/keys?limit=0", operator, None, {}, "request_invalid", 422),
        ("GET", f"/decisions/{uuid.uuid4()}", agent, None, {}, "not_found", 404),
        ("DELETE", f"/keys/{uuid.uuid4()}", operator, None, {}, "not_found", 404),
        ("GET", "/audit/verification", agent, None, {}, "not_permitted", 403),
    ]
    for method, path, who, body, headers, code, status in expected:
        before = len(await tenant.events())
        answer = await stage.send(method, path, who, body, headers)
        assert answer.said == (str(status), code), (method, path, answer.text)
        rows = (await tenant.events())[before:]
        assert [(row["event"], row["code"], row["http_status"]) for row in rows] == [("request.refused", code, status)], (method, path)
        assert rows[0]["trace_id"] == answer["trace_id"], (method, path)
        assert path.startswith(rows[0]["route"].partition("{")[0])
        assert "payload_digest" not in rows[0]
    await tenant.is_sound()


async def test_ac_08_a_name_that_is_taken_is_a_row_of_the_platforms(stage: Stage) -> None:
    tenant = await stage.tenant()
    sequence = "SELECT sequence FROM placet.chain_heads WHERE tenant_id = $1"
    before = await stage.superuser.fetchval(sequence, uuid.UUID(int=0))
    taken = await stage.post("/tenants", BOOTSTRAP_KEY, {"tenant": tenant.name})
    assert taken.said == ("409", "tenant_exists")
    row = await stage.superuser.fetchrow(
        "SELECT event, body FROM placet.audit_rows WHERE tenant_id = $1 AND sequence > $2", uuid.UUID(int=0), before
    )
    assert row["event"] == "request.refused"
    assert jiter.from_json(row["body"].encode())["trace_id"] == taken["trace_id"]


async def test_ac_08_unknown_keys_are_counted_all_and_recorded_as_a_sample(stage: Stage) -> None:
    """S10.1: every 401 counts in the metrics; the platform's chain gets one row in ten seconds from each worker, whatever comes."""
    platform = "SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1 AND body LIKE '%\"unauthenticated\"%'"
    counted, stored = await stage.counted("placet_unauthenticated_total"), await stage.superuser.fetchval(platform, uuid.UUID(int=0))
    paths = [("POST", "/tool-calls/check"), ("POST", "/keys"), ("GET", "/keys"), ("GET", "/audit/verification")]
    keys = [None, "nonsense", "placet_" + "a" * 26 + "_" + "b" * 43, "x" * 600]
    answers = await together(
        stage.send(*paths[number % 4], keys[number // 4 % 4], b"{}" if paths[number % 4][0] == "POST" else None) for number in range(200)
    )
    assert said(answers) == {("401", "unauthenticated"): 200}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert await stage.counted("placet_unauthenticated_total") - counted == 200
    assert await stage.superuser.fetchval(platform, uuid.UUID(int=0)) - stored <= 2 * len(stage.service.workers)


async def _rewritten(tenant: Tenant, *, without: range = range(0), change: int = 0) -> None:
    """Rewrite a chain as the database's administrator with the public algorithm: rows out, one changed, all renumbered and hashed anew."""
    superuser = tenant.stage.superuser
    rows = await superuser.fetch(
        "SELECT sequence, body, hash, previous_hash FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence", tenant.tenant_id
    )
    async with superuser.transaction():
        for table in ("audit_rows", "audit_payloads"):
            await superuser.execute(
                f"DELETE FROM placet.{table} WHERE tenant_id = $1 AND sequence >= $2 AND sequence < $3",
                tenant.tenant_id,
                without.start,
                without.stop,
            )
        previous, number = rows[0]["previous_hash"], 0
        for row in rows:
            if row["sequence"] in without:
                continue
            number += 1
            body: dict[str, Any] = jiter.from_json(row["body"].encode(), float_mode="decimal")
            body |= {"sequence": number, "previous_hash": previous}
            if row["sequence"] == change:
                body["decision"] = "denied"
            text = canonical(body)
            await superuser.execute(
                "UPDATE placet.audit_rows SET sequence = $3, body = $4, hash = $5, previous_hash = $6"
                " WHERE tenant_id = $1 AND sequence = $2",
                tenant.tenant_id,
                row["sequence"],
                number,
                text,
                digest_text(text),
                previous,
            )
            await superuser.execute(
                "UPDATE placet.audit_payloads SET sequence = $3 WHERE tenant_id = $1 AND sequence = $2",
                tenant.tenant_id,
                row["sequence"],
                number,
            )
            previous = digest_text(text)
        await superuser.execute(
            "UPDATE placet.chain_heads SET sequence = $2, hash = $3 WHERE tenant_id = $1", tenant.tenant_id, number, previous
        )


async def _chain_of(stage: Stage, rows: int) -> Tenant:
    tenant = await stage.tenant()
    await tenant.key("auditor")
    for _ in range(rows):
        assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED
    await tenant.is_sound()
    return tenant


@pytest.mark.parametrize(
    ("without", "change", "found_at"),
    [(range(10, 21), 0, 15), (range(0), 12, 25), (range(2, 3), 0, 25), (range(24, 25), 0, 25), (range(25, 26), 0, 25)],
)
async def test_ac_10_rewriting_before_a_checkpoint_is_found(stage: Stage, without: range, change: int, found_at: int) -> None:
    """S10.2: the administrator computes every hash anew, but can't sign. The service's signature of the old end no longer fits."""
    tenant = await _chain_of(stage, 22)
    signed = await _sign(stage, tenant)
    await _rewritten(tenant, without=without, change=change)
    report = await _verification(tenant)
    assert report["verified"] is False
    assert [(point["sequence"], point["valid"]) for point in report["checkpoints"]] == [(signed, True)]
    assert (signed, report["first_broken"]["sequence"]) == (25, found_at)
    # a decision more doesn't hide it
    assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED
    assert (await _verification(tenant))["verified"] is False


async def test_ac_10_a_forged_checkpoint_is_no_checkpoint(stage: Stage) -> None:
    """Changing the stored checkpoint to fit the rewritten chain breaks its signature; it is shown as not valid."""
    tenant = await _chain_of(stage, 12)
    await _sign(stage, tenant)
    await _rewritten(tenant, change=8)
    head = await tenant.value("SELECT hash FROM placet.chain_heads WHERE tenant_id = $1")
    await stage.superuser.execute("UPDATE placet.audit_checkpoints SET hash = $2 WHERE tenant_id = $1", tenant.tenant_id, head)
    report = await _verification(tenant)
    assert [point["valid"] for point in report["checkpoints"]] == [False]


async def test_ac_10_the_limit_without_a_checkpoint_is_documented(stage: Stage) -> None:
    """What came after the last checkpoint is only as safe as the database: the rewritten chain verifies, and the docs say so."""
    tenant = await _chain_of(stage, 22)
    await _rewritten(tenant, without=range(10, 21))
    assert (await _verification(tenant))["verified"] is True
    assert "What came after the last checkpoint is only as safe as the database" in (PROJECT / "docs" / "decisions.md").read_text()


@pytest.mark.parametrize(
    ("statement", "kind", "sequence"),
    [
        ("UPDATE placet.audit_rows SET body = replace(body, 'accepted', 'denied') WHERE tenant_id = $1 AND sequence = 12", "changed", 12),
        ("DELETE FROM placet.audit_rows WHERE tenant_id = $1 AND sequence BETWEEN 10 AND 20", "removed", 10),
        ("UPDATE placet.audit_payloads SET body = replace(body, 'A-1001', 'A-1002') WHERE tenant_id = $1 AND sequence = 15", "changed", 15),
    ],
)
async def test_ac_10_plain_tampering_is_named(stage: Stage, statement: str, kind: str, sequence: int) -> None:
    tenant = await _chain_of(stage, 22)
    done = await stage.superuser.execute(statement, tenant.tenant_id)
    assert not done.endswith(" 0")
    report = await _verification(tenant)
    assert report["verified"] is False
    assert (report["first_broken"]["sequence"], report["first_broken"]["kind"]) == (sequence, kind)


async def test_ac_10_the_service_itself_cannot_rewrite(stage: Stage) -> None:
    """S10.2: the role that the service uses can neither update nor delete audit rows."""
    tenant = await _chain_of(stage, 1)
    for statement in ("UPDATE placet.audit_rows SET hash = hash", "DELETE FROM placet.audit_rows", "TRUNCATE placet.audit_rows"):
        with pytest.raises(Exception, match="permission denied"):
            async with _database(stage) as database, database.transaction([tenant.tenant_id]) as connection:
                await connection.exec_driver_sql(statement)

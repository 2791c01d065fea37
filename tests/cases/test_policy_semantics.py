"""Faults of policy semantics that others shipped: what is missing, misspelt, of the wrong type or broken reads as a yes."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.cases.stage import BOOTSTRAP_KEY, CUSTOMER, SHOP, Answer, Stage, Tenant, calm, changed, together, with_tool

ACCEPTED = ("accepted", "within_policy")
WAITS = ("needs_user", "needs_human_review")
INVALID = ("422", "policy_invalid")
BROKEN_RULE = ("denied", "rule_error")
NO_POLICY = ("denied", "no_policy")
REFUND = "tools/refund.yaml"
GOODWILL = """'args.cause == "goodwill" ? 1.0 : 0.0'"""
GRANT = '{action: refund, resource: "order:*", constraints: {amount: {max: {amount: "15000.00", currency: EUR}}}}'


async def _stores_nothing(tenant: Tenant, files: Mapping[str, str], file: str) -> str:
    """Assert that a bundle is refused at the save with its place, that nothing of it is kept and that the active version still decides;
    give what was said of it."""
    versions = "SELECT version, digest FROM placet.policy_versions WHERE tenant_id = $1 ORDER BY 1"
    before, active = await tenant.rows(versions), "SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1"
    now = await tenant.value(active)
    refused = await tenant.stage.post("/policies", await tenant.key("author"), {"files": dict(files)})
    assert refused.said == INVALID, refused.text
    found = [error for error in refused["errors"] if error["detail"].startswith(f"{file}:")]
    assert found, refused.text
    assert await tenant.rows(versions) == before
    assert await tenant.value(active) == now
    assert (await tenant.events())[-1]["event"] == "request.refused"
    assert await tenant.value("SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'policy.activated'") == 0
    return "; ".join(error["detail"] for error in found)


async def _kept(tenant: Tenant) -> dict[str, object]:
    """Give all that a decision could have led to, but for its own row: amounts, approvals, and what the shop's tables say."""
    kept: dict[str, object] = {
        table: await tenant.rows(f"SELECT * FROM placet.{table} WHERE tenant_id = $1 ORDER BY 1, 2, 3")
        for table in ("holds", "approvals", "idempotency_keys", "freezes")
    }
    kept["held"] = await tenant.rows("SELECT account, held, spent FROM placet.accounts WHERE tenant_id = $1 AND (held <> 0 OR spent <> 0)")
    for table in ("orders", "refunds", "addresses", "messages", "events", "customers"):
        kept[table] = [
            dict(row) for row in await tenant.stage.superuser.fetch(f"SELECT * FROM shop.{table} WHERE tenant = $1", tenant.name)
        ]
    return kept


# PS-01


async def _three(tenant: Tenant) -> list[Answer]:
    """Ask for money, for a look and for a tool that nobody knows."""
    return [
        await tenant.refund("A-1001", "1.00"),
        await tenant.call("search_order", {"order_id": "A-1001"}),
        await tenant.call("no_such_tool", {}),
    ]


@pytest.mark.parametrize("stored", [False, True], ids=["none", "one that isn't active"])
async def test_ps_01_without_an_active_policy_everything_is_denied(stage: Stage, stored: bool) -> None:
    """S5.3: no policy is no yes, for a read neither; the answer shows the one check that spoke, and that no version decided."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = await stage.post("/tenants", BOOTSTRAP_KEY, {"tenant": name, "policy": "none"})
    assert (made.status, "policy_version" in made.body) == (201, False)
    tenant = Tenant(stage, name, uuid.UUID(made["tenant_id"]))
    await tenant.order("A-1001", 129_90)
    if stored:
        version = await stage.post("/policies", await tenant.key("author"), {"files": dict(SHOP)})
        assert (version.status, version["active"]) == (201, False)
    for answer in await _three(tenant):
        assert answer.said == NO_POLICY
        assert (answer["refused_by"], answer["execution_permitted"], answer.holds) == ("static", False, {})
        checks = [(layer["name"], check["name"], check["outcome"]) for layer in answer["layers"] for check in layer["checks"]]
        assert checks == [("static", "tool", "denied")]
        assert "policy_version" not in answer.body
        assert (answer["fix_hint"]["retryable"], "suggested_arguments" in answer["fix_hint"]) == ("after_delay", False)
    rows = await tenant.events("tool_call.decided")
    assert [(row["decision"], row["reason"]) for row in rows] == [NO_POLICY] * 3
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == 0
    await tenant.activate(SHOP)
    assert [answer.said for answer in await _three(tenant)] == [ACCEPTED, ACCEPTED, ("denied", "tool_unknown")]
    await tenant.is_sound()


async def test_ps_01_a_policy_without_grants_grants_nothing(stage: Stage) -> None:
    tenant = await stage.tenant({**SHOP, "grants.yaml": "grants: []\n"})
    await tenant.order("A-1001", 129_90)
    answers = await _three(tenant)
    assert [answer.said for answer in answers] == [("denied", "not_granted"), ("denied", "not_granted"), ("denied", "tool_unknown")]
    assert [answer["refused_by"] for answer in answers] == ["scope", "scope", "static"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("thresholds.yaml", "thresholds: []\n"),
        ("thresholds.yaml", "thresholds:\n  - {for: {tool: refund}, review_at: 0.6, deny_at: 0.95}\n"),
        ("grants.yaml", "{}\n"),
        ("tools/", ""),
    ],
)
async def test_ps_01_a_policy_that_leaves_a_gate_out_is_refused_at_the_save(stage: Stage, file: str, text: str) -> None:
    """No thresholds, none for all calls, no `grants` at all, no tool: nothing is assumed in their place."""
    tenant = await stage.tenant()
    if file == "tools/":
        files = {name: text for name, text in SHOP.items() if not name.startswith("tools/")}
        refused = await stage.post("/policies", await tenant.key("author"), {"files": files})
        assert refused.said == INVALID
        assert "the bundle has no tool" in refused.text
        return
    refused = await stage.post("/policies", await tenant.key("author"), {"files": {**SHOP, file: text}})
    assert refused.said == INVALID
    assert await tenant.value("SELECT count(*) FROM placet.policy_versions WHERE tenant_id = $1") == 1


# PS-03


def _rule(require: str, **more: str) -> str:
    refuse = {"reason": "not_so", "field": "/n", "expected": {"const": 1}, "message": {"en": "not so"}}
    return json.dumps([{"rule": "the_rule", "require": require, "refuse": refuse} | more])


OPTIONAL = (
    "{type: object, additionalProperties: false, required: [n], properties: {a: {type: string}, b: {type: string}, n: {type: integer}}}"
)
NOT_SO = ("denied", "not_so")
A, B = 'args.a == "x"', 'args.b == "y"'
FAILS = "1 / args.n == 1"  # with n = 0 it has no value


async def _logic(stage: Stage, rules: list[str]) -> Callable[[int, dict[str, object]], Awaitable[Answer]]:
    files: Mapping[str, str] = SHOP
    for number, rule in enumerate(rules):
        files = with_tool(f"logic_{number}", OPTIONAL, files, static_rules=rule)
    tenant = await stage.tenant(files)

    async def ask(number: int, arguments: dict[str, object]) -> Answer:
        return await tenant.call(f"logic_{number}", {"n": 1} | arguments, session_id=f"chat-{uuid.uuid4().hex}")

    return ask


async def test_ps_03_an_absent_argument_is_null_whichever_branch_has_it(stage: Stage) -> None:
    """An optional argument that wasn't sent is null, which equals nothing that is written; so an `||` doesn't depend on its order,
    in a rule that demands nor in one that forbids."""
    rules = [f"{A} || {B}", f"{B} || {A}", f"!({A} || {B})", f"!({B} || {A})", f"{A} && {B}", f"{B} && {A}"]
    ask = await _logic(stage, [_rule(each) for each in rules])
    sent: list[tuple[dict[str, object], bool, bool]] = [
        ({"b": "y"}, True, False), ({"a": "x"}, True, False), ({}, False, False), ({"a": "x", "b": "y"}, True, True),
        ({"a": "y", "b": "x"}, False, False), ({"a": "", "b": "y"}, True, False),
    ]  # fmt: skip
    for arguments, either, both in sent:
        expected = [either, either, not either, not either, both, both]
        found = [(await ask(number, arguments)).said for number in range(len(rules))]
        assert found == [ACCEPTED if each else NOT_SO for each in expected], arguments


async def test_ps_03_a_branch_without_a_value_decides_only_where_the_other_does_not(stage: Stage) -> None:
    """Three values, in either order: true || error is true, false && error is false, and all else with an error is an error, which
    refuses, whether the rule demands or forbids, and in a `when` too. It is the logic of CEL's specification."""
    b = 'args.b == "y"'
    rules = [
        (_rule(f"{FAILS} || {b}"), ACCEPTED, BROKEN_RULE), (_rule(f"{b} || {FAILS}"), ACCEPTED, BROKEN_RULE),
        (_rule(f"!({FAILS} || {b})"), NOT_SO, BROKEN_RULE), (_rule(f"!({b} || {FAILS})"), NOT_SO, BROKEN_RULE),
        (_rule(f"{FAILS} && {b}"), BROKEN_RULE, NOT_SO), (_rule(f"{b} && {FAILS}"), BROKEN_RULE, NOT_SO),
        (_rule(f"!({FAILS} && {b})"), BROKEN_RULE, ACCEPTED), (_rule(f"!({b} && {FAILS})"), BROKEN_RULE, ACCEPTED),
        (_rule("false", when=f"{FAILS} || {b}"), NOT_SO, BROKEN_RULE), (_rule("false", when=f"{b} && {FAILS}"), BROKEN_RULE, ACCEPTED),
        (_rule(f'{FAILS} ? true : {b}'), BROKEN_RULE, BROKEN_RULE), (_rule(f"!({FAILS})"), BROKEN_RULE, BROKEN_RULE),
    ]  # fmt: skip
    ask = await _logic(stage, [rule for rule, _, _ in rules])
    for number, (rule, with_b, without_b) in enumerate(rules):
        assert (await ask(number, {"n": 0, "b": "y"})).said == with_b, rule
        assert (await ask(number, {"n": 0})).said == without_b, rule
        assert (await ask(number, {"n": 0, "b": "z"})).said == without_b, rule


async def test_ps_03_a_fact_without_a_row_makes_no_rule_hold(stage: Stage) -> None:
    """A rule over what isn't there is skipped in either order of its branches, and the fact's own refusal stands."""
    for require in ('order.status == "paid" || args.cause == "damaged"', 'args.cause == "damaged" || order.status == "paid"'):
        tenant = await stage.tenant(changed(REFUND, ('order.status in ["paid", "shipped", "delivered"]', require)))
        await tenant.order("A-1001", 20_00)
        missing = await tenant.refund("A-1007", "1.00")
        assert missing.said == ("denied", "order_not_found")
        assert missing.check("order_is_refundable")["outcome"] == "skipped"
        assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED  # it was damaged, whatever its status


# PS-04


REGION = "{type: object, additionalProperties: false, required: [region], properties: {region: {type: string}}}"
ANY_FILE = '{action: ship, resource: "file:**"}'


def _shipping(allowed: str) -> dict[str, str]:
    """Give the shop with a tool whose need names a region, and a grant of the regions `allowed`."""
    files = with_tool("ship", REGION)
    tool = files["tools/ship.yaml"].replace('"file:notes/all"', '"file:notes/all", constraints: {region: {in: "{args.region}"}}')
    grant = f'{{action: ship, resource: "file:**", constraints: {{region: {{in: {allowed}}}}}}}'
    assert ANY_FILE in files["grants.yaml"]
    return {**files, "tools/ship.yaml": tool, "grants.yaml": files["grants.yaml"].replace(ANY_FILE, grant)}


async def test_ps_04_a_text_where_a_list_belongs_is_refused_and_no_part_of_it_is_allowed(stage: Stage) -> None:
    """Regions `EU` and `[EU]` aren't the same; with the list `E`, `U` and the empty text are other regions."""
    tenant = await stage.tenant()
    for allowed in ("EU", '"EU"', "{EU: true}", "5", "null", "[]", "[5]", "[[EU]]"):
        await _stores_nothing(tenant, _shipping(allowed), "grants.yaml")
    await tenant.activate(_shipping("[EU]"))
    for region, said in (("EU", ACCEPTED), *((each, ("denied", "not_granted")) for each in ("E", "U", "", "eu", "EU ", "EU,US", "*"))):
        answer = await tenant.call("ship", {"region": region})
        assert answer.said == said, region
    for other in (["EU"], {"EU": True}, None, 5, True):
        refused = await tenant.call("ship", {"region": other})
        assert refused.said == ("denied", "schema_invalid"), other


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("grants.yaml", "to: {roles: [agent]}", "to: {roles: agent}"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {segments: standard}"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {subjects: the-agent}"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {roles: []}"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {}"),
        ("grants.yaml", "needs_approval: true", 'needs_approval: "true"'),
        ("grants.yaml", 'amount: "15000.00"', "amount: [15000]"),
        ("thresholds.yaml", "review_at: 0.60", 'review_at: "0.60"'),
        ("thresholds.yaml", "deny_at: 0.95}", "deny_at: high}"),
        ("thresholds.yaml", '{amount: "1000.00", currency: EUR}', '"100"'),
        ("thresholds.yaml", 'amount: "1000.00"', "amount: 1000.5"),
        ("bundle.yaml", "refusals_of_a_rule: 3", 'refusals_of_a_rule: "3"'),
        ("bundle.yaml", "refusals_of_a_rule: 3", "refusals_of_a_rule: -1"),
        ("bundle.yaml", "quorum: 2", 'quorum: "2"'),
        ("bundle.yaml", "roles: [reviewer]", "roles: reviewer"),
        (REFUND, "shop.orders: {updated: 1}", 'shop.orders: {updated: "1"}'),
        (REFUND, "weight: 0.8", 'weight: "0.8"'),
        (REFUND, "enum: [EUR, JPY, KWD]", "enum: EUR"),
        (REFUND, 'order.status in ["paid", "shipped", "delivered"]', 'order.status in "paid, shipped, delivered"'),
        (REFUND, 'order.status in ["paid", "shipped", "delivered"]', "order.status in [1, 2]"),
        (REFUND, "within_s: 86400", 'within_s: "86400"'),
        (REFUND, "unbound: [/note]", "unbound: /note"),
    ],
)
async def test_ps_04_a_value_of_the_wrong_type_is_refused_at_the_save(stage: Stage, file: str, old: str, new: str) -> None:
    await _stores_nothing(await stage.tenant(), changed(file, (old, new)), file)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SELECT complaints FROM", "SELECT complaints::text AS complaints FROM"),
        ("SELECT complaints FROM", "SELECT 'none' AS complaints FROM"),
        ("SELECT complaints FROM", "SELECT NULL::integer AS complaints FROM"),
        ("SELECT complaints FROM", "SELECT 0.5 AS complaints FROM"),
        ("SELECT complaints FROM", "SELECT true AS complaints FROM"),
        ("SELECT complaints FROM", "SELECT ARRAY[0] AS complaints FROM"),
        ("SELECT status, currency, paid_minor", "SELECT ARRAY[status] AS status, currency, paid_minor"),
        ("SELECT status, currency, paid_minor", "SELECT status, 'EURO' AS currency, paid_minor"),
        ("SELECT status, currency, paid_minor", "SELECT status, currency, paid_minor::text AS paid_minor"),
    ],
)
async def test_ps_04_data_of_another_type_than_the_policy_says_denies(stage: Stage, old: str, new: str) -> None:
    """S3.10: what a fact gives is exactly of its declared type, or it is no fact; nothing is converted and nothing passes for empty."""
    tenant = await stage.tenant(changed(REFUND, (old, new)))
    await tenant.order("A-1001", 129_90)
    before = await _kept(tenant)
    answer = await tenant.refund("A-1001", "1.00")
    assert answer.said == ("denied", "fact_unavailable")
    assert (answer["refused_by"], answer["fix_hint"]["retryable"], answer.holds) == ("semantic", "after_delay", {})
    assert await _kept(tenant) == before
    assert (await tenant.events("tool_call.decided"))[-1]["reason"] == "fact_unavailable"


# PS-06


CEILING = 'constraints: {amount: {max: {amount: "15000.00"'
OF_AN_ENTRY = ("the field is unknown; an entry has action, ", "a constraint has `max`, or `in`, or `from` and `until`")
CANCEL = '{action: cancel_order, resource: "order:*"}'


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("grants.yaml", CEILING, CEILING.replace("max", "gte_")),
        ("grants.yaml", CEILING, CEILING.replace("max", "min")),
        ("grants.yaml", CEILING, CEILING.replace("amount: {max", "amout: {max")),
        ("grants.yaml", CEILING, CEILING.replace("constraints", "constraint")),
        ("grants.yaml", CANCEL, CANCEL.replace("cancel_order", "cancel_ordre")),
        ("grants.yaml", CANCEL, CANCEL.replace("}", ", unless: {cause: fraud}}")),
        ("grants.yaml", "effect: forbid", "effect: allow_if"),
        ("grants.yaml", "effect: forbid", "effect: Forbid"),
        ("grants.yaml", "effect: forbid", "efect: forbid"),
        ("grants.yaml", "needs_approval: true", "need_approval: true"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {roles: [agent], when: weekday}"),
        ("grants.yaml", "to: {roles: [agent]}", "to: {roles: [agnet]}"),
        ("grants.yaml", "grants:", "deny: []\ngrants:"),
        ("bundle.yaml", "bundle: {name: shop", "enforce: true\nbundle: {name: shop"),
        ("bundle.yaml", "refusals_of_a_rule: 3", "refusals_of_rule: 3"),
        ("thresholds.yaml", "{for: {currency: JPY}", "{for: {curency: JPY}"),
        ("thresholds.yaml", "deny_at: 0.95}", "deny_at: 0.95, except: {segment: vip}}"),
        ("thresholds.yaml", "for: {tool: refund}, limit", "for: {tool: refnud}, limit"),
        ("thresholds.yaml", "on_exceed: needs_user", "on_exceed: warn"),
        (REFUND, "require: args.amount.minor <= open.minor", "require: args.amout.minor <= open.minor"),
        (REFUND, "require: args.amount.minor <= open.minor", "require: args.amount.minor gte_ open.minor"),
        (REFUND, "require: args.amount.minor <= open.minor", "requires: args.amount.minor <= open.minor"),
        (REFUND, "when: args.currency == order.paid.currency", "if: args.currency == order.paid.currency"),
        (REFUND, "when: args.currency == order.paid.currency", "when: order.curency == args.currency"),
        (REFUND, "reason: amount_exceeds_refundable, field: /amount", "reason: amount_exceeds_refundable, field: /amout"),
        (REFUND, "rules:                                   # all", "rulez:                                   # all"),
        (REFUND, "additionalProperties: false", "additionalPropertys: false"),
        (REFUND, "exclusiveMinimum: 0}\n", "exclusiveMinimun: 0}\n"),
        (REFUND, "effect_class: money", "effect_class: monney"),
        (REFUND, "statuses: [permitted, succeeded, unknown]", "statuses: [permited, succeeded, unknown]"),
        (REFUND, "match: [/order_id, /amount, /currency]", "match: [/order_id, /amout, /currency]"),
        (REFUND, "settle: release}", "settle: relase}"),
        (REFUND, "invariants: [{invariant: never_over_paid", "invarients: [{invariant: never_over_paid"),
        (REFUND, "shop.orders: {updated: 1}", "shop.orders: {update: 1}"),
    ],
)  # fmt: skip
async def test_ps_06_what_is_not_understood_is_refused_and_nothing_of_it_is_stored(stage: Stage, file: str, old: str, new: str) -> None:
    """S6.3: an unknown operator, field, key, effect, role, action or word: 422 with file and line, the version before stays as it is."""
    tenant = await stage.tenant()
    detail = await _stores_nothing(tenant, changed(file, (old, new)), file)
    words = set(re.findall(r"\w+", new)) - set(re.findall(r"\w+", SHOP[file]))
    assert words
    assert any(word in detail for word in words) or any(said in detail for said in OF_AN_ENTRY), detail
    assert (await tenant.stage.post("/policies/2/activation", await tenant.key("operator"), None)).said == ("404", "not_found")
    await tenant.order("T-9001", 20_00)
    assert (await tenant.refund("T-9001", "1.00")).said == ("denied", "forbidden")  # what the version in force says


async def test_ps_06_one_fault_among_good_files_stores_none_of_them(stage: Stage) -> None:
    tenant = await stage.tenant()
    files = with_tool("extra", "{type: object}", changed("grants.yaml", ("effect: forbid", "effect: allow_if")))
    await _stores_nothing(tenant, files, "grants.yaml")
    assert (await tenant.call("extra", {})).said == ("denied", "tool_unknown")


# PS-07


async def _health(stage: Stage) -> tuple[int, dict[str, str], int]:
    ready, alive = await stage.client.get("/readyz"), await stage.client.get("/healthz")
    return ready.status_code, {name: said for name, said in ready.json()["checks"].items() if said != "ok"}, alive.status_code


async def _is_unavailable(tenant: Tenant, answer: Answer) -> None:
    """Assert that no decision was made, and that the client is told to treat it as a no for now."""
    assert answer.said == ("503", "decision_unavailable"), answer.text
    assert answer["execution_permitted"] is False
    assert (answer["fix_hint"]["denial_class"], answer["fix_hint"]["retryable"]) == ("transient", "after_delay")
    assert answer["tool_result"]["is_error"] is True
    assert int(answer.headers["retry-after"]) >= 1


async def test_ps_07_a_policy_that_cannot_be_read_decides_nothing(stage: Stage) -> None:
    """S3.10: while the policies' table can't be read no call is decided, by no worker; alive, and back by itself."""
    tenant = await stage.tenant(changed("bundle.yaml", ("name: shop", "name: shop_read_late")))
    await tenant.order("A-1001", 129_90)
    key = await tenant.key("agent", "unknown-to-the-workers")
    await stage.superuser.execute(
        "UPDATE placet.chain_heads SET authority_version = authority_version + 1 WHERE tenant_id = $1", tenant.tenant_id
    )
    async with stage.superuser.transaction():
        await stage.superuser.execute("LOCK placet.policy_versions, placet.tenants IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            started = time.monotonic()
            answers = await together([*(tenant.refund("A-1001", "1.00", f"c{number}", key=key) for number in range(6))])
            assert time.monotonic() - started < 5
            for answer in answers:
                await _is_unavailable(tenant, answer)
        assert (await stage.client.get("/healthz")).status_code == 200
        assert (await stage.client.get("/readyz")).status_code == 503
    for _ in range(20):
        answer = await tenant.refund("A-1001", "1.00", "c0", key=key)
        if answer.status == 200:
            break
        await asyncio.sleep(0.2)
    assert (answer.said, answer["replayed"]) == (ACCEPTED, False)
    assert await _health(stage) == (200, {}, 200)
    assert await tenant.decisions() == 1
    await tenant.is_sound()


@pytest.mark.parametrize("fault", ["gone", "broken", "empty"])
async def test_ps_07_a_policy_that_is_named_and_not_there_is_no_policy_that_allows(stage: Stage, fault: str) -> None:
    """A tenant's active version whose row is gone or whose files can't be compiled: 503, never an answer by half a policy. Its people are
    let in, so that they can go back to another version, which decides at once, without a restart."""
    tenant = await stage.tenant(changed("bundle.yaml", ("name: shop", f"name: shop_{fault}")))
    await tenant.order("A-1001", 129_90)
    superuser = stage.superuser

    async def as_administrator(sql: str, *values: object) -> None:
        async with superuser.transaction():
            await superuser.execute("SET LOCAL session_replication_role = replica")  # no foreign key, no trigger
            await superuser.execute(sql, tenant.tenant_id, *values)
            await superuser.execute(
                "UPDATE placet.chain_heads SET authority_version = authority_version + 1 WHERE tenant_id = $1", tenant.tenant_id
            )

    match fault:
        case "gone":
            await as_administrator("DELETE FROM placet.policy_versions WHERE tenant_id = $1 AND version = 2")
        case "broken":
            files = json.dumps({**SHOP, "grants.yaml": "grants: 5\n"})
            await as_administrator(
                "UPDATE placet.policy_versions SET files = $2, digest = repeat('0', length(digest)) WHERE tenant_id = $1 AND version = 2",
                files,
            )
        case "empty":
            await as_administrator(
                "UPDATE placet.policy_versions SET files = '{}', digest = repeat('1', length(digest)) WHERE tenant_id = $1 AND version = 2"
            )
    for number in range(4):
        for answer in (await tenant.refund("A-1001", "1.00", f"c{number}"), await tenant.call("search_order", {"order_id": "A-1001"})):
            await _is_unavailable(tenant, answer)
            assert "grants" not in answer.text  # an agent isn't told what is in the policy
    assert await tenant.decisions() == 0
    assert await _health(stage) == (200, {}, 200)  # one tenant's fault isn't the service's
    listed = await stage.get("/policies", await tenant.key("author"))
    assert (listed.status, [item["version"] for item in listed["items"] if item["version"] == 1]) == (200, [1])
    back = await stage.post("/policies/1/activation", await tenant.key("operator"), None)
    assert (back.status, back["active"]) == (200, True), back.text
    assert (await tenant.refund("A-1001", "1.00", "c0")).said == ACCEPTED
    await tenant.is_sound()


async def test_ps_07_readiness_says_what_is_missing_and_comes_back_by_itself(stage: Stage) -> None:
    """S11.4: no served policy, or a schema that isn't at the head: not ready, alive, and ready again without a restart. A tenant that has
    a policy of its own isn't refused for the platform's."""
    superuser, platform = stage.superuser, uuid.UUID(int=0)
    served = await superuser.fetchval("SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1", platform)
    head = await superuser.fetchval("SELECT version_num FROM placet.schema_version")
    active = "UPDATE placet.tenants SET active_policy_version = $2 WHERE tenant_id = $1"
    try:
        await superuser.execute(active, platform, None)
        assert await _health(stage) == (503, {"policy": "no policy is active on the platform"}, 200)
        tenant = await stage.tenant()
        await tenant.order("A-1001", 20_00)
        assert (await tenant.refund("A-1001", "1.00")).said == NO_POLICY  # it began with what is served: nothing
        await superuser.execute(active, platform, served)
        assert await _health(stage) == (200, {}, 200)
        await superuser.execute("UPDATE placet.schema_version SET version_num = '0000'")
        assert await _health(stage) == (503, {"migrations": f"at 0000, not {head}: run `placet migrate`"}, 200)
    finally:
        await superuser.execute(active, platform, served)
        await superuser.execute("UPDATE placet.schema_version SET version_num = $1", head)
    assert await _health(stage) == (200, {}, 200)
    await tenant.activate(SHOP)
    assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED


# PS-09


NOTHING = "(args.amount.minor - args.amount.minor)"
SCORERS = {
    "an integer divided by nothing": f"double(1 / {NOTHING})",
    "not a number": f"0.0 / double{NOTHING}",
    "infinite": f"1.0 / double{NOTHING}",
    "infinite the other way": f"-1.0 / double{NOTHING}",
    "a key that isn't there": 'double({"EUR": 1}[args.cause])',
    "a word": "double(args.currency)",
    "an item that isn't there": "[0.1, 0.2][args.amount.minor]",
    "too large for an integer": "double(9223372036854775807 + args.amount.minor)",
}


async def _counted(stage: Stage, reason: str, layer: str) -> float:
    return await stage.counted("placet_decisions_total", tool="refund", decision="denied", reason=reason, layer=layer)


async def _is_a_failure(tenant: Tenant, reason: str, layer: str, *behind: str) -> Answer:
    """Assert that a refund is denied for the broken guard, that no layer behind it ran, and that chain and metrics show it; once more for
    the same call under another id."""
    await tenant.order("A-1001", 129_90)
    before = await _kept(tenant)
    for number in range(2):
        counted = await _counted(tenant.stage, reason, layer)
        answer = await tenant.refund("A-1001", "1.00", f"c{number}")
        assert answer.said == ("denied", reason), answer.text
        assert (answer["refused_by"], answer["execution_permitted"], answer.holds) == (layer, False, {})
        assert answer["layers"][-1]["name"] == layer
        assert not {each["name"] for each in answer["layers"]} & set(behind)
        row = (await tenant.events("tool_call.decided"))[-1]
        assert (row["decision"], row["reason"], row["refused_by"]) == ("denied", reason, layer)
        assert await _counted(tenant.stage, reason, layer) == counted + 1
    assert await _kept(tenant) == before
    return answer


@pytest.mark.parametrize("scorer", SCORERS)
async def test_ps_09_a_score_that_is_none_denies(stage: Stage, scorer: str) -> None:
    """A factor that raises, or gives NaN or infinity, is no factor of 0: the whole risk layer says no, and no person is asked either."""
    tenant = await stage.tenant(changed(REFUND, (GOODWILL, f"'{SCORERS[scorer]}'")))
    answer = await _is_a_failure(tenant, "risk_error", "risk", "holds")
    assert "risk" not in answer.body
    assert "goodwill" in answer.check("factors")["message"]


@pytest.mark.parametrize(
    ("value", "counts_as", "said"),
    [
        ("1.7", "1", ("denied", "risk_too_high")),
        ("1000000.0", "1", ("denied", "risk_too_high")),
        ("0.5", "0.5", WAITS),
        ("0.0", "0", ACCEPTED),
        ("-0.0", "0", ACCEPTED),
        ("-1.0", "0", ACCEPTED),
    ],
)
async def test_ps_09_a_score_out_of_range_is_clipped_and_never_pays_for_another(
    stage: Stage, value: str, counts_as: str, said: tuple[str, str]
) -> None:
    """API.md 5: a factor's value counts from 0 to 1, so one of -1 lowers nothing and one of 1.7 can't overflow what it adds to."""
    tenant = await stage.tenant(changed(REFUND, (GOODWILL, f'"{value}"'), ("weight: 0.15", "weight: 1.0")))
    await tenant.order("A-1001", 200_00)
    answer = await tenant.refund("A-1001", "20.00")
    factors = {each["name"]: each for each in answer["risk"]["factors"]}
    assert (factors["goodwill"]["value"], factors["goodwill"]["contribution"]) == (Decimal(counts_as), Decimal(counts_as))
    assert answer["risk"]["score"] == min(Decimal("0.1") + Decimal(counts_as), Decimal(1))
    assert answer.said == said


@pytest.mark.parametrize("weight", ["1.7", "-1.5", ".nan", ".inf", "high", '"high"', "null", "true", "[]"])
async def test_ps_09_a_weight_that_is_none_is_refused_at_the_save(stage: Stage, weight: str) -> None:
    await _stores_nothing(await stage.tenant(), changed(REFUND, ("weight: 0.15", f"weight: {weight}")), REFUND)


@pytest.mark.parametrize("value", ['"1"', '"true"', "'\"high\"'", '"null"', "args.note", "order.status", "args.amount.minor", "order.paid"])
async def test_ps_09_a_factor_that_gives_no_number_is_refused_at_the_save(stage: Stage, value: str) -> None:
    """A whole number, a truth value, a text, null and an argument that may be absent aren't a double, and nothing makes them one."""
    await _stores_nothing(await stage.tenant(), changed(REFUND, (GOODWILL, value)), REFUND)


REQUIRE = "require: args.amount.minor <= open.minor"
GUARDS: Mapping[str, tuple[tuple[str, str], str, str]] = {
    "a rule": ((REQUIRE, f"require: 1 / {NOTHING} <= open.minor"), "rule_error", "semantic"),
    "a rule that would forbid": ((REQUIRE, f"require: '!(1 / {NOTHING} > open.minor)'"), "rule_error", "semantic"),
    "a rule's `when`": (("when: args.currency == order.paid.currency", f"when: 1 / {NOTHING} == 1"), "rule_error", "semantic"),
    "a value": (("minor: refundable.minor - account.order.held.minor", f"minor: refundable.minor / {NOTHING}"), "rule_error", "semantic"),
    "a fact": (("SELECT complaints FROM", "SELECT 1 / complaints AS complaints FROM"), "fact_unavailable", "semantic"),
    "a fact that hangs": (
        ("SELECT complaints FROM", "SELECT (SELECT count(*)::int FROM generate_series(1, 100000000000)) AS complaints FROM"),
        "fact_unavailable",
        "semantic",
    ),
    "an effect": (("refunded_minor = refunded_minor + :minor", "refunded_minor = :minor / (:minor - :minor)"), "sandbox_failed", "sandbox"),
    "an invariant": (("o.refunded_minor <= o.paid_minor", "o.paid_minor / (o.paid_minor - o.paid_minor) == 1"), "rule_error", "sandbox"),
    "an invariant over nothing": (("o.refunded_minor <= o.paid_minor", "o.no_such_column == 1"), "rule_error", "sandbox"),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS)
async def test_ps_09_a_guard_that_breaks_denies(stage: Stage, guard: str) -> None:
    """S3.10: whatever fails on its way, in whichever layer, refuses in its own name, and the layers behind it aren't asked."""
    change, reason, layer = GUARDS[guard]
    tenant = await stage.tenant(changed(REFUND, change))
    behind = {"semantic": ("sandbox", "risk", "holds"), "sandbox": ("risk", "holds")}[layer]
    await _is_a_failure(tenant, reason, layer, *behind)


# PS-10


@asynccontextmanager
async def _tries(tenant: Tenant) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Count the effects that the sandbox tries on this tenant's orders: they are rolled back, but a sequence isn't."""
    superuser, name = tenant.stage.superuser, f"tried_{tenant.tenant_id.hex}"
    await superuser.execute(
        f"CREATE SEQUENCE public.{name}; CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        f" $$BEGIN PERFORM nextval('public.{name}'); RETURN NEW; END$$;"
        f" CREATE TRIGGER {name} BEFORE UPDATE ON shop.orders FOR EACH ROW WHEN (NEW.tenant = '{tenant.name}')"
        f" EXECUTE FUNCTION public.{name}()"
    )

    async def count() -> int:
        return int(await superuser.fetchval(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.{name}"))

    try:
        yield count
    finally:
        await superuser.execute(f"DROP TRIGGER {name} ON shop.orders; DROP FUNCTION public.{name}; DROP SEQUENCE public.{name}")


ORDER = ("static", "scope", "semantic", "sandbox", "risk", "holds")


async def test_ps_10_no_layer_behind_a_refusal_runs_and_nothing_of_it_stays(stage: Stage) -> None:
    """S3.3: one refusal of each layer: the layers up to it, no effect tried before semantic let the call on, no hold, no approval, no row
    of the shop, and one audit row. In the end a call that all layers let on shows that the counter counts."""
    wild = SHOP[REFUND].replace("tool: refund\n", "tool: wild_refund\n").replace("shop.orders: {updated: 1}", "shop.orders: {updated: 0}")
    tenant = await stage.tenant({**SHOP, "tools/wild_refund.yaml": wild})
    for order, paid, status in (("A-1001", 200_00, "paid"), ("A-1002", 200_00, "cancelled"), ("T-9001", 100_00, "paid")):
        await tenant.order(order, paid, status=status)
    await tenant.order("A-1003", 20_00, customer="cust-78")

    def wild_refund() -> Awaitable[Answer]:
        arguments = {"order_id": "A-1001", "amount": 1, "currency": "EUR", "cause": "damaged"}
        return tenant.call("wild_refund", arguments, on_behalf_of=CUSTOMER)

    calls: list[tuple[Callable[[], Awaitable[Answer]], str, str, int]] = [
        (lambda: tenant.refund("A-1001", "-1"), "static", "schema_invalid", 0),
        (lambda: tenant.refund("A-1001", "1.001"), "static", "amount_not_exact", 0),
        (lambda: tenant.call("no_such_tool", {"order_id": "A-1001"}), "static", "tool_unknown", 0),
        (lambda: tenant.refund("T-9001", "1.00"), "scope", "forbidden", 0),
        (lambda: tenant.refund("A-1001", "1.00", requested_scope=[]), "scope", "outside_requested_scope", 0),
        (lambda: tenant.refund("A-1003", "1.00"), "semantic", "order_not_found", 0),
        (lambda: tenant.refund("A-1002", "1.00"), "semantic", "order_state_forbids", 0),
        (wild_refund, "sandbox", "blast_radius_exceeded", 1),
        (lambda: tenant.refund("A-1001", "195.00"), "risk", "risk_too_high", 1),
    ]  # fmt: skip
    before = await _kept(tenant)
    async with _tries(tenant) as tried:
        for number, (ask, layer, reason, tries) in enumerate(calls):
            count, rows = await tried(), len(await tenant.events())
            answer = await ask()
            assert answer.said == ("denied", reason)
            assert answer["refused_by"] == layer
            names = [each["name"] for each in answer["layers"]]
            assert names == list(ORDER[: ORDER.index(layer) + 1])
            assert [each["outcome"] for each in answer["layers"]] == ["accepted"] * (len(names) - 1) + ["denied"]
            assert await tried() - count == tries, (number, reason)
            assert await _kept(tenant) == before
            (row,) = (await tenant.events())[rows:]
            assert (row["event"], row["decision_id"], row["refused_by"]) == ("tool_call.decided", answer["decision_id"], layer)
        count = await tried()
        assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED
        assert await tried() - count == 1
        after = await _kept(tenant)
    assert [name for name in before if before[name] != after[name]] == ["holds", "held"]
    await tenant.is_sound()


async def test_ps_10_facts_are_not_read_for_a_call_that_an_earlier_layer_refuses(stage: Stage) -> None:
    """A fact that fails is told in the service's log: once for the call that got as far, never for those that didn't."""
    tenant = await stage.tenant(changed(REFUND, ("SELECT complaints FROM", "SELECT 1 / complaints AS complaints FROM")))
    await tenant.order("A-1001", 129_90)
    for answer, reason in (
        (await tenant.refund("A-1001", "-1"), "schema_invalid"),
        (await tenant.refund("T-9001", "1.00"), "forbidden"),
        (await tenant.refund("A-1001", "1.00"), "fact_unavailable"),
    ):
        assert answer.said == ("denied", reason)
    for _ in range(50):
        told = [line for line in stage.service.output.splitlines() if "fact_failed" in line and tenant.name in line]
        if told:
            break
        await asyncio.sleep(0.1)
    assert len(told) == 1


async def test_ps_10_calls_of_one_batch_do_not_let_each_other_on(stage: Stage) -> None:
    """Refused and accepted calls at once, so that they share transactions: the refused ones leave nothing in the accepted ones' either."""
    tenant = await stage.tenant(calm())
    for number in range(8):
        await tenant.order(f"A-100{number}", 20_00)
        await tenant.order(f"B-100{number}", 20_00, status="cancelled")
    wanted = [(f"{letter}-100{number}", letter == "A") for number in range(8) for letter in "AB"]
    answers = await together(tenant.refund(order, "1.00") for order, _ in wanted)
    for (order, passes), answer in zip(wanted, answers, strict=True):
        assert answer.said == (ACCEPTED if passes else ("denied", "order_state_forbids")), order
    held = await tenant.rows("SELECT account FROM placet.holds WHERE tenant_id = $1 ORDER BY 1")
    assert [row["account"] for row in held] == [f"resource:order:A-100{number}" for number in range(8)]
    await tenant.is_sound()


# PS-12


async def test_ps_12_another_amount_is_another_question(stage: Stage) -> None:
    """10 then 9000 within a moment, in both orders, one after the other and all at once."""
    tenant = await stage.tenant(calm())
    for number in range(12):
        await tenant.order(f"A-{1000 + number}", 200_00)
    exceeds = ("denied", "amount_exceeds_refundable")
    for number, order in enumerate((("10.00", ACCEPTED), ("9000.00", exceeds)) for _ in range(4)):
        for amount, said in order if number % 2 else reversed(order):
            assert (await tenant.refund(f"A-{1000 + number}", amount)).said == said
    amounts = [("10.00", ACCEPTED), ("9000.00", exceeds)] * 8
    answers = await together(
        tenant.refund(f"A-{1004 + number // 2}", amount, session_id=f"chat-{number}") for number, (amount, _) in enumerate(amounts)
    )
    assert [answer.said for answer in answers] == [said for _, said in amounts]
    await tenant.is_sound()


async def test_ps_12_another_tenant_is_another_question(stage: Stage) -> None:
    """The same tool, arguments, session and subject in three tenants, with another order, another ceiling and no grant, at once."""
    tenants = [
        await stage.tenant(),
        await stage.tenant(changed("grants.yaml", ("15000.00", "5.00"))),
        await stage.tenant({**SHOP, "grants.yaml": "grants: []\n"}),
        await stage.tenant(),
    ]
    for number, tenant in enumerate(tenants):
        await tenant.order("A-1001", 129_90, status="cancelled" if number == 3 else "paid")
    expected = [ACCEPTED, ("denied", "not_granted"), ("denied", "not_granted"), ("denied", "order_state_forbids")]
    for _ in range(3):
        call_id = uuid.uuid4().hex
        answers = await together(tenant.refund("A-1001", f"{5 + _ + 1}.00", call_id) for tenant in tenants)
        assert [answer.said for answer in answers] == expected


async def test_ps_12_another_segment_principal_task_or_language_is_another_question(stage: Stage) -> None:
    """On an order of 200.00 a refund of 130.00 scores 0.65: asked of a standard customer, accepted for a trusted one; a forbid for one
    subject, the refusals of one task and the sentences of one locale are nobody else's."""
    forbid = (
        '  - grant: not_this_one\n    effect: forbid\n    to: {subjects: [agent-2]}\n    scope: [{action: refund, resource: "order:*"}]\n'
    )
    without_history = changed(REFUND, ("require: history.same_refund.count == 0", "require: history.same_refund.count >= 0"))
    tenant = await stage.tenant({**without_history, "grants.yaml": SHOP["grants.yaml"] + forbid})
    number = 0

    async def ask(segment: str, **more: Any) -> Answer:
        nonlocal number
        number += 1
        order = await tenant.order(f"A-{1000 + number}", 200_00)
        return await tenant.refund(order, "130.00", on_behalf_of={"id": "cust-77", "segment": segment}, session_id=f"chat-{number}", **more)

    second = await tenant.key("agent", "agent-2")
    for _ in range(2):
        assert (await ask("standard")).said == WAITS
        assert (await ask("trusted_buyer")).said == ACCEPTED
        assert (await ask("trusted_buyer", key=second)).said == ("denied", "forbidden")
    english, chinese = [await tenant.refund("A-9999", "1.00", locale=locale, session_id=f"in-{locale}") for locale in ("en", "zh")]
    assert english["fix_hint"]["message"] == "order A-9999 was not found"
    assert chinese["fix_hint"]["message"] == "找不到订单 A-9999"
    left = [(await tenant.refund("A-9999", "1.00", session_id="tasks", task_id=task))["fix_hint"]["attempts_left"] for task in "abab"]
    assert left == [2, 2, 1, 1]


async def test_ps_12_another_state_is_another_question(stage: Stage) -> None:
    """What changes between two checks counts at once: the order's row, what was refunded, what is held, who it belongs to, the policy."""
    tenant = await stage.tenant(calm())
    await tenant.order("A-1001", 100_00, status="paid")
    expected: list[tuple[str, tuple[str, str]]] = [
        ("status = 'paid'", ACCEPTED), ("status = 'cancelled'", ("denied", "order_state_forbids")), ("status = 'paid'", ACCEPTED),
        ("refunded_minor = 9800", ("denied", "amount_exceeds_refundable")), ("refunded_minor = 0", ACCEPTED),
        ("currency = 'JPY'", ("denied", "currency_mismatch")), ("currency = 'EUR'", ACCEPTED),
        ("customer_id = 'cust-78'", ("denied", "order_not_found")), ("customer_id = 'cust-77'", ACCEPTED),
    ]  # fmt: skip
    await tenant.order("A-1002", 1_00, customer="cust-78")
    for number, (change, said) in enumerate(expected):
        await stage.superuser.execute(f"UPDATE shop.orders SET {change} WHERE tenant = $1 AND order_id = 'A-1001'", tenant.name)
        assert (await tenant.refund("A-1001", f"2.0{number}")).said == said, change
    assert (await tenant.refund("A-1001", "2.00")).said == ("denied", "already_refunded")
    await tenant.activate(changed("grants.yaml", ("15000.00", "1.00"), files=calm()))
    assert (await tenant.refund("A-1001", "2.20")).said == ("denied", "not_granted")


async def test_ps_12_a_grants_window_ends_between_two_checks(stage: Stage) -> None:
    """Nobody sends anything in between: the moment itself is an input."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    window = f"time: {{from: 2026-01-01T00:00:00Z, until: {end.isoformat().replace('+00:00', 'Z')}}}"
    timed = GRANT.replace("currency: EUR}}}}", "currency: EUR}}, " + window + "}}")
    assert timed != GRANT
    await tenant.activate(changed("grants.yaml", (GRANT, timed)))
    assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED
    await asyncio.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()) + 0.05)
    assert (await tenant.refund("A-1001", "1.01")).said == ("denied", "not_granted")


async def test_ps_12_the_state_version_is_the_approvals_own(stage: Stage) -> None:
    """No rule reads `state_version`; what it binds is the approval: two calls that saw two versions wait for two people's answers."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    for version in (1, 2):
        waits = await tenant.refund("A-1001", "129.90", f"c{version}", state_version=version, task_id="task-1")
        assert waits.said == WAITS
    found = await tenant.rows("SELECT state_version FROM placet.approvals WHERE tenant_id = $1 ORDER BY 1")
    assert [row["state_version"] for row in found] == [1, 2]


async def test_ps_12_a_replay_is_the_same_decision_and_no_second_permission(stage: Stage) -> None:
    """S3.9: the one answer that is kept is that of a settled call id, and it permits nothing: not for another customer either."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    first = await tenant.refund("A-1001", "10.00", "c1")
    assert (first.said, first["execution_permitted"]) == (ACCEPTED, True)
    for behalf in (CUSTOMER, {"id": "cust-78", "segment": "standard"}, {"id": "cust-77", "segment": "trusted_buyer"}):
        again = await tenant.refund("A-1001", "10.00", "c1", on_behalf_of=behalf)
        assert (again["decision_id"], again["replayed"], again["execution_permitted"]) == (first["decision_id"], True, False)
    assert (await tenant.refund("A-1001", "9000.00", "c1")).said == ("denied", "call_id_reused")
    assert await tenant.held("resource:order:A-1001") == 10_00


# PS-15


TYPED = (
    "{type: object, additionalProperties: false, required: [name, count, names],"
    " properties: {name: {type: string}, count: {type: integer}, names: {type: array, items: {type: string}},"
    " either: {type: [integer, string]}}}"
)


@pytest.mark.parametrize(
    "require",
    [
        '!("secret" in args.name)', '!(args.name in "secret")', "!(3 in args.names)", '!("a" in args.count)', '!args.count.contains("9")',
        "!args.count.contains(9)", '!args.names.contains("secret")', 'args.count < "9"', "args.name < 9", 'args.count != "9"',
        "args.count < 9.5",
        'args.names == "secret"', "args.names < 5", "!args.name", "args.count",
        "args.count ? true : false", "args.name.startsWith(5)", "!(args.count in args.count)", 'args.name.matches("(")',
    ],
)  # fmt: skip
async def test_ps_15_a_rule_of_the_wrong_type_is_found_at_the_save(stage: Stage, require: str) -> None:
    """S6.2: beside a blanket permit: `in` over a text or a number, `contains` on a number, `<` between a text and a number."""
    tenant = await stage.tenant()
    detail = await _stores_nothing(
        tenant, with_tool("typed", TYPED, static_rules=_rule(require).replace('/n"', '/name"')), "tools/typed.yaml"
    )
    assert "expected a CEL expression of type bool" in detail  # it is the expression that is at fault, not the refusal's form


async def test_ps_15_a_type_that_only_a_call_shows_denies_the_whole_decision(stage: Stage) -> None:
    """An argument of two types passes the save; the rule that can't compare the one that came is `rule_error`, whatever else permits."""
    rules = [
        "args.either == null || args.either < 5",
        "args.either == null || !(args.either > 5)",
        "args.either == null || !(args.either in [7])",
    ]
    files: Mapping[str, str] = SHOP
    for number, rule in enumerate(rules):
        files = with_tool(f"typed_{number}", TYPED, files, static_rules=_rule(rule).replace('/n"', '/name"'))
    tenant = await stage.tenant(files)
    least = {"name": "a", "count": 1, "names": []}
    for number in range(3):
        found = [
            (await tenant.call(f"typed_{number}", least | more, session_id=uuid.uuid4().hex)).said
            for more in ({}, {"either": 1}, {"either": 7}, {"either": "secret"}, {"either": ""})
        ]
        broken = BROKEN_RULE if number < 2 else ACCEPTED  # a text is in no list of numbers: that is false, and no error
        assert found == [ACCEPTED, ACCEPTED, NOT_SO, broken, broken], rules[number]
    row = next(row for row in await tenant.events("tool_call.decided") if row["reason"] == "rule_error")
    assert (row["decision"], row["refused_by"]) == ("denied", "static")
    await tenant.is_sound()


@pytest.mark.parametrize(
    "constraint",
    [
        "amount: {in: [EUR]}", "amount: {in: EUR}", "cause: {in: [fraud]}", 'amount: {max: {amount: "5", unit: rows}}',
        "amount: {max: 5}", 'amount: {max: "5.00"}',
        'amount: {contains: "5"}', "sensitivity: {max: high}", "time: {in: [monday]}", "amount: 5", "amount: [5]",
    ],
)  # fmt: skip
async def test_ps_15_a_forbid_that_no_call_can_be_held_against_is_refused(stage: Stage, constraint: str) -> None:
    """A constraint of another kind than the calls have would be dropped or forbid at random; beside a blanket permit neither is safe."""
    scope = f'{{action: refund, resource: "order:*", constraints: {{{constraint}}}}}'
    forbid = f"  - grant: never\n    effect: forbid\n    to: {{roles: [agent]}}\n    scope: [{scope}]\n"
    await _stores_nothing(await stage.tenant(), {**SHOP, "grants.yaml": SHOP["grants.yaml"] + forbid}, "grants.yaml")

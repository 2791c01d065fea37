"""Faults of policy semantics that others shipped: what is missing, misspelt, of the wrong type or broken reads as a yes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping

import pytest

from tests.cases.consequences import ACCEPTED, INVALID, NO_POLICY, REFUND, kept, stores_nothing
from tests.cases.stage import BOOTSTRAP_KEY, SHOP, Answer, Stage, Tenant, changed, with_tool

BROKEN_RULE = ("denied", "rule_error")


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
        await stores_nothing(tenant, _shipping(allowed), "grants.yaml")
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
    await stores_nothing(await stage.tenant(), changed(file, (old, new)), file)


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
    before = await kept(tenant)
    answer = await tenant.refund("A-1001", "1.00")
    assert answer.said == ("denied", "fact_unavailable")
    assert (answer["refused_by"], answer["fix_hint"]["retryable"], answer.holds) == ("semantic", "after_delay", {})
    assert await kept(tenant) == before
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
    detail = await stores_nothing(tenant, changed(file, (old, new)), file)
    words = set(re.findall(r"\w+", new)) - set(re.findall(r"\w+", SHOP[file]))
    assert words
    assert any(word in detail for word in words) or any(said in detail for said in OF_AN_ENTRY), detail
    assert (await tenant.stage.post("/policies/2/activation", await tenant.key("operator"), None)).said == ("404", "not_found")
    await tenant.order("T-9001", 20_00)
    assert (await tenant.refund("T-9001", "1.00")).said == ("denied", "forbidden")  # what the version in force says


async def test_ps_06_one_fault_among_good_files_stores_none_of_them(stage: Stage) -> None:
    tenant = await stage.tenant()
    files = with_tool("extra", "{type: object}", changed("grants.yaml", ("effect: forbid", "effect: allow_if")))
    await stores_nothing(tenant, files, "grants.yaml")
    assert (await tenant.call("extra", {})).said == ("denied", "tool_unknown")


# PS-07


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
    detail = await stores_nothing(
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
    await stores_nothing(await stage.tenant(), {**SHOP, "grants.yaml": SHOP["grants.yaml"] + forbid}, "grants.yaml")

"""A bundle compiles whole or not at all, and every fault has file, line and what was expected (SPEC S6.3)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from app.domain.decision import Layer, Reason
from app.domain.errors import PolicyInvalid
from app.domain.hint import NextAction, NextActionKind
from app.domain.quantity import Quantity
from app.policy.compile import compile_bundle, validate
from app.policy.expressions import ValueType

REST = """\
bundle: {name: small, format: 1, locales: [en, zh]}
grants:
  - grant: all_orders
    effect: permit
    to: {roles: [agent]}
    scope:
      - {action: pay, resource: "order:*", constraints: {amount: {max: {amount: "100.00", currency: EUR}}}}
      - {action: look, resource: "order:*"}
thresholds:
  - {review_at: 0.60, deny_at: 0.95}
  - {for: {tool: pay}, review_at: 0.5, deny_at: 1}
budgets:
  - {budget: per_day, level: principal, for: {tool: pay}, limit: {amount: "0.00", currency: EUR}, window: day, on_exceed: needs_user}
approvals:
  - {for: {}, quorum: 1, roles: [reviewer], expires_after_s: 1800, on_expiry: refused}
loop_limits:
  - {level: task, refusals_of_a_rule: 0}
"""
PAY = """\
tool: pay
description: {en: pay an order}
effect_class: money
arguments:
  type: object
  required: [order_id, amount]
  properties:
    order_id: {type: string}
    amount: {type: number, minimum: 0}
    note: {type: string}
money: {/amount: {currency: EUR}}
unbound: [/note]
scope: {action: pay, resource: "order:{args.order_id}", constraints: {amount: {max: "{args.amount}"}}}
static_rules:
  - rule: not_zero
    require: args.amount.minor > 0
    refuse: {reason: zero, field: /amount, expected: {exclusiveMinimum: 0}, message: {en: must be more}}
facts:
  order:
    sql: |
      SELECT status, due, cur
      FROM shop.orders WHERE tenant = :tenant AND order_id = :id
    bind: {id: args.order_id}
    columns: {status: string, due: {money: due, currency: cur}}
    missing: {reason: order_not_found, field: /order_id, next_action: {kind: call_first, tool: look},
              message: {en: "no order {args.order_id}"}}
history:
  same: {tool: pay, match: [/order_id], statuses: [permitted], within_s: 60}
holds:
  order: {on: "order:{args.order_id}", quantity: "{args.amount}", limit: "{open}"}
values:
  half: {minor: order.due.minor / 2, currency: order.due.currency}
  open: {minor: half.minor - account.order.held.minor, currency: half.currency}
rules:
  - rule: within
    when: order.status == "open"
    require: args.amount.minor <= open.minor
    refuse:
      reason: too_much
      field: /amount
      expected: {maximum: "{open}"}
      suggest: {/amount: "{open}"}
      message: {en: "at most {open}", zh: "最多 {open}"}
sandbox:
  strategy: transaction
  statements:
    - sql: UPDATE shop.orders SET due = due - :minor WHERE tenant = :tenant AND order_id = :id
      bind: {minor: args.amount.minor, id: args.order_id}
  watch:
    shop.orders: {key: [order_id], columns: [due]}
  invariants:
    - {invariant: not_below, require: 'after["shop.orders"].all(o, o.due >= 0)'}
  limits: {shop.orders: {updated: 1}}
risk:
  factors:
    - {factor: amount, weight: 0.8, value: double(args.amount.minor) / 100.0}
"""
LOOK = """\
tool: look
description: {en: look}
effect_class: read
arguments: {type: object, required: [order_id], properties: {order_id: {type: string}}}
scope: {action: look, resource: "order:{args.order_id}"}
"""
FILES = {"bundle.yaml": REST, "tools/pay.yaml": PAY, "tools/look.yaml": LOOK}


def changed(file: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[file], old
    return {**FILES, file: FILES[file].replace(old, new, 1)}


def line_of(files: dict[str, str], file: str, mark: str) -> int:
    lines = enumerate(files[file].splitlines(keepends=True), 1)
    return next(number for number, line in lines if (line == mark if mark.endswith("\n") else mark in line))


def test_a_bundle_compiles() -> None:
    policy = compile_bundle(FILES)
    pay, look = policy.tools["pay"], policy.tools["look"]
    assert (policy.name, sorted(policy.tools)) == ("small", ["look", "pay"])
    assert pay.layers == {Layer.STATIC, Layer.SCOPE, Layer.SEMANTIC, Layer.SANDBOX, Layer.RISK}
    assert look.layers == {Layer.STATIC, Layer.SCOPE}
    assert pay.environment.variables["order.due.minor"] is ValueType.INT
    assert [(factor.name, factor.weight) for factor in pay.risk] == [("amount", Decimal("0.8"))]
    assert [(each.selector.tool, each.review_at, each.deny_at) for each in policy.thresholds] == [
        (None, Decimal("0.60"), Decimal("0.95")),
        ("pay", Decimal("0.5"), Decimal(1)),
    ]
    assert (pay.money, pay.unbound, pay.outcome_within_s) == (("/amount",), frozenset({"/note"}), 900)
    assert [query.name for query in policy.history_keys["pay"]] == ["same"]
    assert pay.facts[0].missing.next_action == NextAction(NextActionKind.CALL_FIRST, tool="look")
    assert pay.rules[0].refuse.suggest[0][0] == "/amount"


def test_a_limit_of_zero_is_a_limit() -> None:
    policy = compile_bundle(FILES)
    assert policy.budgets[0].limit == Quantity(0, "EUR", 2)
    assert policy.loop_limits[0].refusals_of_a_rule == 0


def test_digests_count_by_value() -> None:
    """API.md 0.4: 0.60 = 0.6, keys in any order; anything else changes them."""
    policy = compile_bundle(FILES)
    same = compile_bundle(changed("bundle.yaml", "{review_at: 0.60, deny_at: 0.95}", "{deny_at: 0.950, review_at: 0.6}"))
    assert same.digest == policy.digest
    split = dict(FILES)
    head, _, tail = REST.partition("thresholds:")
    split |= {"bundle.yaml": head, "more.yaml": "thresholds:" + tail}
    assert compile_bundle(split).digest == policy.digest
    other = compile_bundle(changed("tools/pay.yaml", "must be more", "must be more!"))
    assert other.digest != policy.digest
    assert other.tools["pay"].digest != policy.tools["pay"].digest
    assert other.tools["look"].digest == policy.tools["look"].digest


TOOL_FAULTS = [
    # shape
    ("effect_class: money", "effect_clas: money", "effect_clas: money", "`effect_clas` isn't a key here; expected `effect_class`"),
    (
        "tool: pay\n",
        "tool: pay it\n",
        "tool: pay it",
        "`tool` can't be `pay it`; expected a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`",
    ),
    (
        "effect_class: money",
        "effect_class: cash",
        "effect_class: cash",
        "`effect_class` can't be `cash`; expected 'read', 'write', 'money', 'permission' or 'irreversible'",
    ),
    ("require: args.amount.minor > 0", "require: true", "require: true", "`require` can't be `True`; expected text"),
    ("      reason: too_much\n", "", "    refuse:\n", "`reason` is missing; expected the key `reason`"),
    (
        "reason: too_much",
        "reason: TooMuch",
        "reason: TooMuch",
        "`reason` can't be `TooMuch`; expected a snake_case name such as `within_refundable`",
    ),
    # what this version can't do
    ("unbound: [/note]", "sensitive: [/note]", "sensitive:", "`sensitive`: this is not supported by this version; expected no such key"),
    (
        'limit: "{open}"}',
        'limit: "{open}", settle: {echo: order.due}}',
        "settle:",
        "`settle`: `this` is not supported by this version; expected release",
    ),
    (
        "strategy: transaction",
        "strategy: shadow",
        "strategy: shadow",
        "`strategy`: `shadow` is not supported by this version; expected transaction or mock",
    ),
    # layers
    (
        "effect_class: money",
        "effect_class: money\nlayers: [static, scope]",
        "layers:",
        "a money tool can't do without risk, sandbox, semantic; expected risk, sandbox, scope, semantic, static, and more if wanted",
    ),
    # arguments
    (
        "amount: {type: number, minimum: 0}",
        "amount: {type: number, minimum: 0, maximun: 9}",
        "maximun",
        "`maximun` isn't a keyword of JSON Schema; expected `maximum`, or a name with `x-`",
    ),
    ("order_id: {type: string}", 'order_id: {type: string, pattern: "(?=a)"}', "pattern:", None),
    (
        "money: {/amount:",
        "money: {/amuont:",
        "money:",
        "`/amuont` isn't a number among the arguments; expected a JSON Schema of draft 2020-12 that can be checked in linear time",
    ),
    (
        "{currency: EUR}",
        "{currency: EURO}",
        "money:",
        "`EURO` isn't a currency of ISO 4217 with minor units; expected a JSON Schema of draft 2020-12 that can be checked in linear time",
    ),
    (
        "{currency: EUR}",
        '{currency: "{order.due.curency}"}',
        "money:",
        "`order.due.curency` isn't a column of a fact; expected a fact's currency such as `{order.paid.currency}`",
    ),
    ("unbound: [/note]", "unbound: [/notes]", "unbound:", "`/notes` isn't an argument of the tool; expected JSON Pointers to arguments"),
    (
        "amount: {type: number, minimum: 0}",
        "amount: {type: number}",
        "amount: {type",
        "`/amount` is money and may be negative; expected `minimum: 0` or `exclusiveMinimum: 0`",
    ),
    # scope
    (
        'max: "{args.amount}"',
        'max: "{args.amuont}"',
        "scope:",
        "`args.amuont` isn't a variable; there are args.amount.currency, "
        "args.amount.minor, args.note, args.order_id; expected `{path}`s of variables",
    ),
    (
        'max: "{args.amount}"',
        "max: 100",
        "scope:",
        'isn\'t a ceiling; expected an amount such as `"{args.amount}"`, a count such as `{amount: "{args.limit}", unit: rows}`, '
        "or, for `sensitivity`, a level",
    ),
    (
        'resource: "order:{args.order_id}"',
        'resource: "order:{args.note}"',
        "scope:",
        "`args.note` is optional, and what a call touches can't be left out; expected a required argument",
    ),
    ('resource: "order:{args.order_id}"', 'resource: "order:{order.status}"', "scope:", None),
    # static rules
    (
        "require: args.amount.minor > 0",
        "require: order.due.minor > 0",
        "require: order.due",
        "reads `order.due.minor`, which isn't an argument; expected only args.amount.currency, args.amount.minor, args.note, args.order_id",
    ),
    # facts
    ("FROM shop.orders WHERE tenant = :tenant AND", "FROM shop.orders WHERE", "SELECT status", None),
    (
        "order_id = :id\n",
        "order_id = :ide\n",
        ":ide",
        "`:ide` isn't bound; add it to `bind` (for a slice, write a blank after the colon); expected one SELECT with `:name` binds",
    ),
    (
        "bind: {id: args.order_id}",
        "bind: {id: args.ordr_id}",
        "args.ordr_id",
        "bind `id`: undeclared reference to 'args.ordr_id'; expected one SELECT with `:name` binds",
    ),
    (
        "bind: {id: args.order_id}",
        "bind: {id: order.status}",
        "id: order.status",
        "reads `order.status`, which has no value before the state is "
        "read; expected arguments and the principal; all facts are read at once",
    ),
    (
        "columns: {status: string",
        "columns: {state: string",
        "SELECT status",
        "the SELECT gives no column `state`; expected one SELECT with `:name` binds",
    ),
    (
        "columns: {status: string",
        "columns: {status: text",
        "columns:",
        "`text` isn't a type of a column; expected string, int, bool, timestamp or {money: …, currency: …}",
    ),
    (
        "next_action: {kind: call_first, tool: look}",
        "next_action: {kind: call_first, tool: loook}",
        "loook",
        "there is no tool `loook`; expected one of look, pay",
    ),
    (
        "next_action: {kind: call_first, tool: look}",
        "next_action: {kind: call_first}",
        "next_action:",
        "`call_first` names no tool; expected `tool`, the one to call first",
    ),
    (
        "next_action: {kind: call_first, tool: look}",
        "next_action: {kind: stop, tool: look}",
        "next_action:",
        "`stop` names a tool; expected a tool with `call_first` only",
    ),
    (
        "next_action: {kind: call_first, tool: look}",
        "next_action: {kind: wait}, suggest: {/order_id: x}",
        "next_action:",
        "`wait` doesn't go with `suggest`; expected `call_again`, or no `suggest`",
    ),
    ("next_action: {kind: call_first, tool: look}", "next_action: {kind: hurry}", "next_action:", None),
    (
        "reason: order_not_found",
        "reason: schema_invalid",
        "schema_invalid",
        "`schema_invalid` is a reason of the service; expected a reason of your own",
    ),
    ('message: {en: "no order {args.order_id}"}', 'message: {en: "no order {order.status}"}', "no order", None),
    (
        'message: {en: "no order {args.order_id}"}',
        'message: {zh: "x"}',
        "{zh:",
        "has no text in `en`; expected a text in `en`, and in others as wanted",
    ),
    ('zh: "最多 {open}"', 'fr: "au plus {open}"', "fr:", "`fr` isn't a locale of the bundle; expected one of en, zh"),
    (
        "  order:\n    sql",
        "  account:\n    sql",
        "  account:",
        "`account` can't be the name of a fact or value; expected a name that nothing else has",
    ),
    # history, holds, values
    ("{tool: pay, match", "{tool: payy, match", "payy", "there is no tool `payy`; expected one of look, pay"),
    (
        "match: [/order_id]",
        "match: [/order]",
        "match:",
        "`/order` isn't an argument of both tools; expected JSON Pointers to arguments that both have",
    ),
    (
        'limit: "{open}"',
        'limit: "{order.status}"',
        "limit:",
        "`{order.status}` isn't an amount of money; expected one `{path}` such as `{args.amount}`",
    ),
    ('on: "order:{args.order_id}"', 'on: "order:{order.status}"', "quantity:", None),
    ("half.minor - account", "open.minor - account", "open: {minor", None),
    ("half: {minor: order.due.minor / 2", "half: {minor: open.minor / 2", "half: {minor", None),
    (
        "half: {minor: order.due.minor / 2",
        "half: {minor: order.due.minor / 2.0",
        "half: {minor",
        "found no matching overload for '_/_' applied to '(int, double)'; expected a CEL expression of type int",
    ),
    # rules
    (
        "require: args.amount.minor <= open.minor",
        "require: args.amuont.minor <= open.minor",
        "amuont",
        "undeclared reference to 'args.amuont.minor'; expected a CEL expression of type bool",
    ),
    (
        "require: args.amount.minor <= open.minor",
        "require: |\n      true &&\n      args.amuont.minor < 1",
        "amuont",
        "undeclared reference to 'args.amuont.minor'; expected a CEL expression of type bool",
    ),
    ('when: order.status == "open"', "when: order.status == 1", "when:", None),
    ('when: order.status == "open"', "when: 'after[\"shop.orders\"].size() > 0'", "when:", None),
    (
        "      field: /amount\n",
        "",
        "    refuse:\n",
        "the refusal of `within` has no `field`; expected `field`, so that the caller can correct itself",
    ),
    (
        '      expected: {maximum: "{open}"}\n',
        "",
        "    refuse:\n",
        "the refusal of `within` has no `expected`; expected `expected`, so that the caller can correct itself",
    ),
    (
        "      field: /amount\n",
        "      field: /amuont\n",
        "/amuont",
        "`/amuont` isn't an argument of the tool; expected a JSON Pointer to an argument",
    ),
    (
        "      field: /amount\n",
        "      field: /amount\n      fact: order.state\n",
        "order.state",
        "`order.state` isn't a variable here; expected a dotted variable such as `order.status`",
    ),
    ("rule: within", "rule: order", "rule: order", "the name `order` is taken; expected a name for each rule, fact and value of the tool"),
    # sandbox and risk
    (
        "UPDATE shop.orders SET",
        "UPDATE orders SET",
        "UPDATE orders",
        "name the table with its schema, such as `shop.orders`; expected one INSERT, UPDATE, DELETE or MERGE with `:name` binds",
    ),
    (
        "limits: {shop.orders: {updated: 1}}",
        "limits: {}",
        "limits:",
        "`limits` doesn't name `shop.orders`, which a statement writes; expected `shop.orders` in `limits`",
    ),
    ("limits: {shop.orders: {updated: 1}}", "limits: {shop.orders: {updated: -1}}", "limits:", None),
    (
        "limits: {shop.orders: {updated: 1}}",
        "limits: {shop.orders: {changed: 1}}",
        "limits:",
        "`changed` can't be `changed`; expected 'inserted', 'updated' or 'deleted'",
    ),
    ('after["shop.orders"]', 'after["shop.order"]', "invariant:", "reads `shop.order`, which isn't watched; expected one of shop.orders"),
    (
        "value: double(args.amount.minor) / 100.0",
        "value: args.amount.minor / 100",
        "factor: amount",
        "the result has to be double, and is int; expected a CEL expression of type double",
    ),
    ("weight: 0.8", "weight: 1.7", "factor: amount", None),
    (
        "weight: 0.8",
        "weight: -0.8",
        "factors:",
        "no factor raises the score, so nothing is ever asked or refused; expected a factor with a weight above 0",
    ),
]


@pytest.mark.parametrize(("old", "new", "mark", "said"), TOOL_FAULTS)
def test_a_fault_in_a_tool_has_its_line(old: str, new: str, mark: str, said: str | None) -> None:
    """S6.1, S6.2, PS-04, PS-06, PS-09, PS-15: a wrong type, an unknown key, operator or name is found when the bundle is read."""
    files = changed("tools/pay.yaml", old, new)
    faults = validate(files)
    place = ("tools/pay.yaml", line_of(files, "tools/pay.yaml", mark))
    if said is None:
        assert place in [(fault.file, fault.line) for fault in faults]
    else:
        assert f"{place[0]}:{place[1]}: {said}" in [str(fault) for fault in faults]


BUNDLE_FAULTS = [
    ("approvals:", "aprovals:", "aprovals:", "`aprovals` isn't a key here; expected `approvals`"),
    ("loop_limits:", "aproval_threshold: 3\nloop_limits:", "aproval_threshold", None),
    ("roles: [reviewer], expires", "roles: [], expires", "quorum", None),
    ("quorum: 1", "quorum: 0", "quorum", None),
    ("on_expiry: refused", "on_expiry: accepted", "on_expiry", "`on_expiry` can't be `accepted`; expected 'refused'"),
    (
        "  - {for: {}, quorum",
        "  - {for: {tool: pay}, quorum",
        "approvals:",
        "calls can need a person, but no approval rule is for all calls; expected an entry of `approvals` with `for: {}`",
    ),
    (
        "  - {review_at: 0.60, deny_at: 0.95}\n",
        "",
        "thresholds:",
        "tools are judged by risk, but no threshold is for all calls; expected an entry of `thresholds` without `for`",
    ),
    (
        "review_at: 0.60, deny_at: 0.95",
        "review_at: 0.96, deny_at: 0.95",
        "0.96",
        "`review_at` 0.96 is above `deny_at` 0.95; expected 0 <= review_at <= deny_at <= 1",
    ),
    ("review_at: 0.60, deny_at: 0.95", "review_at: 0.6, deny_at: 1.1", "1.1", None),
    ("review_at: 0.60, deny_at: 0.95", "review_at: -0.1, deny_at: 1", "-0.1", None),
    ("review_at: 0.60", 'review_at: "abc"', "abc", "`review_at` can't be `abc`; expected a number"),
    ("{for: {tool: pay}, review_at", "{for: {tool: payy}, review_at", "payy", "there is no tool `payy`; expected one of look, pay"),
    ("{for: {tool: pay}, review_at", "{for: {tol: pay}, review_at", "tol:", "`tol` isn't a key here; expected `tool`"),
    ("effect: permit", "effect: allow_if", "effect:", "`effect` can't be `allow_if`; expected 'permit' or 'forbid'"),
    ("to: {roles: [agent]}", "to: {roles: []}", "to:", None),
    ("to: {roles: [agent]}", "to: {roles: agent}", "to:", "`roles` can't be `agent`; expected a list"),
    ("to: {roles: [agent]}", "to: {}", "to:", "names nobody; expected `roles`, `subjects` or `segments`; what is named must all hold"),
    ("to: {roles: [agent]}", "to: {roles: [agnt]}", "to:", None),
    ('max: {amount: "100.00", currency: EUR}', 'max: {amount: "100.00"}', "max:", None),
    ('max: {amount: "100.00", currency: EUR}', 'max: {amount: "100", currency: EUR}', "max:", None),
    ('max: {amount: "100.00", currency: EUR}', "max: 100", "max:", None),
    ("constraints: {amount:", "constrants: {amount:", "constrants", None),
    (
        'constraints: {amount: {max: {amount: "100.00", currency: EUR}}}',
        "constraints: {sensitivity: {max: internal}}",
        "sensitivity",
        'the policy names no levels of sensitivity; leave this out; expected an entry such as `{action: refund, resource: "order:*", '
        'constraints: {amount: {max: {amount: "80.00", currency: EUR}}}}`',
    ),
    ('limit: {amount: "0.00", currency: EUR}', 'limit: {amount: "0.00"}', "budget:", None),
    (
        'limit: {amount: "0.00", currency: EUR}',
        'limit: {amount: "5", unit: tokens}',
        "budget:",
        "a budget in `tokens` is not supported by this version; expected a currency, or `unit: calls`",
    ),
    (
        "on_exceed: needs_user",
        "on_exceed: reduce",
        "on_exceed",
        "`on_exceed`: `reduce` is not supported by this version; expected deny or needs_user",
    ),
    (
        "window: day",
        "window: day, time_zone: Europe/Belin",
        "time_zone",
        "there is no time zone `Europe/Belin`; expected a name such as `Europe/Berlin`",
    ),
    ("window: day", "window: week", "window", "`window` can't be `week`; expected 'total', 'minute', 'hour', 'day' or 'month'"),
    (
        "{level: task, refusals",
        "{level: turn, refusals",
        "level: turn",
        "`refusals_of_a_rule` in a turn is not supported by this version; expected `level: task` or `level: session`",
    ),
    ("refusals_of_a_rule: 0", "refusals_of_a_rule: -1", "refusals_of_a_rule", None),
    ("locales: [en, zh]", "locales: [zh]", "locales", "`en` isn't among the locales; expected `en`, and others as wanted"),
    ("format: 1", "format: 2", "format", "`format` can't be `2`; expected 1"),
]


@pytest.mark.parametrize(("old", "new", "mark", "said"), BUNDLE_FAULTS)
def test_a_fault_in_the_rest_has_its_line(old: str, new: str, mark: str, said: str | None) -> None:
    """AL-13, PS-06, MO-10: a typo or an empty list never removes a gate, a limit has its currency."""
    files = changed("bundle.yaml", old, new)
    faults = validate(files)
    place = ("bundle.yaml", line_of(files, "bundle.yaml", mark))
    if said is None:
        assert place in [(fault.file, fault.line) for fault in faults]
    else:
        assert f"{place[0]}:{place[1]}: {said}" in [str(fault) for fault in faults]


def test_an_unknown_top_level_key_is_named() -> None:
    """AL-13, word for word."""
    files = changed("bundle.yaml", "approvals:", "aproval_threshold: 3\napprovals:")
    assert [fault.message for fault in validate(files)] == ["`aproval_threshold` isn't a key here"]


@pytest.mark.parametrize("effect_class", ["money", "permission", "irreversible"])
@pytest.mark.parametrize("section", ["sandbox", "risk", "rules"])
def test_a_class_needs_its_sections(effect_class: str, section: str) -> None:
    """S3.3"""
    text = PAY.replace("effect_class: money", f"effect_class: {effect_class}")
    head, _, tail = text.partition(f"\n{section}:")
    rest = "\n".join(tail.split("\n")[1:])
    kept = rest.split("\n")
    while kept and kept[0].startswith(" "):
        kept.pop(0)
    files = {**FILES, "tools/pay.yaml": head + "\n" + "\n".join(kept)}
    assert f"has no `{section}`" in " ".join(fault.message for fault in validate(files))


def test_a_money_tool_says_what_is_money() -> None:
    text = LOOK.replace("effect_class: read", "effect_class: money")
    said = "tools/look.yaml:1: a money tool doesn't say what money it moves; expected `money: {/amount: {currency: /currency}}`, or `holds`"
    assert said in [str(fault) for fault in validate({**FILES, "tools/look.yaml": text})]


ORDER = ["read", "write", "money", "permission", "irreversible"]
NEEDED = {
    "read": {"static", "scope"},
    "write": {"static", "scope", "semantic"},
    **{name: {"static", "scope", "semantic", "sandbox", "risk"} for name in ORDER[2:]},
}


@pytest.mark.parametrize("effect_class", ORDER)
@pytest.mark.parametrize("left_out", ["static", "scope", "semantic", "sandbox", "risk"])
def test_a_policy_that_asks_for_fewer_layers_is_refused(effect_class: str, left_out: str) -> None:
    """S3.3, as a law: whatever is left out of what the class implies is a fault, and nothing else is."""
    asked = [name for name in ("static", "scope", "semantic", "sandbox", "risk") if name != left_out]
    text = PAY.replace("effect_class: money", f"effect_class: {effect_class}\nlayers: [{', '.join(asked)}]")
    if effect_class == "read":  # which has no effects, and is judged without a sandbox
        text = text.replace(PAY[PAY.index("sandbox:") : PAY.index("risk:")], "").replace(", sandbox", "")
    files = {**FILES, "tools/pay.yaml": text}
    faults = [str(fault) for fault in validate(files)]
    if left_out in NEEDED[effect_class]:
        assert len(faults) == 1
        assert faults[0].startswith(f"tools/pay.yaml:4: a {effect_class} tool can't do without {left_out}; expected ")
    else:
        assert faults == []


def test_more_layers_than_implied_may_be_asked_for() -> None:
    text = PAY.replace("effect_class: money", "effect_class: write\nlayers: [static, scope, semantic, sandbox, risk]")
    tool = compile_bundle({**FILES, "tools/pay.yaml": text}).tools["pay"]
    assert Layer.RISK in tool.layers
    files = changed("tools/look.yaml", "effect_class: read", "effect_class: read\nlayers: [static, scope, risk]")
    assert [str(fault) for fault in validate(files)] == [
        "tools/look.yaml:1: a read tool with the layer risk has no `risk`; expected the key `risk`"
    ]


def test_a_section_that_is_there_is_judged() -> None:
    """A rule in a read tool isn't dropped in silence."""
    text = PAY.replace("effect_class: money", "effect_class: read").replace(PAY[PAY.index("sandbox:") : PAY.index("risk:")], "")
    asked = {Layer.STATIC, Layer.SCOPE, Layer.SEMANTIC, Layer.RISK}
    assert compile_bundle({**FILES, "tools/pay.yaml": text}).tools["pay"].layers == asked


@pytest.mark.parametrize("reason", list(Reason))
def test_a_built_in_reason_cannot_be_redefined(reason: Reason) -> None:
    files = changed("tools/pay.yaml", "reason: too_much", f"reason: {reason}")
    assert [fault.message for fault in validate(files)] == [f"`{reason}` is a reason of the service"]


def test_all_faults_are_collected() -> None:
    files = changed("tools/pay.yaml", "args.amount.minor <= open.minor", "args.x <= 1")
    files |= {"bundle.yaml": REST.replace("deny_at: 0.95", "deny_at: 0.1"), "broken.yaml": "a: ["}
    assert sorted((fault.file, fault.line or 0) for fault in validate(files)) == [
        ("broken.yaml", 1),
        ("bundle.yaml", 10),
        ("tools/pay.yaml", line_of(files, "tools/pay.yaml", "args.x")),
    ]
    with pytest.raises(PolicyInvalid):
        compile_bundle(files)


def test_at_most_fifty_faults_are_collected() -> None:
    files = {**FILES, "bundle.yaml": REST + "".join(f"key_{n}: 1\n" for n in range(80))}
    assert len(validate(files)) == 50


@pytest.mark.parametrize("files", [{}, {"bundle.yaml": REST}, {"tools/look.yaml": LOOK}, {"bundle.yaml": ""}])
def test_half_a_bundle_is_none(files: dict[str, str]) -> None:
    """PS-01"""
    assert validate(files)


def test_a_tool_is_in_one_file_and_a_name_is_given_once() -> None:
    assert [str(fault) for fault in validate({**FILES, "tools/z.yaml": LOOK})] == [
        "tools/z.yaml:1: the tool `look` is already in `tools/look.yaml`; expected one file for each tool"
    ]
    twice = REST.replace(
        "thresholds:",
        "  - {grant: all_orders, effect: forbid, to: {roles: [agent]}, scope: [{action: pay, resource: 'order:T-1'}]}\nthresholds:",
    )
    assert [str(fault) for fault in validate({**FILES, "bundle.yaml": twice})] == [
        "bundle.yaml:9: the name `all_orders` is taken; expected a name for each"
    ]


def test_later_sections_are_kept_but_have_their_shape() -> None:
    more = "models: [{model: a}]\nworkspaces: []\nmeta_requests: {request_tool: {untrusted: deny}}\n"
    more += "notifications: []\ntrust: {untrusted: [file]}\n"
    assert validate({**FILES, "bundle.yaml": REST + more}) == ()
    assert [str(fault) for fault in validate({**FILES, "bundle.yaml": REST + "models: many\n"})] == [
        "bundle.yaml:18: `models` can't be `many`; expected a list"
    ]


def test_money_whose_currency_is_a_facts_cannot_limit_the_scope() -> None:
    """The scope is judged before any state is read."""
    files = changed("tools/pay.yaml", "{currency: EUR}", '{currency: "{order.due.currency}"}')
    faults = [fault.message for fault in validate(files)]
    assert "reads `args.amount.currency`, which has no value before the state is read" in faults

"""Dry runs of both strategies, thresholds per currency, and slips that would loosen a decision: each told with its place (S3.6, S6.3)."""

from __future__ import annotations

import pytest

from app.policy.compile import compile_bundle, validate
from app.policy.model import Selector, Watch
from tests.policy.test_compile import FILES, PAY, changed, line_of

TELL = """\
tool: tell
description: {en: tell}
effect_class: write
layers: [static, scope, semantic, sandbox]
arguments:
  type: object
  required: [order_id, text]
  properties: {order_id: {type: string}, text: {type: string}, note: {type: string}}
scope: {action: look, resource: "order:{args.order_id}"}
rules:
  - rule: short
    require: args.text.size() < 100
    refuse: {reason: long, field: /text, expected: {maxLength: 99}, message: {en: shorter}}
sandbox:
  strategy: mock
  predict:
    - {table: shop.messages, operation: insert, key: {order_id: "{args.order_id}"}, after: {body: "{args.text}"}}
    - {table: shop.orders, operation: update, key: {order_id: "{args.order_id}"}, before: {told: false}, after: {told: true}}
  invariants: [{invariant: one, require: 'after["shop.messages"].size() == 1'}]
  limits: {shop.messages: {inserted: 1}, shop.orders: {updated: 1}}
"""
WITH_TELL = {**FILES, "tools/tell.yaml": TELL}


def tell(old: str, new: str) -> dict[str, str]:
    assert old in TELL, old
    return {**FILES, "tools/tell.yaml": TELL.replace(old, new, 1)}


def test_predictions_are_compiled_and_say_what_is_watched() -> None:
    """S3.6"""
    plan = compile_bundle(WITH_TELL).tools["tell"].sandbox
    assert plan is not None
    assert (plan.strategy, plan.effects, [(each.table, each.operation) for each in plan.predictions]) == (
        "mock", (), [("shop.messages", "insert"), ("shop.orders", "update")],
    )  # fmt: skip
    assert plan.watch == {"shop.messages": Watch(("order_id",), ("body",)), "shop.orders": Watch(("order_id",), ("told",))}


MOCK_FAULTS = [
    ("  predict:", "  statements:", "table: shop.messages", None),
    (
        "  invariants:",
        "  statements: [{sql: 'DELETE FROM shop.orders WHERE tenant = :tenant'}]\n  invariants:",
        "statements:",
        "`statements` isn't of the strategy `mock`; expected `predict` only",
    ),
    ("  invariants:", "  watch: {}\n  watched: {}\n  invariants:", "watched:", None),
    ("after: {body", "after: {body: x}, before: {body", "insert", "a predicted insert has no `before`; expected no key `before`"),
    ("operation: insert", "operation: delete", "operation: delete", "a predicted delete has a `before`; expected the key `before`"),
    ("operation: insert", "operation: upsert", "upsert", None),
    ("limits: {shop.messages: {inserted: 1}, ", "limits: {", "limits:", None),
    ('body: "{args.text}"', 'body: "{args.txt}"', "args.txt", None),
    ('body: "{args.text}"', 'body: "{now}"', "{now}", None),
    ('body: "{args.text}"', 'body: "{after}"', "{after}", None),
    ('after["shop.messages"]', 'after["shop.message"]', "invariant:", None),
]


@pytest.mark.parametrize(("old", "new", "mark", "said"), MOCK_FAULTS)
def test_a_fault_in_a_prediction_has_its_line(old: str, new: str, mark: str, said: str | None) -> None:
    files = tell(old, new)
    faults = validate(files)
    place = ("tools/tell.yaml", line_of(files, "tools/tell.yaml", mark))
    assert place in [(fault.file, fault.line) for fault in faults]
    if said is not None:
        assert f"{place[0]}:{place[1]}: {said}" in [str(fault) for fault in faults]


def test_a_prediction_may_not_read_the_clock() -> None:
    """A digest that changes with the time could never be approved."""
    assert "reads `now`, which isn't the same when the call is tried again" in [
        fault.message for fault in validate(tell('body: "{args.text}"', 'body: "{now}"'))
    ]


def test_predictions_are_not_of_the_transaction() -> None:
    more = "  watch:\n    shop.orders: {key: [order_id], columns: [due]}\n"
    assert more in PAY
    prediction = "  predict: [{table: shop.orders, operation: delete, key: {a: b}, before: {c: d}}]\n"
    faults = [str(fault) for fault in validate({**FILES, "tools/pay.yaml": PAY.replace(more, prediction + more)})]
    assert any("`predict` isn't of the strategy `transaction`; expected `statements` only" in fault for fault in faults)
    none = PAY[PAY.index("  statements:") : PAY.index("  watch:")]
    faults = [fault.message for fault in validate({**FILES, "tools/pay.yaml": PAY.replace(none, "")})]
    assert "a sandbox with the strategy `transaction` has no `statements`" in faults


def test_an_invariant_sees_all_rows_or_none() -> None:
    """S3.6: what a dry run leaves out can't be judged, so the bundle may not promise it."""
    files = changed("tools/pay.yaml", "limits: {shop.orders: {updated: 1}}", "limits: {shop.orders: {updated: 101}}")
    assert [fault.message for fault in validate(files)] == ["reads `shop.orders`, of which up to 101 rows may change; a dry run keeps 100"]
    assert validate(changed("tools/pay.yaml", "limits: {shop.orders: {updated: 1}}", "limits: {shop.orders: {updated: 100}}")) == ()


def test_the_tables_an_invariant_reads_are_known() -> None:
    def reads(require: str) -> frozenset[str] | None:
        files = changed("tools/pay.yaml", """'after["shop.orders"].all(o, o.due >= 0)'""", f"'{require}'")
        plan = compile_bundle(files).tools["pay"].sandbox
        assert plan is not None
        return plan.invariants[0].reads

    assert reads('after["shop.orders"].size() == before["shop.orders"].size()') == {"shop.orders"}
    assert reads("args.amount.minor > 0") == frozenset()
    assert reads('after["shop.orders"].size() == 1 && after.size() == 1') is None


SLIPS = [
    (
        'on: "order:{args.order_id}"',
        'on: "order:args.order_id"',
        "quantity:",
        "all calls would hold on the one account `order:args.order_id`; "
        "expected an account such as `order:{args.order_id}`, or `shared: true`",
    ),
    (
        "effect_class: money", "effect_class: read", "sandbox:",
        "a read tool has effects; expected `effect_class: write` or more, or no `sandbox`",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "mark", "said"), SLIPS)
def test_a_slip_has_its_line(old: str, new: str, mark: str, said: str) -> None:
    files = changed("tools/pay.yaml", old, new)
    assert f"tools/pay.yaml:{line_of(files, 'tools/pay.yaml', mark)}: {said}" in [str(fault) for fault in validate(files)]


def test_an_account_may_be_everybodys_on_purpose() -> None:
    files = changed("tools/pay.yaml", 'on: "order:{args.order_id}"', 'shared: true, on: "till:main"')
    assert validate(files) == ()
    assert validate(changed("tools/pay.yaml", 'on: "order:{args.order_id}"', 'on: "till:{principal.subject}"')) == ()


@pytest.mark.parametrize("role", ["agent", "executor", "user", "auditor", "author"])
def test_an_approval_is_answered_by_someone_who_can(role: str) -> None:
    """S7.3: a role that has no answer to give would leave every call waiting."""
    files = changed("bundle.yaml", "quorum: 1, roles: [reviewer]", f"quorum: 1, roles: [reviewer, {role}]")
    line = line_of(files, "bundle.yaml", "quorum")
    assert [str(fault) for fault in validate(files)] == [
        f"bundle.yaml:{line}: `{role}` can't answer an approval; expected operator or reviewer"
    ]


def test_an_operator_answers_too() -> None:
    assert validate(changed("bundle.yaml", "quorum: 1, roles: [reviewer]", "quorum: 1, roles: [reviewer, operator]")) == ()


def test_a_segment_that_nobody_names_is_no_fault() -> None:
    """Which segments a key may name isn't the bundle's to know."""
    files = changed("bundle.yaml", "{for: {tool: pay}, review_at: 0.5", "{for: {segment: nobody}, review_at: 0.5")
    assert validate(files) == ()
    assert validate(changed("bundle.yaml", "to: {roles: [agent]}", "to: {segments: [nobody]}")) == ()


def test_a_threshold_may_be_a_currencys() -> None:
    """S3.7"""
    files = changed("bundle.yaml", "{for: {tool: pay}, review_at: 0.5", "{for: {currency: JPY, tool: pay}, review_at: 0.5")
    threshold = compile_bundle(files).thresholds[1]
    assert (threshold.selector, threshold.selector.weight) == (Selector("pay", currency="JPY"), 2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{for: {tool: pay}, review_at", "{for: {currency: EURO}, review_at", None),
        ("{for: {tool: pay}, review_at", "{for: {currency: ABC}, review_at", "`ABC` isn't a currency of ISO 4217 with minor units"),
        (
            "  - {review_at: 0.60",
            "  - {for: {currency: EUR}, review_at: 0.60",
            "tools are judged by risk, but no threshold is for all calls",
        ),
        ("level: principal, for: {tool: pay}", "level: principal, for: {currency: EUR}", "`currency` isn't a key here"),
        ("- {for: {}, quorum", "- {for: {currency: EUR}, quorum", "`currency` isn't a key here"),
    ],
)  # fmt: skip
def test_a_currency_is_no_selector_where_it_would_say_nothing(old: str, new: str, said: str | None) -> None:
    faults = [fault.message for fault in validate(changed("bundle.yaml", old, new))]
    assert faults
    if said is not None:
        assert said in faults


def test_a_broken_tool_is_told_once() -> None:
    """Tools that name it as the next step, count its calls or grant its action have no fault of their own."""
    files = changed("tools/look.yaml", "effect_class: read", "effect_class: read\nsurprise: 1")
    assert [str(fault).partition(";")[0] for fault in validate(files)] == ["tools/look.yaml:4: `surprise` isn't a key here"]

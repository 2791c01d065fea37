"""The scope layer: how arguments become a need of every kind, every cut told, and what is suggested (S3.2, S5.3, API.md 0.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from app.domain.decision import ABSENT, Check, Decision, Layer, Outcome
from app.domain.hint import NextActionKind, Retryable
from app.domain.scope import parse_scope
from app.domain.tool_call import ToolCall
from app.domain.wording import locales_of
from app.guards.context import CallContext
from app.guards.pipeline import Prepared, prepare
from app.policy.compile import compile_bundle
from app.policy.currencies import exponent_of
from app.policy.model import Policy
from tests.guards.judging import AGENT, FILES, NOW, POLICY, amount, prepared_call

TOOL = """
tool: export
description: {en: export rows, zh: 导出数据行}
effect_class: read
arguments:
  type: object
  additionalProperties: false
  required: [table, limit, level, form, columns, cost, currency]
  properties:
    table: {type: string}
    limit: {type: integer}
    level: {type: string}
    form: {type: string}
    columns: {type: array, items: {type: string}}
    cost: {type: number, minimum: 0}
    currency: {type: string}
money: {/cost: {currency: /currency}}
scope:
  action: export
  resource: "table:{args.table}"
  constraints:
    rows: {max: {amount: "{args.limit}", unit: rows}}
    sensitivity: {max: "{args.level}"}
    form: {in: "{args.form}"}
    columns: {in: "{args.columns}"}
    cost: {max: "{args.cost}"}
    target: {in: file}
    ms: {max: {amount: "500", unit: ms}}
"""
GRANTS = """
  - grant: exports
    effect: permit
    to: {roles: [agent]}
    scope:
      - action: export
        resource: "table:shop/*"
        constraints:
          rows: {max: {amount: "100", unit: rows}}
          sensitivity: {max: internal}
          form: {in: [csv, json]}
          columns: {in: [id, status]}
          cost: {max: {amount: "5.00", currency: EUR}}
          target: {in: [file, mail]}
          ms: {max: {amount: "500", unit: ms}}
"""
CALL: Mapping[str, object] = {
    "table": "shop/orders",
    "limit": 100,
    "level": "internal",
    "form": "csv",
    "columns": ["id", "status"],
    "cost": Decimal("5.00"),
    "currency": "EUR",
}


def bundle(tool: str = TOOL, grants: str = GRANTS) -> Policy:
    files = {**FILES, "tools/export.yaml": tool, "grants.yaml": FILES["grants.yaml"].rstrip() + grants}
    head = files["bundle.yaml"].replace("locales: [en, zh]", "locales: [en, zh], sensitivity: [public, internal, secret]")
    return compile_bundle({**files, "bundle.yaml": head})


EXPORTS = bundle()


def export(
    policy: Policy = EXPORTS, requested: list[dict[str, Any]] | None = None, locale: str | None = None, **changes: object
) -> Prepared:
    call = ToolCall(
        tool="export", arguments={**CALL, **changes}, session_id="s", call_id="c", segment="standard", locales=locales_of(locale)
    )
    scope = None if requested is None else parse_scope(requested, exponent_of, policy.sensitivity, simplify=False)
    return prepare(CallContext(call, AGENT, policy, policy.tools["export"], NOW), scope)


def denied(prepared: Prepared) -> tuple[Check, ...]:
    assert prepared.refused is not None
    assert (prepared.refused.decision, prepared.refused.layer) == (Decision.DENIED, Layer.SCOPE)
    return tuple(check for check in prepared.layers[-1].checks if check.outcome is Outcome.DENIED)


def test_a_need_at_every_ceiling_is_inside() -> None:
    found = export()
    assert found.refused is None
    assert found.rests_on == ("grant:exports",)
    assert found.need is not None
    assert {key: limit.render() for key, limit in found.need.constraints.items()} == {
        "rows": {"max": {"amount": "100", "unit": "rows"}},
        "sensitivity": {"max": "internal"},
        "form": {"in": ["csv"]},
        "columns": {"in": ["id", "status"]},
        "cost": {"max": {"amount": "5.00", "currency": "EUR"}},
        "target": {"in": ["file"]},
        "ms": {"max": {"amount": "500", "unit": "ms"}},
    }


@pytest.mark.parametrize(
    ("changes", "constraint", "field", "actual", "expected", "sentence", "suggested"),
    [
        (
            {"limit": 101}, "rows", "/limit", 101, {"maximum": 100},
            "nothing in the policy grants this call: rows is 101 rows, at most 100 rows is granted", {"limit": 100},
        ),
        (
            {"level": "secret"}, "sensitivity", "/level", "secret", {"enum": ["public", "internal"]},
            "nothing in the policy grants this call: sensitivity is secret, at most internal is granted", {"level": "internal"},
        ),
        (
            {"form": "xml"}, "form", "/form", "xml", {"enum": ["csv", "json"]},
            "nothing in the policy grants this call: form is not among the values that are granted", None,
        ),
        (
            {"columns": ["id", "card"]}, "columns", "/columns", "[a list]", {"items": {"enum": ["id", "status"]}},
            "nothing in the policy grants this call: columns is not among the values that are granted", None,
        ),
        (
            {"cost": Decimal("5.01")}, "cost", "/cost", Decimal("5.01"), {"maximum": 5},
            "nothing in the policy grants this call: cost is 5.01 EUR, at most 5.00 EUR is granted", {"cost": 5},
        ),
        (
            {"cost": 1, "currency": "JPY"}, "cost", "/currency", "JPY", {"enum": ["EUR"]},
            "nothing in the policy grants this call: cost is in JPY, and nothing is granted in that", None,
        ),
    ],
)  # fmt: skip
def test_what_is_over_a_limit_is_cut_and_told(
    changes: dict[str, object],
    constraint: str,
    field: str,
    actual: object,
    expected: object,
    sentence: str,
    suggested: dict[str, object] | None,
) -> None:
    """S3.12: field, actual and expected in the argument's own type; a ceiling over an argument is suggested, whatever its unit."""
    found = export(**changes)
    (check,) = denied(found)
    assert (check.name, check.reason, check.field, check.actual, check.expected, check.message) == (
        "exports", "not_granted", field, actual, expected, sentence,
    )  # fmt: skip
    assert found.refused is not None
    assert found.refused.suggested == (None if suggested is None else {**CALL, **suggested})
    (cut,) = found.cuts
    assert (cut["constraint"], cut["by"], cut["reason"]) == (constraint, "grant:exports", "not_granted")
    assert {"requested", "granted"} <= cut.keys()
    assert found.refused.hint.next_action.kind is NextActionKind.CALL_AGAIN


def test_every_cut_is_told_and_all_ceilings_are_lowered_together() -> None:
    """S3.2: a refusal reports every check of the refusing layer."""
    found = export(limit=500, level="secret", cost=9)
    assert [(check.field, check.actual) for check in denied(found)] == [("/cost", 9), ("/limit", 500), ("/level", "secret")]
    assert found.cuts == (
        {
            "action": "export",
            "resource": "table:shop/orders",
            "constraint": "cost",
            "requested": {"max": {"amount": "9.00", "currency": "EUR"}},
            "granted": {"max": {"amount": "5.00", "currency": "EUR"}},
            "by": "grant:exports",
            "reason": "not_granted",
        },
        {
            "action": "export",
            "resource": "table:shop/orders",
            "constraint": "rows",
            "requested": {"max": {"amount": "500", "unit": "rows"}},
            "granted": {"max": {"amount": "100", "unit": "rows"}},
            "by": "grant:exports",
            "reason": "not_granted",
        },
        {
            "action": "export",
            "resource": "table:shop/orders",
            "constraint": "sensitivity",
            "requested": {"max": "secret"},
            "granted": {"max": "internal"},
            "by": "grant:exports",
            "reason": "not_granted",
        },
    )
    assert found.refused is not None
    assert found.refused.suggested == {**CALL, "limit": 100, "level": "internal", "cost": 5}
    assert found.refused.hint.message == "; ".join(str(check.message) for check in denied(found))
    assert (found.refused.hint.field, found.refused.hint.actual) == ("/cost", 9)


def test_where_something_else_was_cut_too_nothing_is_suggested() -> None:
    found = export(limit=500, form="xml")
    assert [check.field for check in denied(found)] == ["/form", "/limit"]
    assert found.refused is not None
    assert found.refused.suggested is None


def test_a_resource_that_nobody_grants_is_by_default() -> None:
    found = export(table="hr/people", limit=500)
    assert found.cuts == ({"action": "export", "resource": "table:hr/people", "by": "default", "reason": "not_granted"},)
    (check,) = denied(found)
    assert (check.name, check.field, check.actual, check.message) == ("default", None, ABSENT, "nothing in the policy grants this call")
    assert found.refused is not None
    assert (found.refused.suggested, found.refused.hint.next_action.kind) == (None, NextActionKind.STOP)


@pytest.mark.parametrize(
    ("changes", "name", "field"),
    [
        ({"limit": -1}, "rows", "/limit"),
        ({"level": "Internal"}, "sensitivity", "/level"),
        ({"level": ""}, "sensitivity", "/level"),
        ({"columns": []}, "columns", "/columns"),
        ({"table": "shop/*"}, "resource", "/table"),
        ({"table": "shop/../hr"}, "resource", "/table"),
        ({"table": ""}, "resource", "/table"),
        ({"table": "shop/cafe\u0301"}, "resource", "/table"),
    ],
)
def test_what_is_no_limit_or_resource_is_refused_and_never_dropped(changes: dict[str, object], name: str, field: str) -> None:
    """S3.10: not even a grant of everything lets in what can't be compared."""
    everything = bundle(
        grants='\n  - {grant: all, effect: permit, to: {roles: [agent]}, scope: [{action: export, resource: "table:**"}]}\n'
    )
    assert export(everything).refused is None
    found = export(everything, **changes)
    (check,) = denied(found)
    assert (check.name, check.reason, check.field) == (name, "not_granted", field)
    assert check.message
    assert "cafe" not in check.message
    assert found.need is None


def test_a_forbid_is_named_before_what_is_not_granted() -> None:
    """S5.3: whatever the order of the grants."""
    forbid = '\n  - {grant: no_orders, effect: forbid, to: {roles: [agent]}, scope: [{action: export, resource: "table:**/ord?rs"}]}'
    for grants in (GRANTS.rstrip() + forbid, forbid + GRANTS):
        found = export(bundle(grants=grants), limit=500)
        assert [(check.name, check.reason) for check in denied(found)] == [("no_orders", "forbidden"), ("exports", "not_granted")]
        assert [cut["by"] for cut in found.cuts] == ["grant:no_orders", "grant:exports"]
        assert found.refused is not None
        assert (found.refused.reason, found.refused.suggested, found.refused.hint.retryable) == ("forbidden", None, Retryable.NEVER)
        assert found.refused.hint.next_action.kind is NextActionKind.STOP


def test_a_time_window_that_is_over_is_a_cut() -> None:
    timed = GRANTS.replace("          rows:", "          time: {from: 2026-01-01T00:00:00Z, until: 2026-02-01T00:00:00Z}\n          rows:")
    found = export(bundle(grants=timed))
    (check,) = denied(found)
    assert (check.name, check.message) == ("exports", "nothing in the policy grants this call: it is granted at another time only")
    assert found.cuts[0]["granted"] == {"from": "2026-01-01T00:00:00.000Z", "until": "2026-02-01T00:00:00.000Z"}


class TestRequestedScope:
    """S3.1: it only narrows, and a call outside is denied, with the place that cut it."""

    def test_a_ceiling_of_an_entry(self) -> None:
        requested = [
            {"action": "export", "resource": "table:hr/*"},
            {"action": "export", "resource": "table:**", "constraints": {"rows": {"max": {"amount": "10", "unit": "rows"}}}},
        ]
        found = export(requested=requested)
        assert found.cuts == (
            {
                "action": "export",
                "resource": "table:shop/orders",
                "constraint": "rows",
                "requested": {"max": {"amount": "100", "unit": "rows"}},
                "granted": {"max": {"amount": "10", "unit": "rows"}},
                "by": "requested_scope",
                "reason": "outside_requested_scope",
                "pointer": "/requested_scope/1/constraints/rows",
            },
        )
        assert found.refused is not None
        assert (found.refused.reason, found.refused.suggested) == ("outside_requested_scope", {**CALL, "limit": 10})
        assert export(requested=requested, limit=10).refused is None

    def test_the_lower_of_two_ceilings_is_suggested(self) -> None:
        requested = [{"action": "export", "resource": "table:**", "constraints": {"rows": {"max": {"amount": "10", "unit": "rows"}}}}]
        found = export(requested=requested, limit=500)
        assert [cut["by"] for cut in found.cuts] == ["grant:exports", "requested_scope"]
        assert found.refused is not None
        assert found.refused.suggested == {**CALL, "limit": 10}

    @pytest.mark.parametrize(
        ("requested", "pointer"),
        [
            ([], None),
            ([{"action": "export", "resource": "table:hr/*"}], None),
            ([{"action": "refund", "resource": "table:**"}], None),
            (
                [{"action": "export", "resource": "table:**", "except": [{"action": "export", "resource": "table:shop/*"}]}],
                "/requested_scope/0",
            ),
        ],
    )
    def test_a_resource_outside(self, requested: list[dict[str, Any]], pointer: str | None) -> None:
        found = export(requested=requested)
        (cut,) = found.cuts
        assert (cut["by"], cut.get("pointer"), "constraint" in cut) == ("requested_scope", pointer, False)
        assert found.refused is not None
        assert (found.refused.reason, found.refused.hint.next_action.kind) == ("outside_requested_scope", NextActionKind.STOP)

    def test_except_leaves_the_rest(self) -> None:
        requested = [{"action": "export", "resource": "table:**", "except": [{"action": "export", "resource": "table:hr/**"}]}]
        assert export(requested=requested).refused is None

    def test_a_level_narrows(self) -> None:
        requested = [{"action": "export", "resource": "table:**", "constraints": {"sensitivity": {"max": "public"}}}]
        found = export(requested=requested)
        assert (found.refused and found.refused.suggested) == {**CALL, "level": "public"}
        assert export(requested=requested, level="public").refused is None

    def test_it_never_widens(self) -> None:
        assert export(requested=[{"action": "export", "resource": "table:**"}], limit=101).refused is not None


def test_the_sentences_are_in_the_callers_language() -> None:
    """S3.12"""
    found = export(limit=101, locale="zh-CN")
    assert denied(found)[0].message == "策略中没有任何授权允许本次调用：rows 为 101 rows，最多允许 100 rows"
    assert denied(export(table="..", locale="zh"))[0].message is not None
    assert "资源" in str(denied(export(table="..", locale="zh"))[0].message)


def test_money_over_the_shops_ceiling_suggests_the_ceiling() -> None:
    """API.md 0.3"""
    found = prepared_call(arguments=amount("15000.01"))
    assert found.refused is not None
    assert found.refused.suggested == {"order_id": "A-1001", "amount": 15000, "currency": "EUR", "cause": "damaged"}
    (check,) = denied(found)
    assert check.message == "nothing in the policy grants this call: amount is 15000.01 EUR, at most 15000.00 EUR is granted"


def test_a_currency_that_is_not_granted_names_those_that_are() -> None:
    policy = replace(POLICY, grants=tuple(replace(grant, scope=grant.scope[:2]) for grant in POLICY.grants))
    found = prepared_call(policy, arguments={**amount("5"), "currency": "KWD"})
    (check,) = denied(found)
    assert (check.field, check.actual, check.expected) == ("/currency", "KWD", {"enum": ["EUR"]})

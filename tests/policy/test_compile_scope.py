"""What a tool's `scope` and the grants' constraints may be: anything that could be dropped or never compared is a fault (S5.1, S6.3)."""

from __future__ import annotations

import pytest

from app.domain.errors import PolicyInvalid
from app.policy.compile import compile_bundle
from tests.guards.judging import FILES
from tests.guards.test_scope import GRANTS, TOOL, bundle

FORBID = '\n  - {grant: stop, effect: forbid, to: {roles: [agent]}, scope: [{action: export, resource: "table:**", constraints: {%s}}]}\n'


def faults(tool: str = TOOL, grants: str = GRANTS) -> list[str]:
    with pytest.raises(PolicyInvalid) as refused:
        bundle(tool, grants)
    return [str(fault) for fault in refused.value.faults]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'rows: {max: {amount: "{args.limit}", unit: rows}}',
            'rows: {max: {amount: "{args.limit}", unit: row}}',
            "a count has an `amount`",
        ),
        (
            'rows: {max: {amount: "{args.limit}", unit: rows}}',
            'rows: {max: {amount: "{args.limit}"}}',
            "a count has an `amount` and a `unit`",
        ),
        ('amount: "{args.limit}", unit: rows', 'amount: "{args.form}", unit: rows', "`args.form` isn't a whole number"),
        ('amount: "{args.limit}", unit: rows', 'amount: "{args.limitt}", unit: rows', "`args.limitt` isn't a variable"),
        ('rows: {max: {amount: "{args.limit}", unit: rows}}', 'rows: {max: "{args.limit}"}', "isn't a ceiling; expected an amount such as"),
        ('amount: "500", unit: ms', 'amount: "-5", unit: ms', "`-5` isn't an amount of ms"),
        ("required: [table, limit,", "required: [table,", "`args.limit` is optional, and what a call touches can't be left out"),
        ("required: [table, limit, level,", "required: [table, limit,", "`args.level` is optional"),
        ('sensitivity: {max: "{args.level}"}', 'sensitivity: {in: "{args.level}"}', "`sensitivity` is a ceiling"),
        ('sensitivity: {max: "{args.level}"}', "sensitivity: {max: top}", "a level of sensitivity is one of public, internal, secret"),
        ('sensitivity: {max: "{args.level}"}', 'sensitivity: {max: "{args.limit}"}', "`args.limit` isn't a string; expected one of public"),
        ("level: {type: string}", "level: {type: string, enum: [public, top]}", "`args.level` may be `top`, which isn't a level"),
        ('form: {in: "{args.form}"}', 'form: {in: "{args.limit}"}', "isn't made of strings; expected one string, one list of strings"),
        ('form: {in: "{args.form}"}', "form: {in: []}", "isn't made of strings"),
        ('form: {in: "{args.form}"}', "form: {in: [1]}", "isn't made of strings"),
        ('form: {in: "{args.form}"}', 'form: {in: a, max: "{args.cost}"}', "has not exactly one of `max` and `in`"),
        ('form: {in: "{args.form}"}', 'time: {in: "{args.form}"}', "`time` is the moment of the decision and not of the call"),
    ],
)
def test_what_could_not_be_a_limit_is_a_fault(old: str, new: str, said: str) -> None:
    """PS-04, PS-15: type errors are found when the policy is saved."""
    assert old in TOOL
    found = faults(TOOL.replace(old, new))
    assert any(fault.startswith("tools/export.yaml:") and said in fault for fault in found), found


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("rows: {in: [many]}", "`rows` isn't of the kind that calls of `export` have"),
        ('rows: {max: {amount: "5", unit: bytes}}', "`rows` isn't of the kind that calls of `export` have"),
        ('cost: {max: {amount: "5", unit: calls}}', "`cost` isn't of the kind that calls of `export` have"),
        ('form: {max: {amount: "5.00", currency: EUR}}', "`form` isn't of the kind that calls of `export` have"),
        ("target: {max: {amount: '5', unit: ms}}", "`target` isn't of the kind that calls of `export` have"),
        ("fomr: {in: [csv]}", "no tool that needs `export` says its `fomr`; expected columns, cost, form, ms, rows, sensitivity, target"),
        ("sensitivity: {max: top}", "a level of sensitivity is one of public, internal, secret"),
        ("sensitivity: {in: [internal]}", "`sensitivity` has a level as its `max`"),
    ],
)
def test_a_grants_constraint_that_no_call_compares_with_is_a_fault(constraint: str, said: str) -> None:
    """PS-15, PS-06: a forbid on the wrong kind, or on a misspelt name, isn't saved and then dropped."""
    for grants in (GRANTS.rstrip() + FORBID % constraint, (FORBID % constraint).replace("forbid", "permit")):
        assert any(said in fault for fault in faults(grants=grants))


def test_an_exception_is_held_to_the_same() -> None:
    excepted = GRANTS.replace(
        'resource: "table:shop/*"',
        'resource: "table:shop/*"\n        except: [{action: export, resource: "table:**", constraints: {row: {in: [a]}}}]',
    )
    assert any("no tool that needs `export` says its `row`" in fault for fault in faults(grants=excepted))


def test_currencies_levels_and_windows_of_grants_are_read() -> None:
    bundle(grants=GRANTS.rstrip() + FORBID % 'cost: {max: {amount: "5", currency: JPY}}, sensitivity: {max: public}')
    bundle(grants=GRANTS.rstrip() + FORBID % "time: {from: 2026-01-01T00:00:00Z, until: 2026-02-01T00:00:00Z}")


def test_free_globs_are_for_forbids_only() -> None:
    """S5.1"""
    grants = '\n  - {grant: odd, effect: %s, to: {roles: [agent]}, scope: [{action: export, resource: "table:**/a*b*c"}]}\n'
    bundle(grants=grants % "forbid")
    assert any("write one `*` at most" in fault for fault in faults(grants=grants % "permit"))


def test_a_level_that_is_named_twice_is_a_fault() -> None:
    head = FILES["bundle.yaml"].replace("locales: [en, zh]", "locales: [en, zh], sensitivity: [low, high, low]")
    with pytest.raises(PolicyInvalid, match="the level `low` is named twice"):
        compile_bundle({**FILES, "bundle.yaml": head})

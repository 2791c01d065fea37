"""CEL expressions: typed at compile, exact at evaluation, and an error is never a yes (SPEC S6.2)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from app.policy.expressions import (
    SOURCE_CHARS_MAX,
    Environment,
    ExpressionFailed,
    ExpressionInvalid,
    ValueType,
    conforms,
    names_used,
)

ENVIRONMENT = Environment(
    {
        "args.amount.minor": ValueType.INT,
        "args.amount.currency": ValueType.STRING,
        "args.note": ValueType.DYN,
        "order.status": ValueType.STRING,
        "open.minor": ValueType.INT,
        "share": ValueType.DOUBLE,
        "roles": ValueType.STRINGS,
        "now": ValueType.TIMESTAMP,
        "after": ValueType.ROWS,
        "flag": ValueType.BOOL,
    },
    {"args.note": "a text"},
)
VALUES: dict[str, object] = {
    "args.amount.minor": 12990,
    "args.amount.currency": "EUR",
    "args.note": None,
    "order.status": "paid",
    "open.minor": 12990,
    "share": 0.5,
    "roles": ["agent"],
    "now": datetime(2026, 12, 1, tzinfo=UTC),
    "after": {"shop.orders": [{"paid_minor": 5, "refunded_minor": 4}]},
    "flag": True,
}


def evaluate(source: str, expected: ValueType = ValueType.BOOL, **changed: object) -> object:
    values = {**VALUES, **{key.replace("__", "."): value for key, value in changed.items()}}
    return ENVIRONMENT.compile(source, expected).evaluate(ENVIRONMENT.bind(values))


@pytest.mark.parametrize(
    ("source", "expected", "value"),
    [
        ("args.amount.minor <= open.minor", ValueType.BOOL, True),
        ("args.amount.minor < open.minor", ValueType.BOOL, False),
        ("open.minor - 1", ValueType.INT, 12989),
        ("args.amount.currency", ValueType.STRING, "EUR"),
        ('order.status in ["paid", "shipped"]', ValueType.BOOL, True),
        ('roles.exists(role, role == "agent")', ValueType.BOOL, True),
        ('after["shop.orders"].all(o, o.refunded_minor <= o.paid_minor)', ValueType.BOOL, True),
        ('now < timestamp("2027-01-01T00:00:00Z")', ValueType.BOOL, True),
        ("double(args.amount.minor) / double(20000)", ValueType.DOUBLE, 0.6495),
        ("roles", ValueType.STRINGS, ["agent"]),
        ('args.note == null || args.note == "x"', ValueType.BOOL, True),
        ("args.amount.minor\n  <= open.minor", ValueType.BOOL, True),
    ],
)
def test_an_expression_gives_its_value(source: str, expected: ValueType, value: object) -> None:
    assert evaluate(source, expected) == value


@pytest.mark.parametrize(
    ("source", "expected", "line", "column", "message"),
    [
        ("args.amuont.minor <= 5", ValueType.BOOL, 1, 12, "undeclared reference to 'args.amuont.minor'"),
        ("1 == 1\n  && foo", ValueType.BOOL, 2, 6, "undeclared reference to 'foo'"),
        ("args.amount.minor > 3.5", ValueType.BOOL, 1, 19, "found no matching overload for '_>_' applied to '(int, double)'"),
        ("args.amount.currency > 3", ValueType.BOOL, 1, 22, "found no matching overload for '_>_' applied to '(string, int)'"),
        ('"EUR" in args.amount.currency', ValueType.BOOL, 1, 7, "found no matching overload for '@in' applied to '(string, string)'"),
        ('"a" + "b" == "ab"', ValueType.BOOL, 1, 5, "found no matching overload for '_+_' applied to '(string, string)'"),
        ("[1] + [2] == [1]", ValueType.BOOL, 1, 5, "found no matching overload for '_+_' applied to '(list(int), list(int))'"),
        ("args.amount.minor", ValueType.BOOL, 1, 1, "the result has to be bool, and is int"),
        ("args.note", ValueType.BOOL, 1, 1, "the result has to be bool, and is dyn"),
        ("1", ValueType.DOUBLE, 1, 1, "the result has to be double, and is int"),
        ("", ValueType.BOOL, 1, 1, f"an expression has 1 to {SOURCE_CHARS_MAX} characters, this one has 0"),
    ],
)
def test_a_mistake_is_found_when_it_is_compiled(source: str, expected: ValueType, line: int, column: int, message: str) -> None:
    """PS-15, PS-04: a misspelt name, int against double, `in` on a text."""
    with pytest.raises(ExpressionInvalid) as raised:
        ENVIRONMENT.compile(source, expected)
    assert (str(raised.value), raised.value.line, raised.value.column) == (message, line, column)


@pytest.mark.parametrize(
    "source", ["[1].map(x, x) == [1]", "[1].filter(x, x > 0) == [1]", "has(args.note)", "1 ++", "cel.bind(x, 1, x == 1)"]
)
def test_what_can_grow_or_mislead_is_not_there(source: str) -> None:
    with pytest.raises(ExpressionInvalid):
        ENVIRONMENT.compile(source, ValueType.BOOL)


def test_an_expression_has_a_largest_length() -> None:
    ENVIRONMENT.compile("flag" + " " * (SOURCE_CHARS_MAX - 4), ValueType.BOOL)
    with pytest.raises(ExpressionInvalid, match="has 4097"):
        ENVIRONMENT.compile("flag" + " " * (SOURCE_CHARS_MAX - 3), ValueType.BOOL)


@pytest.mark.parametrize(
    "source", ["args.note.size() < 3", "args.note == null || args.note < 3", 'order.status.matches("(")', "args.note ? true : false"]
)
def test_a_dry_run_finds_what_the_types_of_optional_arguments_break(source: str) -> None:
    with pytest.raises(ExpressionInvalid, match="fails on values of the declared types"):
        ENVIRONMENT.compile(source, ValueType.BOOL)


@pytest.mark.parametrize(
    ("source", "expected", "changed"),
    [
        ("1 / (open.minor - 12990) == 0", ValueType.BOOL, {}),
        ("open.minor + 9223372036854775807 > 0", ValueType.BOOL, {}),
        ('double({"EUR": 1}[args.amount.currency]) == 1.0', ValueType.BOOL, {"args__amount__currency": "XYZ"}),
        ('after["shop.nothing"].size() == 0', ValueType.BOOL, {}),
        ('after["shop.orders"].all(o, o.nothing == 1)', ValueType.BOOL, {}),
        ("share / 0.0", ValueType.DOUBLE, {}),
        ("0.0 / (share - 0.5)", ValueType.DOUBLE, {}),
        ("share", ValueType.DOUBLE, {"share": math.nan}),
        ("share", ValueType.DOUBLE, {"share": math.inf}),
        ("flag", ValueType.BOOL, {"flag": "true"}),
        ("flag", ValueType.BOOL, {"flag": 1}),
        ("open.minor", ValueType.INT, {"open__minor": True}),
        ("open.minor", ValueType.INT, {"open__minor": 2**63}),
        ("open.minor > 3", ValueType.BOOL, {"open__minor": 2**63}),
        ("open.minor > 3", ValueType.BOOL, {"open__minor": Decimal(5)}),
        ("open.minor > 3", ValueType.BOOL, {"open__minor": "5"}),
        ('after["shop.orders"].all(o, o.x > 3)', ValueType.BOOL, {"after": {"shop.orders": [{"x": Decimal(5)}]}}),
        ('after["shop.orders"].all(o, after["shop.orders"].all(p, true))', ValueType.BOOL, {"after": {"shop.orders": [{}] * 2000}}),
    ],
)
def test_an_error_is_a_failure_and_never_a_value(source: str, expected: ValueType, changed: dict[str, object]) -> None:
    """PS-09, S3.10: CEL gives an error as a truthy string; nothing of it may pass for true."""
    with pytest.raises(ExpressionFailed):
        evaluate(source, expected, **changed)


@pytest.mark.parametrize("source", ["open.minor", "open.minor > 3", "open.minor > 3 && flag"])
def test_a_variable_without_a_value_is_a_failure(source: str) -> None:
    expected = ValueType.INT if source == "open.minor" else ValueType.BOOL
    with pytest.raises(ExpressionFailed):
        ENVIRONMENT.compile(source, expected).evaluate(ENVIRONMENT.bind({"flag": True}))


def test_a_pathological_pattern_is_linear() -> None:
    assert evaluate('order.status.matches("^(a+)+$")', order__status="a" * 50_000 + "!") is False


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("args.amount.minor <= open.minor", {"args.amount.minor", "open.minor"}),
        ('order.status == "open.minor" // open.minor', {"order.status"}),
        ("'it\\'s flag' == order.status", {"order.status"}),
        ('r"\\" == order.status', {"order.status"}),
        ('"""open.minor "quoted" """ == order.status', {"order.status"}),
        ("order.status.size() > 1", {"order.status"}),
        ("args . amount . minor > 1", {"args.amount.minor"}),
        ("roles.exists(r, r == order.status)", {"roles", "order.status"}),
        ('after["shop.orders"][0].flag == 1', {"after"}),
        (".flag", {"flag"}),
        ("flag && .share > 1.0", {"flag", "share"}),
        ("[1].flag", set()),
        ("1 > 2", set()),
    ],
)
def test_an_expression_says_what_it_reads(source: str, names: set[str]) -> None:
    assert names_used(source, ENVIRONMENT.variables) == names


def test_a_raw_string_that_ends_in_a_backslash_hides_nothing() -> None:
    """In CEL a raw string may not end there either, so what follows is read the same way by both."""
    with pytest.raises(ExpressionInvalid):
        ENVIRONMENT.compile('r"\\" == order.status', ValueType.BOOL)


@pytest.mark.parametrize(
    ("value", "kind", "right"),
    [
        (True, ValueType.BOOL, True), (1, ValueType.BOOL, False), (1, ValueType.INT, True), (True, ValueType.INT, False),
        (2**63 - 1, ValueType.INT, True), (2**63, ValueType.INT, False), (-(2**63), ValueType.INT, True), (1.0, ValueType.DOUBLE, True),
        (1, ValueType.DOUBLE, False), ("a", ValueType.STRING, True), (None, ValueType.STRING, False), (None, ValueType.DYN, True),
        (datetime(2026, 1, 1, tzinfo=UTC), ValueType.TIMESTAMP, True),
        (datetime(2026, 1, 1), ValueType.TIMESTAMP, False),  # noqa: DTZ001  # the naive one is the case
        (["a"], ValueType.STRINGS, True), (["a", 1], ValueType.STRINGS, False),
        ([1], ValueType.INTS, True), ([True], ValueType.BOOLS, True),
        ({"t": []}, ValueType.ROWS, True), ({"t": {}}, ValueType.ROWS, False),
    ],
)  # fmt: skip
def test_a_value_is_exactly_of_its_type(value: object, kind: ValueType, right: bool) -> None:
    assert conforms(value, kind) is right


@pytest.mark.parametrize("name", ["1a", "a.", "a..b", "a-b", "a b", "", "a: {x: 1}"])
def test_a_variable_has_a_plain_name(name: str) -> None:
    with pytest.raises(ExpressionInvalid, match="can't be the name of a variable"):
        Environment({name: ValueType.INT})

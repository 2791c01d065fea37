"""Every kind of constraint and `except`, against brute force over a small universe (S5.1, S5.2).

The universe has a point for each difference that the entries below can have: values at, between and outside of all that they name.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import coverage
from app.domain.coverage import escapes
from app.domain.quantity import Quantity
from app.domain.scope import (
    Ceiling,
    Constraint,
    Entry,
    Level,
    LevelCeiling,
    NamedEntry,
    OneOf,
    ScopeError,
    Window,
    concrete_resource,
    contains,
    covers,
    decide_scope,
    meet,
    parse_entry,
    parse_pattern,
    parse_scope,
    render_entry,
)

EXPONENTS = {"EUR": 2, "JPY": 0}
LEVELS = ("public", "internal", "secret")
NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
MOMENTS = [NOW + timedelta(hours=hours) for hours in range(4)]


@dataclass(frozen=True)
class Point:
    resource: str
    amount: tuple[str, int] | None
    cause: str | None
    rows: int | None
    sensitivity: str | None
    time: datetime | None


def level(name: str) -> LevelCeiling:
    return LevelCeiling(Level(LEVELS, LEVELS.index(name)))


def rows(count: int) -> Ceiling:
    return Ceiling(Quantity(count, "rows", 0))


def money(minor: int, currency: str = "EUR") -> Ceiling:
    return Ceiling(Quantity(minor, currency, EXPONENTS[currency]))


RESOURCES = ["t:A", "t:B", "t:AB", "t:A/B", "t:B/A", "t:B/B", "t:A/B/C", "t:B/A/C"]
AMOUNTS = [None, ("EUR", 5), ("EUR", 7), ("EUR", 9), ("JPY", 5)]
CAUSES = [None, "late", "lost"]
ROWS = [None, 10, 20]
SENSITIVITIES = [None, *LEVELS]
TIMES = [None, MOMENTS[0], MOMENTS[1]]
UNIVERSE = [Point(*parts) for parts in itertools.product(RESOURCES, AMOUNTS, CAUSES, ROWS, SENSITIVITIES, TIMES)]
OF_RESOURCE = {
    "t:A": {"t:A"},
    "t:*": {"t:A", "t:B", "t:AB"},
    "t:A*": {"t:A", "t:AB"},
    "t:**": set(RESOURCES),
    "t:A/**": {"t:A/B", "t:A/B/C"},
    "t:*/B": {"t:A/B", "t:B/B"},
}
"""What each pattern hits, written down by hand."""


def has_value(constraint: Constraint, value: object) -> bool:
    match constraint:
        case Ceiling(quantity) if quantity.unit == "rows":
            return isinstance(value, int) and value <= quantity.minor
        case Ceiling(quantity):
            return isinstance(value, tuple) and value[0] == quantity.unit and value[1] <= quantity.minor
        case LevelCeiling(ceiling):
            return value is not None and LEVELS.index(str(value)) <= ceiling.rank
        case OneOf(values):
            return value in values
        case Window(from_, until):
            return isinstance(value, datetime) and from_ <= value < until


@cache
def where(key: str, wanted: object) -> int:
    """Give the points, as a set of bits, whose value at `key` is one of a constraint, or is just that."""
    found = [
        has_value(wanted, getattr(point, key)) if isinstance(wanted, Constraint) else getattr(point, key) == wanted for point in UNIVERSE
    ]
    return sum(1 << index for index, inside in enumerate(found) if inside)


@cache
def of_pattern(text: str) -> int:
    return sum(where("resource", each) for each in OF_RESOURCE[text])


def points(*entries: Entry) -> int:
    """Give the points of a union of entries, by the definition."""
    union = 0
    for one in entries:
        mine = of_pattern(one.resource.text)
        for key, limit in one.constraints.items():
            mine &= where(key, limit)
        union |= mine & ~points(*one.excluded)
    return union


limits = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.sampled_from([money(5), money(7), money(5, "JPY")]),
        "cause": st.sampled_from([OneOf(frozenset({"late"})), OneOf(frozenset({"lost"})), OneOf(frozenset({"late", "lost"}))]),
        "rows": st.sampled_from([rows(10), rows(20)]),
        "sensitivity": st.sampled_from([level(name) for name in LEVELS]),
        "time": st.sampled_from([Window(MOMENTS[0], MOMENTS[1]), Window(MOMENTS[1], MOMENTS[2]), Window(MOMENTS[0], MOMENTS[2])]),
    },
)
bare = st.builds(Entry, st.just("read"), st.sampled_from(sorted(OF_RESOURCE)).map(parse_pattern), limits)


def parsed(one: Entry, excluded: Sequence[Entry]) -> Entry | None:
    try:
        return parse_entry(render_entry(replace(one, excluded=tuple(excluded))), EXPONENTS.get, LEVELS)
    except ScopeError:
        return None


entries = st.builds(parsed, bare, st.lists(bare, max_size=2)).filter(lambda one: one is not None)


@given(bare, st.lists(bare, max_size=3))
def test_an_entry_is_refused_just_where_nothing_is_left_of_it(one: Entry, excluded: list[Entry]) -> None:
    left = points(one) & ~points(*excluded)
    read = parsed(one, excluded)
    assert (points(read) if read is not None else 0) == left
    assert (read is None) == (not left)


@given(entries, entries)
def test_the_meet_is_the_intersection(a: Entry, b: Entry) -> None:
    met = meet(a, b)
    if met is None:
        assert not points(a) & points(b)
        return
    if met.resource.text in OF_RESOURCE:
        assert points(met) == points(a) & points(b)
    assert points(a) & points(b)
    assert contains(a, met)
    assert contains(b, met)
    assert met == meet(b, a)


@given(entries, entries, entries)
def test_the_meet_associates_and_is_idempotent(a: Entry, b: Entry, c: Entry) -> None:
    ab, bc = meet(a, b), meet(b, c)
    assert (meet(ab, c) if ab else None) == (meet(a, bc) if bc else None)
    assert meet(a, a) == a


@given(entries, entries)
def test_containment_is_exact(outer: Entry, inner: Entry) -> None:
    assert contains(outer, inner) == (not points(inner) & ~points(outer))


@given(entries, st.lists(entries, max_size=3))
def test_cover_by_a_union_is_exact(inner: Entry, outers: list[Entry]) -> None:
    assert covers(outers, inner) == (not points(inner) & ~points(*outers))


@given(entries)
def test_an_entry_reads_back_from_its_wire_form(one: Entry) -> None:
    assert parse_entry(render_entry(one), EXPONENTS.get, LEVELS) == one


needs = st.builds(
    lambda resource, constraints: Entry("read", concrete_resource(resource), constraints),
    st.sampled_from(["t:A", "t:B", "t:AB"]),
    st.fixed_dictionaries(
        {"sensitivity": st.sampled_from([level(name) for name in LEVELS])},
        optional={"amount": st.sampled_from([money(5), money(7)]), "rows": st.sampled_from([rows(10), rows(20)])},
    ),
)
grants = st.lists(st.builds(NamedEntry, st.sampled_from(["g1", "g2", "g3"]), entries, st.booleans()), max_size=4)


def needed(need: Entry, now: datetime) -> int:
    """Give the need's points at the moment of the decision."""
    mine = where("resource", need.resource.text) & where("time", now if now in TIMES else None)
    for key, limit in need.constraints.items():
        mine &= where(key, limit)
    return mine


@given(needs, grants, grants, st.none() | st.lists(entries, max_size=3), st.sampled_from([MOMENTS[0], MOMENTS[1], MOMENTS[3]]))
def test_the_verdict_is_what_brute_force_says(
    need: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], requested: list[Entry] | None, now: datetime
) -> None:
    """S2: requested ∩ (standing ∪ needs_approval) − forbid, no more and no less, time and sensitivity included."""
    wanted = needed(need, now)
    standing = points(*(named.entry for named in permits if not named.needs_approval))
    granted = points(*(named.entry for named in permits))
    if wanted & points(*(named.entry for named in forbids)):
        expected = "forbidden"
    elif wanted & ~granted:
        expected = "not_granted"
    elif requested is not None and wanted & ~points(*requested):
        expected = "outside_requested_scope"
    else:
        expected = "permitted" if not wanted & ~standing else "needs_approval"
    verdict = decide_scope(need, permits, forbids, requested, now)
    assert verdict.outcome == expected
    assert (verdict.cuts == ()) == (expected in ("permitted", "needs_approval"))
    for cut in verdict.cuts:
        assert cut.reason in ("forbidden", "not_granted", "outside_requested_scope")
        assert cut.constraint is None or cut.granted is not None
        if cut.constraint not in (None, "time") and cut.requested is not None and cut.granted is not None:
            assert not cut.requested.inside(cut.granted)


class TestSensitivity:
    def test_it_meets_to_the_lower_level(self) -> None:
        assert level("secret").meet(level("internal")) == level("internal")
        assert level("public").meet(level("internal")) == level("public")
        assert level("internal").inside(level("internal"))
        assert not level("secret").inside(level("internal"))

    def test_levels_of_another_order_do_not_compare(self) -> None:
        """Two versions of a bundle may order the same names differently."""
        other = LevelCeiling(Level(("secret", "internal", "public"), 0))
        assert level("public").meet(other) is None
        assert not level("public").inside(other)
        assert not covers([Entry("read", parse_pattern("t:*"), {"sensitivity": other})], Entry("read", parse_pattern("t:A"), {}))

    def test_it_is_read_and_written_by_its_name(self) -> None:
        document = {"action": "read", "resource": "file:a/**", "constraints": {"sensitivity": {"max": "internal"}}}
        entry = parse_entry(document, EXPONENTS.get, LEVELS)
        assert entry.constraints["sensitivity"] == level("internal")
        assert render_entry(entry) == document

    @pytest.mark.parametrize(
        ("limit", "levels", "detail", "place"),
        [
            ({"max": "Internal"}, LEVELS, "a level of sensitivity is one of public, internal, secret", "/max"),
            ({"max": 1}, LEVELS, "a level of sensitivity is one of public, internal, secret", "/max"),
            ({"max": {"amount": "1", "unit": "rows"}}, LEVELS, "a level of sensitivity is one of public, internal, secret", "/max"),
            ({"max": "internal"}, (), "the policy names no levels of sensitivity; leave this out", "/max"),
            ({"in": ["internal"]}, LEVELS, "`sensitivity` has a level as its `max`", ""),
        ],
    )
    def test_what_is_no_level_is_refused_and_the_levels_named(
        self, limit: object, levels: tuple[str, ...], detail: str, place: str
    ) -> None:
        with pytest.raises(ScopeError) as refused:
            parse_scope([{"action": "read", "resource": "t:*", "constraints": {"sensitivity": limit}}], EXPONENTS.get, levels)
        assert (refused.value.pointer, refused.value.detail) == ("/0/constraints/sensitivity" + place, detail)

    def test_another_key_has_no_level(self) -> None:
        with pytest.raises(ScopeError, match="a level is the `max` of `sensitivity` only"):
            parse_entry({"action": "read", "resource": "t:*", "constraints": {"form": {"max": "internal"}}}, EXPONENTS.get, LEVELS)


class TestHostileScope:
    """S5.2 "cheap": what a caller sends is bounded by counted work, not by a clock."""

    @staticmethod
    def calls_of(work: Callable[[], object]) -> int:
        """Count the Python calls that some work takes; the count is the same on every machine."""
        count = 0

        def tracer(frame: Any, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(tracer)
        try:
            work()
        finally:
            sys.setprofile(None)
        return count

    @staticmethod
    def part(number: int, keys: int, resource: str) -> dict[str, object]:
        chosen = {f"k{(number * 7 + key) % 40}": {"in": [f"v{(number + key) % 5}", f"w{number}"]} for key in range(keys)}
        return {"action": "refund", "resource": resource, "constraints": chosen}

    @pytest.mark.parametrize("keys", [1, 2, 3, 15])
    @pytest.mark.parametrize("resource", ["order:*", "order:A", "order:A*1"])
    def test_thirty_two_entries_with_sixteen_exceptions_each(self, keys: int, resource: str) -> None:
        documents = []
        for number in range(32):
            excepted = [self.part(number * 16 + hole, keys, resource) for hole in range(16)]
            documents.append({"action": "refund", "resource": resource, "except": excepted})
        need = Entry("refund", concrete_resource("order:A1" if "*1" in resource else "order:A"), {"amount": money(500)})
        requested = parse_scope(documents, EXPONENTS.get, simplify=False)
        permits = [NamedEntry("all", Entry("refund", parse_pattern("order:*")))]
        taken = self.calls_of(lambda: decide_scope(need, permits, [], requested, NOW))
        assert taken < 250_000
        assert self.calls_of(lambda: parse_scope(documents, EXPONENTS.get, simplify=False)) < 250_000

    def test_long_patterns_in_a_requested_scope_cost_what_they_weigh(self) -> None:
        long = ["a" * length + "*" + "b" * (490 - length) for length in range(0, 480, 15)]
        documents = [
            {
                "action": "refund",
                "resource": f"order:{text}",
                "except": [{"action": "refund", "resource": f"order:{other}"} for other in long[:16]],
            }
            for text in long
        ]
        requested = parse_scope(documents, EXPONENTS.get, simplify=False)
        need = Entry("refund", concrete_resource("order:" + "a" * 490 + "b" * 10), {"amount": money(500)})
        permits = [NamedEntry("all", Entry("refund", parse_pattern("order:*")))]
        assert self.calls_of(lambda: decide_scope(need, permits, [], requested, NOW)) < 200_000

    def test_a_search_that_is_too_long_says_that_it_escapes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Covering a cube of many dimensions by boxes is hard for everybody; past the steps it is a no, which is the safe side."""
        pairs = list(itertools.combinations(range(14), 2))
        outers = [
            Entry("read", parse_pattern("t:A"), {f"k{a}": OneOf(frozenset({x})), f"k{b}": OneOf(frozenset({y}))})
            for (a, b), (x, y) in zip(pairs, itertools.cycle(itertools.product("01", repeat=2)), strict=False)
        ]
        inner = Entry("read", parse_pattern("t:A"), {f"k{key}": OneOf(frozenset("01")) for key in range(14)})
        monkeypatch.setattr(coverage, "STEPS_MAX", 20)
        assert escapes(inner, outers)

    def test_an_entry_of_which_nothing_is_left_is_empty_and_no_fault_for_a_caller(self) -> None:
        """S3.1: `except` may take everything; then nothing is inside."""
        document = {"action": "refund", "resource": "order:*", "except": [{"action": "refund", "resource": "order:**"}]}
        requested = parse_scope([document], EXPONENTS.get, simplify=False)
        need = Entry("refund", concrete_resource("order:A"), {})
        permits = [NamedEntry("all", Entry("refund", parse_pattern("order:*")))]
        assert decide_scope(need, permits, [], requested, NOW).outcome == "outside_requested_scope"

"""The scope algebra and the verdict for one call (S5, S2 "Effective permission", API.md 0.3)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import coverage
from app.domain.coverage import escapes
from app.domain.quantity import Quantity
from app.domain.resource import meet_resources
from app.domain.scope import (
    Ceiling,
    Constraint,
    Cut,
    Entry,
    Level,
    LevelCeiling,
    NamedEntry,
    OneOf,
    ScopeError,
    ScopeVerdict,
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
    spelled_out,
)

NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
EXPONENTS = {"EUR": 2, "JPY": 0, "KWD": 3}
HOUR = timedelta(hours=1)


def entry(resource: str, action: str = "refund", excluding: Sequence[Entry] = (), **constraints: Ceiling | OneOf | Window) -> Entry:
    bare = Entry(action, parse_pattern(resource), constraints)
    return Entry(bare.action, bare.resource, bare.constraints, tuple(excluding))


def eur(minor: int) -> Ceiling:
    return Ceiling(Quantity(minor, "EUR", 2))


def jpy(minor: int) -> Ceiling:
    return Ceiling(Quantity(minor, "JPY", 0))


def one_of(*values: str) -> OneOf:
    return OneOf(frozenset(values))


# --- brute force: every point of a small universe ---


@dataclass(frozen=True)
class Point:
    action: str
    resource: str
    amount: tuple[str, int] | None
    cause: str | None


AMOUNTS = [None, ("EUR", 0), ("EUR", 5), ("EUR", 7), ("EUR", 9), ("JPY", 5), ("JPY", 7), ("USD", 1)]
CAUSES = [None, "damaged", "goodwill", "late", "other"]
RESOURCES = [
    "order:A",
    "order:B",
    "order:AB",
    "order:ABA",
    "order:ABBA",
    "order:ABCA",
    "order:ACA",
    "order:ACBA",
    "order:A/A",
    "order:A/B",
    "order:B/A",
    "order:C/A/B",
    "order:A/B/C",
    "order:CA",
    "order:BA",
    "order:CBA",
    "order:ABC",
    "order:AC",
    "file:A",
]
UNIVERSE = [Point(*parts) for parts in itertools.product(["refund", "read"], RESOURCES, AMOUNTS, CAUSES)]


def has(one: Entry, point: Point) -> bool:
    """Say whether a point lies in an entry, by the definition and without the code under test but for patterns."""
    resource = concrete_resource(point.resource)
    if one.action != point.action or meet_resources(one.resource, resource) != resource:
        return False
    for key, constraint in one.constraints.items():
        value = {"amount": point.amount, "cause": point.cause}[key]
        match constraint:
            case Ceiling(quantity):
                inside = isinstance(value, tuple) and value[0] == quantity.unit and value[1] <= quantity.minor
            case OneOf(values):
                inside = value in values
            case Window():
                raise AssertionError
        if not inside:
            return False
    return not any(has(part, point) for part in one.excluded)


def points(*entries: Entry) -> set[Point]:
    return {point for point in UNIVERSE if any(has(one, point) for one in entries)}


amounts = st.sampled_from([eur(5), eur(7), jpy(5), jpy(7)])
causes = st.sets(st.sampled_from(["damaged", "goodwill", "late"]), min_size=1).map(lambda values: OneOf(frozenset(values)))
resources = st.sampled_from(
    ["order:*", "order:A*", "order:*A", "order:A", "order:AB*", "order:*BA", "order:**", "order:A/**", "order:*/*", "file:*"]
)
constraint_maps = st.fixed_dictionaries({}, optional={"amount": amounts, "cause": causes})
bare_entries = st.builds(Entry, st.sampled_from(["refund", "refund", "refund", "read"]), resources.map(parse_pattern), constraint_maps)


def _parsed(bare: Entry, excluded: list[Entry]) -> Entry | None:
    """Go through the only door: what `parse_entry` lets in, or None."""
    document = render_entry(Entry(bare.action, bare.resource, bare.constraints, tuple(excluded)))
    try:
        return parse_entry(document, EXPONENTS.get)
    except ScopeError:
        return None


entries = st.builds(_parsed, bare_entries, st.lists(bare_entries, max_size=3)).filter(lambda one: one is not None)
needs = st.builds(
    lambda action, resource, amount, causes: Entry(
        action, concrete_resource(resource), {"amount": amount, "cause": OneOf(frozenset({causes}))}
    ),
    st.sampled_from(["refund", "read"]),
    st.sampled_from(["order:A", "order:AB", "order:B"]),
    amounts,
    st.sampled_from(["damaged", "goodwill"]),
)


@given(entries, entries)
def test_the_meet_is_the_intersection_and_never_widens(a: Entry, b: Entry) -> None:
    """S5.2, S4.5: against brute force, and no empty set is left standing as an entry."""
    met = meet(a, b)
    assert (points(met) if met else set()) == points(a) & points(b)
    if met is not None:
        assert contains(a, met)
        assert contains(b, met)
        assert escapes(met, [])


@given(entries, entries)
def test_the_meet_commutes(a: Entry, b: Entry) -> None:
    assert meet(a, b) == meet(b, a)


@given(entries, entries, entries)
def test_the_meet_associates(a: Entry, b: Entry, c: Entry) -> None:
    ab, bc = meet(a, b), meet(b, c)
    assert (meet(ab, c) if ab else None) == (meet(a, bc) if bc else None)


@given(entries)
def test_the_meet_is_idempotent(a: Entry) -> None:
    assert meet(a, a) == a
    assert contains(a, a)


@given(entries, entries)
def test_contains_agrees_with_brute_force(outer: Entry, inner: Entry) -> None:
    """S5.2: no false "inside" and no false "outside"; the universe has a point for each difference that these entries can have."""
    assert contains(outer, inner) == (points(inner) <= points(outer))


@given(entries, st.lists(entries, max_size=3))
def test_covers_agrees_with_brute_force(inner: Entry, outers: list[Entry]) -> None:
    assert covers(outers, inner) == (points(inner) <= points(*outers))


@given(entries)
def test_an_entry_reads_back_from_its_wire_form(a: Entry) -> None:
    assert parse_entry(render_entry(a), EXPONENTS.get) == a


@given(entries, entries)
def test_what_a_meet_made_can_be_written_down(a: Entry, b: Entry) -> None:
    met = meet(a, b)
    if met is not None:
        parts = spelled_out(met)
        assert points(*parts) == points(met)
        for part in parts:
            assert parse_entry(render_entry(part), EXPONENTS.get) == part


class TestExactness:
    def test_halves_cover_a_whole_that_neither_contains(self) -> None:
        whole = entry("order:A", cause=one_of("damaged", "late"))
        halves = [entry("order:*", cause=one_of("damaged")), entry("order:*", cause=one_of("late", "goodwill"))]
        assert not any(contains(half, whole) for half in halves)
        assert covers(halves, whole)
        assert not covers(halves[:1], whole)
        assert not covers(halves, entry("order:A", cause=one_of("damaged", "late", "lost")))
        assert not covers(halves, entry("order:A"))

    def test_one_level_and_deeper_cover_all_depths(self) -> None:
        deep = entry("file:a/**", "read")
        assert covers([entry("file:a/*", "read"), entry("file:a/*/**", "read")], deep)
        assert not covers([entry("file:a/*", "read"), entry("file:a/*/*/**", "read")], deep)
        assert not covers([entry("file:a/b*", "read"), entry("file:a/*/**", "read")], deep)

    def test_what_is_deeper_than_all_that_is_named_counts(self) -> None:
        assert not covers([entry("file:a/*", "read"), entry("file:*/b*", "read")], entry("file:a/**", "read"))

    def test_of_exceptions_only_the_largest_are_kept(self) -> None:
        whole = parse_entry(
            {
                "action": "read",
                "resource": "file:a/**",
                "except": [{"action": "read", "resource": f"file:{path}"} for path in ("a/b/c", "*/b/**", "a/b/*", "z/**", "*/b/**")],
            },
            EXPONENTS.get,
        )
        assert whole == entry("file:a/**", "read", [entry("file:*/b/**", "read")])

    def test_excluded_parts_that_together_take_everything_leave_nothing(self) -> None:
        with pytest.raises(ScopeError, match="takes everything out"):
            parse_entry(
                {
                    "action": "read",
                    "resource": "file:a/**",
                    "except": [{"action": "read", "resource": "file:a/*"}, {"action": "read", "resource": "file:*/*/**"}],
                },
                EXPONENTS.get,
            )

    def test_what_overlaps_and_what_is_apart_cover_the_meet(self) -> None:
        met = meet(entry("order:ab*"), entry("order:*ba"))
        assert met is not None
        assert not contains(entry("order:ab*ba"), met)
        assert covers([entry("order:ab*ba"), entry("order:aba")], met)
        assert not covers([entry("order:ab*ba"), entry("order:abb*")], met)  # neither has `aba`
        assert spelled_out(met) == (entry("order:ab*ba"), entry("order:aba"))

    def test_a_hole_is_outside_even_where_it_only_touches(self) -> None:
        holed = entry("file:**", "read", [entry("file:*/secrets/**", "read")])
        assert contains(holed, entry("file:repo/src/a", "read"))
        assert not contains(holed, entry("file:repo/secrets/a", "read"))
        assert not contains(holed, entry("file:repo/**", "read"))
        assert contains(holed, entry("file:repo/**", "read", [entry("file:repo/secrets/**", "read")]))
        assert contains(entry("file:*/*", "read"), entry("file:**", "read", [entry("file:*", "read"), entry("file:*/*/**", "read")]))

    def test_a_hole_may_be_filled_by_another_entry(self) -> None:
        holed = entry("order:*", excluding=[entry("order:A")])
        assert covers([holed, entry("order:A*")], entry("order:*"))
        assert not covers([holed, entry("order:AB*")], entry("order:*"))

    def test_another_currency_meets_to_nothing(self) -> None:
        assert meet(entry("order:A", amount=eur(5)), entry("order:A", amount=jpy(5))) is None
        assert not contains(entry("order:A", amount=jpy(500)), entry("order:A", amount=eur(5)))

    def test_different_kinds_of_constraint_under_one_key_meet_to_nothing(self) -> None:
        assert meet(entry("order:A", amount=eur(5)), entry("order:A", amount=one_of("5"))) is None

    def test_windows_meet_half_open(self) -> None:
        early, late = Window(NOW, NOW + HOUR), Window(NOW + HOUR, NOW + 2 * HOUR)
        assert meet(entry("order:A", time=early), entry("order:A", time=late)) is None
        both = Window(NOW, NOW + 2 * HOUR)
        assert meet(entry("order:A", time=both), entry("order:A", time=late)) == entry("order:A", time=late)
        assert covers([entry("order:A", time=early), entry("order:A", time=late)], entry("order:A", time=both))
        gap = Window(NOW + HOUR + timedelta(milliseconds=1), NOW + 2 * HOUR)
        assert not covers([entry("order:A", time=early), entry("order:A", time=gap)], entry("order:A", time=both))

    @pytest.mark.parametrize(
        "make", [lambda: eur(-1), lambda: OneOf(frozenset()), lambda: Window(NOW, NOW)], ids=["ceiling", "enumeration", "window"]
    )
    def test_an_empty_constraint_cannot_be_made(self, make: object) -> None:
        """The empty set lies inside every grant, so a need that was made of one would always be permitted."""
        with pytest.raises(ScopeError):
            make()  # type: ignore[operator]  # a callable of any kind

    def test_past_its_steps_the_search_says_no(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Never a grant by exhaustion."""
        whole = entry("order:A", cause=one_of("damaged", "late"))
        halves = [entry("order:*", cause=one_of("damaged")), entry("order:*", cause=one_of("late"))]
        assert covers(halves, whole)
        monkeypatch.setattr(coverage, "STEPS_MAX", 1)
        assert not covers(halves, whole)

    def test_the_search_ends_soon_on_what_is_made_to_be_slow(self) -> None:
        """Sixty entries over twelve segments, each with a key of its own, and sixteen exceptions: the steps bound the time."""
        holes = tuple(entry(f"order:{number:x}*/" + "/".join(["*"] * 11)) for number in range(16))
        outers = [
            entry("order:" + "/".join("ab"[(bits >> place) & 1] + "*" for place in range(12)), **{f"k{bits}": one_of("x")})
            for bits in range(60)
        ]
        whole = Entry("refund", parse_pattern("order:" + "/".join(["*"] * 12)), {}, holes)
        assert not covers(outers, whole)


# --- the verdict ---


def need(resource: str = "order:A", minor: int = 8000, cause: str = "damaged") -> Entry:
    return entry(resource, amount=eur(minor), cause=one_of(cause))


def permit(name: str, one: Entry, needs_approval: bool = False) -> NamedEntry:
    return NamedEntry(name, one, needs_approval)


def missed(by: str, constraint: str, granted: Constraint, requested: Constraint | None) -> ScopeVerdict:
    return ScopeVerdict("not_granted", (), (Cut("not_granted", by, constraint, granted, requested),))


def test_default_deny() -> None:
    """S5.3."""
    assert decide_scope(need(), [], [], None, NOW) == ScopeVerdict("not_granted", (), (Cut("not_granted", "default"),))


def test_a_permit_permits() -> None:
    verdict = decide_scope(need(), [permit("service", entry("order:*", amount=eur(15000_00)))], [], None, NOW)
    assert verdict == ScopeVerdict("permitted", ("grant:service",))


def test_a_forbid_beats_a_permit() -> None:
    verdict = decide_scope(need(), [permit("service", entry("order:*"))], [NamedEntry("stop", entry("order:A"))], None, NOW)
    assert verdict == ScopeVerdict("forbidden", ("grant:stop",), (Cut("forbidden", "grant:stop"),))


def test_a_forbid_that_only_touches_the_need_forbids() -> None:
    """What the need doesn't say may be what is forbidden, so it counts as forbidden."""
    open_need = entry("order:A", amount=eur(1))
    forbid = NamedEntry("no_goodwill", entry("order:*", cause=one_of("goodwill")))
    assert decide_scope(open_need, [permit("all", entry("order:*"))], [forbid], None, NOW).outcome == "forbidden"
    assert decide_scope(need(cause="damaged"), [permit("all", entry("order:*"))], [forbid], None, NOW).outcome == "permitted"


def test_a_grant_that_needs_approval_asks_unless_another_stands() -> None:
    asking, standing = permit("asking", entry("order:*"), True), permit("standing", entry("order:*"))
    assert decide_scope(need(), [asking], [], None, NOW) == ScopeVerdict("needs_approval", ("grant:asking",))
    assert decide_scope(need(), [asking, standing], [], None, NOW) == ScopeVerdict("permitted", ("grant:standing",))


def test_the_exact_ceiling_is_inside_and_one_cent_more_is_not() -> None:
    grants = [permit("service", entry("order:*", amount=eur(15000_00)))]
    assert decide_scope(need(minor=15000_00), grants, [], None, NOW).outcome == "permitted"
    over = decide_scope(need(minor=15000_01), grants, [], None, NOW)
    assert over == missed("grant:service", "amount", eur(15000_00), eur(15000_01))


def test_the_nearest_permit_is_of_the_same_currency_and_has_most_room() -> None:
    grants = [
        permit("yen", entry("order:*", amount=jpy(9_000_000))),
        permit("little", entry("order:*", amount=eur(100))),
        permit("much", entry("order:*", amount=eur(5000))),
        permit("elsewhere", entry("order:B", amount=eur(9000))),
        permit("two_misses", entry("order:*", amount=eur(7000), cause=one_of("late"))),
    ]
    for order in itertools.permutations(grants):
        assert decide_scope(need(), order, [], None, NOW) == missed("grant:much", "amount", eur(5000), eur(8000))


def test_an_enumeration_that_was_missed_is_the_nearest() -> None:
    verdict = decide_scope(need(), [permit("late_only", entry("order:*", amount=eur(9000), cause=one_of("late")))], [], None, NOW)
    assert verdict == missed("grant:late_only", "cause", one_of("late"), one_of("damaged"))


def test_a_constraint_that_the_need_does_not_name_is_not_met() -> None:
    verdict = decide_scope(entry("order:A"), [permit("capped", entry("order:*", amount=eur(9000)))], [], None, NOW)
    assert verdict == missed("grant:capped", "amount", eur(9000), None)


def test_every_cut_is_told_in_the_order_of_authority() -> None:
    """API.md 0.3, S3.2: each forbid, each constraint that the nearest grant lacks, and where the caller's own narrowing cut."""
    window = Window(NOW + HOUR, NOW + 2 * HOUR)
    permits = [permit("near", entry("order:*", amount=eur(5000), cause=one_of("late"), time=window)), permit("far", entry("order:B"))]
    forbids = [NamedEntry("stop", entry("order:A*")), NamedEntry("end", entry("order:A")), NamedEntry("else", entry("order:B"))]
    requested = [entry("order:A", cause=one_of("damaged"), amount=eur(10))]
    assert decide_scope(need(), permits, forbids, requested, NOW) == ScopeVerdict(
        "forbidden",
        ("grant:end", "grant:stop"),
        (
            Cut("forbidden", "grant:end"),
            Cut("forbidden", "grant:stop"),
            Cut("not_granted", "grant:near", "amount", eur(5000), eur(8000)),
            Cut("not_granted", "grant:near", "cause", one_of("late"), one_of("damaged")),
            Cut("not_granted", "grant:near", "time", window),
            Cut("outside_requested_scope", "requested_scope", "amount", eur(10), eur(8000), 0),
        ),
    )


def test_what_a_grant_excepts_is_a_cut_of_its_resource() -> None:
    holed = permit("holed", entry("order:*", excluding=[entry("order:A")], amount=eur(9000)))
    assert decide_scope(need(), [holed], [], None, NOW).cuts == (Cut("not_granted", "grant:holed"),)


def test_a_name_that_only_begins_alike_is_another() -> None:
    """AB-10: `order:O-1` is not `order:O-10`, and a star says where it begins."""
    grants = [permit("one", entry("order:O-1"))]
    assert decide_scope(need("order:O-1"), grants, [], None, NOW).outcome == "permitted"
    assert decide_scope(need("order:O-10"), grants, [], None, NOW).outcome == "not_granted"
    assert decide_scope(
        need("order:O-10"), [permit("all", entry("order:*"))], [NamedEntry("x", entry("order:O-1"))], None, NOW
    ).outcome == ("permitted")
    assert decide_scope(
        need("order:O-10"), [permit("all", entry("order:*"))], [NamedEntry("x", entry("order:O-1*"))], None, NOW
    ).outcome == ("forbidden")


@pytest.mark.parametrize(
    "odd", [one_of("8000"), Ceiling(Quantity(5, "rows", 0)), LevelCeiling(Level(("low", "high"), 1))], ids=["in", "rows", "level"]
)
def test_what_cannot_be_compared_forbids_and_never_permits(odd: Constraint) -> None:
    """PS-15: a forbid of another kind than the need isn't dropped beside a blanket permit; nor is an exception."""
    blanket, wrong = permit("all", entry("order:*")), entry("order:*", amount=odd)
    for forbids in ([NamedEntry("odd", wrong)], [NamedEntry("far", entry("order:B")), NamedEntry("odd", wrong)]):
        assert decide_scope(need(), [blanket], forbids, None, NOW).rests_on == ("grant:odd",)
    assert decide_scope(need(), [permit("odd", wrong)], [], None, NOW).outcome == "not_granted"
    assert decide_scope(need(), [permit("holed", entry("order:*", excluding=[wrong]))], [], None, NOW).outcome == "not_granted"
    assert decide_scope(need(), [blanket], [], [entry("order:*", excluding=[wrong])], NOW).outcome == "outside_requested_scope"
    other_order = NamedEntry("elsewhere", entry("order:B", amount=odd))
    assert decide_scope(need(), [blanket], [other_order], None, NOW).outcome == "permitted"


def test_a_forbid_in_another_currency_is_no_forbid_of_this_one() -> None:
    forbid = NamedEntry("yen", entry("order:*", amount=jpy(9_000_000)))
    assert decide_scope(need(), [permit("all", entry("order:*"))], [forbid], None, NOW).outcome == "permitted"


def test_requested_scope_only_narrows() -> None:
    """S3.1: a call outside it is denied."""
    grants = [permit("service", entry("order:*"))]
    assert decide_scope(need(), grants, [], [entry("order:A")], NOW).outcome == "permitted"
    for requested, cut in (
        ([entry("order:B")], Cut("outside_requested_scope", "requested_scope")),
        ([], Cut("outside_requested_scope", "requested_scope")),
        (
            [entry("order:B"), entry("order:A", amount=eur(7999))],
            Cut("outside_requested_scope", "requested_scope", "amount", eur(7999), eur(8000), 1),
        ),
        ([entry("order:*", excluding=[entry("order:A")])], Cut("outside_requested_scope", "requested_scope", index=0)),
    ):
        assert decide_scope(need(), grants, [], requested, NOW) == ScopeVerdict("outside_requested_scope", (), (cut,))
    assert decide_scope(need(), [], [], [entry("order:**")], NOW).outcome == "not_granted"
    assert decide_scope(need(), grants, [], [entry("order:*", excluding=[entry("order:B")])], NOW).outcome == "permitted"


@pytest.mark.parametrize(("moment", "inside"), [(NOW - HOUR, False), (NOW, True), (NOW + HOUR, False)])
def test_a_time_window_counts_by_the_moment_of_the_decision(moment: datetime, inside: bool) -> None:
    """Intervals are [from, until): an entry outside its window is no permit, no forbid and no exception."""
    window = Window(NOW, NOW + HOUR)
    timed, always = entry("order:*", time=window), entry("order:*")
    assert decide_scope(need(), [permit("timed", timed)], [], None, moment).outcome == ("permitted" if inside else "not_granted")
    assert decide_scope(need(), [permit("all", always)], [NamedEntry("timed", timed)], None, moment).outcome == (
        "forbidden" if inside else "permitted"
    )
    assert decide_scope(need(), [permit("all", always)], [], [timed], moment).outcome == (
        "permitted" if inside else "outside_requested_scope"
    )
    holed = entry("order:*", excluding=[entry("order:A", time=window)])
    assert decide_scope(need(), [permit("holed", holed)], [], None, moment).outcome == ("not_granted" if inside else "permitted")


grants = st.lists(st.builds(NamedEntry, st.sampled_from(["g1", "g2", "g3"]), entries, st.booleans()), max_size=4)
requests = st.none() | st.lists(entries, max_size=2)


def outcome(call: Entry, permits: Sequence[NamedEntry], forbids: Sequence[NamedEntry], requested: Sequence[Entry] | None) -> str:
    return decide_scope(call, permits, forbids, requested, NOW).outcome


def only_point(call: Entry) -> Point:
    amount, cause = call.constraints["amount"], call.constraints["cause"]
    assert isinstance(amount, Ceiling)
    assert isinstance(cause, OneOf)
    (named,) = cause.values
    return Point(call.action, call.resource.text, (amount.quantity.unit, amount.quantity.minor), named)


@given(needs, grants, grants, requests)
def test_allow_only_inside_the_effective_scope(
    call: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], requested: list[Entry] | None
) -> None:
    """S2: requested ∩ (standing ∪ needs_approval) − forbid, by brute force over points; a denial otherwise."""
    verdict = decide_scope(call, permits, forbids, requested, NOW)
    if verdict.outcome in ("permitted", "needs_approval"):
        point = only_point(call)
        assert any(has(named.entry, point) for named in permits if verdict.outcome == "needs_approval" or not named.needs_approval)
        assert not any(has(named.entry, point) for named in forbids)
        assert requested is None or any(has(one, point) for one in requested)
        assert verdict.rests_on
        assert set(verdict.rests_on) <= {f"grant:{named.grant}" for named in permits}
    else:
        assert verdict.outcome in ("forbidden", "not_granted", "outside_requested_scope")


@given(needs, grants, requests)
def test_nothing_is_permitted_by_default(call: Entry, forbids: list[NamedEntry], requested: list[Entry] | None) -> None:
    assert outcome(call, [], forbids, requested) in ("forbidden", "not_granted")


@given(needs, grants, grants, requests)
def test_any_forbid_that_meets_the_need_beats_every_permit(
    call: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], requested: list[Entry] | None
) -> None:
    touched = any(meet(call, named.entry) is not None for named in forbids)
    assert (outcome(call, permits, forbids, requested) == "forbidden") == touched


STRICTNESS = {"permitted": 0, "needs_approval": 1, "outside_requested_scope": 2, "not_granted": 2, "forbidden": 3}


@given(needs, grants, grants, entries)
def test_one_more_forbid_never_loosens(call: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], added: Entry) -> None:
    before, after = outcome(call, permits, forbids, None), outcome(call, permits, [*forbids, NamedEntry("added", added)], None)
    assert STRICTNESS[after] >= STRICTNESS[before]


@given(needs, grants, grants, st.randoms(), requests)
def test_order_and_duplicates_do_not_matter(
    call: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], chance: object, requested: list[Entry] | None
) -> None:
    other_permits, other_forbids = [*permits, *permits], [*forbids, *forbids]
    chance.shuffle(other_permits)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    chance.shuffle(other_forbids)  # type: ignore[attr-defined]  # as above
    assert decide_scope(call, permits, forbids, requested, NOW) == decide_scope(call, other_permits, other_forbids, requested, NOW)


@given(needs, grants, grants, st.lists(entries, max_size=3))
def test_outside_the_requested_scope_is_always_a_denial(
    call: Entry, permits: list[NamedEntry], forbids: list[NamedEntry], requested: list[Entry]
) -> None:
    if not any(has(one, only_point(call)) for one in requested):
        assert outcome(call, permits, forbids, requested) in ("forbidden", "not_granted", "outside_requested_scope")


# --- the wire form ---

WHOLE: Mapping[str, object] = {
    "action": "refund",
    "resource": "order:A-*",
    "constraints": {
        "amount": {"max": {"amount": "80.00", "currency": "EUR"}},
        "cause": {"in": ["damaged", "late"]},
        "time": {"from": "2026-12-01T00:00:00.000Z", "until": "2026-12-02T00:00:00.000Z"},
    },
    "except": [{"action": "refund", "resource": "order:A-T*"}],
}


def test_an_entry_of_the_contract_reads_and_renders() -> None:
    """API.md 0.3, the same keys in JSON and YAML."""
    parsed = parse_entry(WHOLE, EXPONENTS.get)
    assert render_entry(parsed) == WHOLE
    assert parsed.constraints["time"] == Window(datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 2, tzinfo=UTC))
    assert render_entry(parse_entry({"action": "read", "resource": "file:a/**"}, EXPONENTS.get)) == {
        "action": "read",
        "resource": "file:a/**",
    }


def test_yaml_gives_moments_as_datetimes() -> None:
    moment = datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    document = {"action": "use", "resource": "capability:x", "constraints": {"time": {"from": moment, "until": moment + HOUR}}}
    assert render_entry(parse_entry(document, EXPONENTS.get))["constraints"] == {
        "time": {"from": "2026-12-01T00:00:00.000Z", "until": "2026-12-01T01:00:00.000Z"}
    }


def test_an_exception_that_touches_nothing_is_dropped() -> None:
    document = {"action": "refund", "resource": "order:A-1001", "except": [{"action": "refund", "resource": "order:T-*"}]}
    assert render_entry(parse_entry(document, EXPONENTS.get)) == {"action": "refund", "resource": "order:A-1001"}


def changed(**fields: object) -> dict[str, object]:
    return {"action": "refund", "resource": "order:*", **fields}


def limited(**limits: object) -> dict[str, object]:
    return changed(constraints=limits)


@pytest.mark.parametrize(
    ("document", "pointer", "detail"),
    [
        ("refund", "", "an entry is an object, such as"),
        ({"resource": "order:*"}, "/action", "`action` is a snake_case name of at most 64 characters"),
        (changed(action="*"), "/action", "`action` is a snake_case name"),
        (changed(action="Refund"), "/action", "`action` is a snake_case name"),
        ({"action": "refund"}, "/resource", "`resource` is a string, such as `order:A-1001`"),
        (changed(resource=7), "/resource", "`resource` is a string"),
        (changed(resource="order"), "/resource", "`order` isn't a resource"),
        (changed(resource="order:../x"), "/resource", "has a segment that is empty, `.` or `..`"),
        (changed(rests_on=["grant:x"]), "/rests_on", "the field is unknown; an entry has action, constraints, except, resource"),
        (changed(**{"a/b~": 1}), "/a~1b~0", "the field is unknown"),
        (changed(constraints=[]), "/constraints", "`constraints` is an object of at most 16 fields"),
        (limited(**{f"k{n}": {"in": ["x"]} for n in range(17)}), "/constraints", "`constraints` is an object of at most 16 fields"),
        (limited(Amount={"in": ["x"]}), "/constraints/Amount", "the name of a constraint is snake_case"),
        (limited(amount=5), "/constraints/amount", "a constraint has `max`, or `in`, or `from` and `until`"),
        (limited(amount={}), "/constraints/amount", "a constraint has `max`, or `in`, or `from` and `until`"),
        (
            limited(amount={"max": {"amount": "1.00", "currency": "EUR"}, "in": ["x"]}),
            "/constraints/amount",
            "a constraint has `max`, or `in`",
        ),
        (limited(amount={"max": {"amount": "1.0", "currency": "EUR"}}), "/constraints/amount/max", "`1.0` isn't an amount of EUR"),
        (limited(amount={"max": 5}), "/constraints/amount/max", "isn't a quantity"),
        (
            limited(sensitivity={"max": "internal"}),
            "/constraints/sensitivity/max",
            "the policy names no levels of sensitivity; leave this out",
        ),
        (limited(cause={"in": []}), "/constraints/cause/in", "`in` is a list of 1 to 200 strings"),
        (limited(cause={"in": "damaged"}), "/constraints/cause/in", "`in` is a list of 1 to 200 strings"),
        (limited(cause={"in": ["damaged", 5]}), "/constraints/cause/in", "`in` is a list of 1 to 200 strings"),
        (limited(cause={"in": ["x"] * 201}), "/constraints/cause/in", "`in` is a list of 1 to 200 strings"),
        (limited(time={"in": ["x"]}), "/constraints/time", "`time`, and only `time`, has `from` and `until`"),
        (limited(when={"from": NOW, "until": NOW + HOUR}), "/constraints/when", "`time`, and only `time`, has `from` and `until`"),
        (limited(time={"from": NOW, "until": NOW}), "/constraints/time", "`until` isn't after `from`; the window is empty"),
        (limited(time={"from": "2026-12-01", "until": NOW}), "/constraints/time/from", "write a moment in UTC"),
        (limited(time={"from": "2026-02-30T00:00:00Z", "until": NOW}), "/constraints/time/from", "write a moment in UTC"),
        (limited(time={"from": "2026-12-01T00:00:00+01:00", "until": NOW}), "/constraints/time/from", "write a moment in UTC"),
        (limited(time={"from": "2026-12-01T00:00:00.0001Z", "until": NOW}), "/constraints/time/from", "write a moment in UTC"),
        (limited(time={"from": NOW, "until": datetime(2026, 12, 2)}), "/constraints/time/until", "write a moment in UTC"),  # noqa: DTZ001 - no zone is the point
        (changed(**{"except": {}}), "/except", "`except` is a list of at most 16 entries"),
        (changed(**{"except": [changed()] * 17}), "/except", "`except` is a list of at most 16 entries"),
        (changed(**{"except": [changed(), {"action": "x"}]}), "/except/1/resource", "`resource` is a string"),
        (
            changed(**{"except": [changed(**{"except": []})]}),
            "/except/0/except",
            "the field is unknown; an entry has action, constraints, resource",
        ),
        (changed(**{"except": [changed()]}), "/except", "`except` takes everything out of this entry; remove the entry"),
    ],
)
def test_what_is_no_entry_is_refused_with_its_place(document: object, pointer: str, detail: str) -> None:
    with pytest.raises(ScopeError) as refused:
        parse_scope([changed(), document], EXPONENTS.get)
    assert refused.value.pointer == "/1" + pointer
    assert detail in refused.value.detail
    assert str(refused.value) == refused.value.detail


@pytest.mark.parametrize("documents", [None, {}, "x", [changed()] * 201], ids=["null", "object", "string", "201"])
def test_what_is_no_scope_is_refused(documents: object) -> None:
    with pytest.raises(ScopeError) as refused:
        parse_scope(documents, EXPONENTS.get)
    assert (refused.value.pointer, refused.value.detail) == ("", "a scope is a list of at most 200 entries")


def test_entries_can_be_hashed() -> None:
    assert len({parse_entry(WHOLE, EXPONENTS.get), parse_entry(WHOLE, EXPONENTS.get)}) == 1

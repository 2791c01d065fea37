"""What may be done to what: entries of (action, resource, constraints), how they meet, and the verdict for one call (SPEC 5, API.md 0.3).

An entry is a set of points (a resource, and a value for each constraint key); a scope is the union of its entries. Every answer here is
exact as sets: no false "inside", no false "empty". The default is deny and a forbid beats every permit; what isn't understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from app.domain.coverage import escapes
from app.domain.entry import Ceiling, Constraint, Entry, OneOf, Window
from app.domain.quantity import QuantityError, parse_quantity
from app.domain.resource import (
    ResourcePattern,
    ScopeError,
    Segment,
    concrete_resource,
    exact,
    meet_resources,
    overlaps,
    parse_pattern,
    resource_inside,
    star,
)

__all__ = [
    "Ceiling",
    "Constraint",
    "Entry",
    "NamedEntry",
    "OneOf",
    "ResourcePattern",
    "ScopeError",
    "ScopeVerdict",
    "Window",
    "concrete_resource",
    "contains",
    "covers",
    "decide_scope",
    "meet",
    "parse_entry",
    "parse_pattern",
    "parse_scope",
    "render_constraint",
    "render_entry",
    "spelled_out",
]

ENTRIES_MAX = 200
CONSTRAINTS_MAX = 16
VALUES_MAX = 200
EXCEPT_MAX = 16
TIME = "time"
"""The one key that holds a time window; a window counts by the moment of the decision and not by the need."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,3})?Z")
_ExponentOf = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class NamedEntry:
    """An entry of a grant; `needs_approval` counts for permits only."""

    grant: str
    entry: Entry
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class ScopeVerdict:
    """What the scopes say to one need.

    `rests_on` are the grants that permit or forbid. `by` is the first of them; the grant of `nearest`; `default` where nothing granted
    the need; `requested_scope` where the caller's own narrowing cut it. `nearest` is the constraint, at the key `constraint`, of the permit
    that the need missed by least.
    """

    outcome: Literal["permitted", "needs_approval", "forbidden", "not_granted", "outside_requested_scope"]
    rests_on: tuple[str, ...]
    by: str
    nearest: Constraint | None = None
    constraint: str | None = None


def decide_scope(
    need: Entry,
    permits: Sequence[NamedEntry],
    forbids: Sequence[NamedEntry],
    requested: Sequence[Entry] | None,
    now: datetime,
) -> ScopeVerdict:
    """Decide whether one call's need lies inside policy and `requested` (None: the need itself; empty: nothing).

    The order and number of grants don't matter. An entry whose time window doesn't hold `now` (aware) is as if it weren't there.
    """
    against = _names(named for named in _at(forbids, now) if meet(need, named.entry) is not None)
    if against:
        return ScopeVerdict("forbidden", against, against[0])
    live = _at(permits, now)
    standing = [named for named in live if not named.needs_approval]
    outcome: Literal["permitted", "needs_approval"] = "permitted"
    rests_on = _resting(need, standing)
    if not rests_on:
        outcome, rests_on = "needs_approval", _resting(need, live)
    if not rests_on:
        return _not_granted(need, live)
    if requested is not None and not covers([entry for entry in (_entry_at(asked, now) for asked in requested) if entry], need):
        return ScopeVerdict("outside_requested_scope", (), "requested_scope")
    return ScopeVerdict(outcome, rests_on, rests_on[0])


def meet(a: Entry, b: Entry) -> Entry | None:
    """Intersect two entries, exactly; None is the empty set."""
    if a.action != b.action:
        return None
    resource = meet_resources(a.resource, b.resource)
    if resource is None:
        return None
    constraints = dict(a.constraints)
    for key, constraint in b.constraints.items():
        mine = constraints.get(key)
        met = constraint if mine is None else mine.meet(constraint)
        if met is None:
            return None
        constraints[key] = met
    return _without(Entry(a.action, resource, constraints), (*a.excluded, *b.excluded))


def contains(outer: Entry, inner: Entry) -> bool:
    """Say whether each point of `inner` is one of `outer`, exactly."""
    if _box_inside(inner, outer):
        return not any(meet(inner, part) for part in outer.excluded)
    return bool(inner.excluded) and not escapes(inner, [outer])  # what inner excludes may be just what outer lacks


def covers(outers: Sequence[Entry], inner: Entry) -> bool:
    """Say whether each point of `inner` is in the union of `outers`, exactly: two halves cover a whole that neither contains."""
    if any(contains(outer, inner) for outer in outers):
        return True
    near = [outer for outer in outers if meet(outer, inner) is not None]
    return len(near) > 1 and not escapes(inner, near)


def spelled_out(entry: Entry) -> tuple[Entry, ...]:
    """Split an entry into ones whose texts read back as the same set: `ab*` met with `*ba` is `ab*ba` and `aba`."""
    segments: list[tuple[Segment, ...]] = [()]
    for segment in entry.resource.segments:
        choices = [segment]
        if segment.suffix is not None:
            apart = star(segment.prefix, segment.suffix)
            if apart != segment:
                choices = [apart, *(exact(text) for text in overlaps(segment) if not apart.matches(text))]
        segments = [(*before, choice) for before in segments for choice in choices]
    resources = [ResourcePattern(entry.resource.kind, chosen, entry.resource.deep) for chosen in segments]
    if len(resources) == 1 and not entry.excluded:
        return (entry,)
    found = (_without(Entry(entry.action, resource, entry.constraints), entry.excluded) for resource in resources)
    return tuple(part for part in found if part is not None)


def parse_scope(documents: object, exponent_of: _ExponentOf) -> tuple[Entry, ...]:
    """Read a list of entries.

    Raises:
        ScopeError: the first thing that isn't one; its pointer is from the root of the list.
    """
    if not isinstance(documents, list | tuple) or len(documents) > ENTRIES_MAX:
        raise ScopeError(f"a scope is a list of at most {ENTRIES_MAX} entries")
    entries = []
    for index, document in enumerate(documents):
        try:
            entries.append(parse_entry(document, exponent_of))
        except ScopeError as error:
            raise error.below(f"/{index}") from None
    return tuple(entries)


def parse_entry(document: object, exponent_of: _ExponentOf) -> Entry:
    """Read one entry, strictly.

    Raises:
        ScopeError: the first thing that isn't one, or `except` leaves nothing; its pointer is from the root of the entry.
    """
    bare = _parse_bare(document, exponent_of, {"action", "resource", "constraints", "except"})
    assert isinstance(document, Mapping)
    taken = document.get("except", ())
    if not isinstance(taken, list | tuple) or len(taken) > EXCEPT_MAX:
        raise ScopeError(f"`except` is a list of at most {EXCEPT_MAX} entries", "/except")
    excluded = []
    for index, part in enumerate(taken):
        try:
            excluded.append(_parse_bare(part, exponent_of, {"action", "resource", "constraints"}))
        except ScopeError as error:
            raise error.below(f"/except/{index}") from None
    entry = _without(bare, tuple(excluded))
    if entry is None:
        raise ScopeError("`except` takes everything out of this entry; remove the entry", "/except")
    return entry


def render_entry(entry: Entry) -> dict[str, object]:
    """Give the wire form. What a meet of patterns made goes through `spelled_out` first."""
    document: dict[str, object] = {"action": entry.action, "resource": entry.resource.text}
    if entry.constraints:
        document["constraints"] = {key: render_constraint(entry.constraints[key]) for key in sorted(entry.constraints)}
    if entry.excluded:
        document["except"] = [render_entry(part) for part in entry.excluded]
    return document


def render_constraint(constraint: Constraint) -> dict[str, object]:
    match constraint:
        case Ceiling(quantity):
            return {"max": quantity.render()}
        case OneOf(values):
            return {"in": sorted(values)}
        case Window(from_, until):
            return {"from": _instant_text(from_), "until": _instant_text(until)}


def _resting(need: Entry, permits: Sequence[NamedEntry]) -> tuple[str, ...]:
    """Name the grants that the need rests on: those that hold all of it, else, where only several together do, those that hold some."""
    alone = _names(named for named in permits if contains(named.entry, need))
    if alone:
        return alone
    near = [named for named in permits if meet(named.entry, need) is not None]
    return _names(near) if covers([named.entry for named in near], need) else ()


def _names(permits: Iterable[NamedEntry]) -> tuple[str, ...]:
    return tuple(sorted({f"grant:{named.grant}" for named in permits}))


def _at(named: Sequence[NamedEntry], now: datetime) -> list[NamedEntry]:
    found = []
    for one in named:
        entry = _entry_at(one.entry, now)
        if entry is one.entry:
            found.append(one)
        elif entry is not None:
            found.append(NamedEntry(one.grant, entry, one.needs_approval))
    return found


def _entry_at(entry: Entry, now: datetime) -> Entry | None:
    """Give the entry as it is at that moment, without time windows; None outside its window."""
    if TIME not in entry.constraints and not any(TIME in part.constraints for part in entry.excluded):
        return entry
    window = entry.constraints.get(TIME)
    if window is not None and not window.holds(now):
        return None
    excluded = (_entry_at(part, now) for part in entry.excluded)
    constraints = {key: constraint for key, constraint in entry.constraints.items() if key != TIME}
    return _without(Entry(entry.action, entry.resource, constraints), tuple(part for part in excluded if part is not None))


def _not_granted(need: Entry, permits: Sequence[NamedEntry]) -> ScopeVerdict:
    """Find the permit that the need missed by least: by few constraints, in the same unit, with the most room; then by name."""
    best: tuple[tuple[object, ...], NamedEntry, str, Constraint] | None = None
    for named in permits:
        unlimited = Entry(named.entry.action, named.entry.resource, {}, named.entry.excluded)
        missed = sorted(key for key, limit in named.entry.constraints.items() if not _key_inside(need, key, limit))
        if not missed or not contains(unlimited, need):
            continue
        limit, asked = named.entry.constraints[missed[0]], need.constraints.get(missed[0])
        room = limit.quantity.minor if isinstance(limit, Ceiling) else len(limit.values) if isinstance(limit, OneOf) else 0
        comparable = isinstance(limit, Ceiling) and isinstance(asked, Ceiling) and limit.same_unit(asked)
        rank = (len(missed), missed[0], not comparable, -room, named.grant, str(render_constraint(limit)))
        if best is None or rank < best[0]:
            best = (rank, named, missed[0], limit)
    if best is None:
        return ScopeVerdict("not_granted", (), "default")
    _, named, key, limit = best
    return ScopeVerdict("not_granted", (), f"grant:{named.grant}", limit, key)


def _key_inside(need: Entry, key: str, limit: Constraint) -> bool:
    asked = need.constraints.get(key)
    return asked is not None and asked.inside(limit)


def _box_inside(inner: Entry, outer: Entry) -> bool:
    """Compare without `excluded`."""
    return (
        inner.action == outer.action
        and all(_key_inside(inner, key, limit) for key, limit in outer.constraints.items())
        and resource_inside(inner.resource, outer.resource)
    )


def _without(bare: Entry, taken: Sequence[Entry]) -> Entry | None:
    """Take entries out of one that excludes nothing yet; None if nothing is left. Only the largest that touch it are kept, in one order."""
    if not taken:
        return bare
    touching = {part: None for part in taken if meet(bare, part) is not None}
    largest = [part for part in touching if not any(part != other and _box_inside(part, other) for other in touching)]
    entry = Entry(bare.action, bare.resource, bare.constraints, tuple(sorted(largest, key=_order)))
    return entry if not largest or escapes(entry, ()) else None


def _order(entry: Entry) -> tuple[str, ...]:
    limits = (f"{key}={render_constraint(entry.constraints[key])}" for key in sorted(entry.constraints))
    return (entry.action, entry.resource.text, repr(entry.resource), *limits)


def _parse_bare(document: object, exponent_of: _ExponentOf, known: set[str]) -> Entry:
    if not isinstance(document, Mapping):
        raise ScopeError('an entry is an object, such as {"action": "refund", "resource": "order:A-1001"}')
    for key in document:
        if key not in known:
            raise ScopeError(f"the field is unknown; an entry has {', '.join(sorted(known))}", _pointer(key))
    action, resource = document.get("action"), document.get("resource")
    if not isinstance(action, str) or not _NAME.fullmatch(action):
        raise ScopeError("`action` is a snake_case name of at most 64 characters", "/action")
    if not isinstance(resource, str):
        raise ScopeError("`resource` is a string, such as `order:A-1001`", "/resource")
    try:
        pattern = parse_pattern(resource)
    except ScopeError as error:
        raise error.below("/resource") from None
    limits = document.get("constraints", {})
    if not isinstance(limits, Mapping) or len(limits) > CONSTRAINTS_MAX:
        raise ScopeError(f"`constraints` is an object of at most {CONSTRAINTS_MAX} fields", "/constraints")
    return Entry(action, pattern, {key: _parse_constraint(key, limit, exponent_of) for key, limit in limits.items()})


def _parse_constraint(key: object, limit: object, exponent_of: _ExponentOf) -> Constraint:
    place = "/constraints" + _pointer(key)
    if not isinstance(key, str) or not _NAME.fullmatch(key):
        raise ScopeError("the name of a constraint is snake_case, of at most 64 characters", place)
    if not isinstance(limit, Mapping):
        raise ScopeError("a constraint has `max`, or `in`, or `from` and `until`", place)
    fields = set(limit)
    if (key == TIME) != (fields == {"from", "until"}):
        raise ScopeError("`time`, and only `time`, has `from` and `until`", place)
    if key == TIME:
        from_, until = _parse_instant(limit["from"], place + "/from"), _parse_instant(limit["until"], place + "/until")
        try:
            return Window(from_, until)
        except ScopeError as error:
            raise error.below(place) from None
    if fields == {"max"}:
        if isinstance(limit["max"], str):
            raise ScopeError("a ceiling by level (`sensitivity`) can't be read yet; use a quantity or `in`", place + "/max")
        try:
            return Ceiling(parse_quantity(limit["max"], exponent_of))
        except QuantityError as error:
            raise ScopeError(str(error), place + "/max") from None
    if fields == {"in"}:
        values = limit["in"]
        if not isinstance(values, list | tuple) or not 0 < len(values) <= VALUES_MAX or not all(isinstance(value, str) for value in values):
            raise ScopeError(f"`in` is a list of 1 to {VALUES_MAX} strings", place + "/in")
        return OneOf(frozenset(values))
    raise ScopeError("a constraint has `max`, or `in`, or `from` and `until`", place)


def _parse_instant(value: object, place: str) -> datetime:
    """Read a moment. YAML gives some as datetimes; without a zone they are refused like any other guess."""
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except ValueError:  # the 30th of February
            pass
    elif isinstance(value, datetime) and value.tzinfo is not None and value.microsecond % 1000 == 0:
        return value.astimezone(UTC)
    raise ScopeError("write a moment in UTC, with three decimals at most, such as `2026-12-01T00:00:00.000Z`", place)


def _instant_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _pointer(key: object) -> str:
    return "/" + str(key).replace("~", "~0").replace("/", "~1")

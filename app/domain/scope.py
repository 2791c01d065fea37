"""What may be done to what: the verdict for one call's need, with everything that cut it (SPEC 5, API.md 0.3).

An entry is a set of points (a resource, and a value for each constraint key); a scope is the union of its entries. The default is deny, a
forbid beats every permit in any order, and what can't be compared isn't covered. How entries meet is in `algebra`, how they are written in
`scope_text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from app.domain.algebra import boxes_meet, contains, covers, incomparable, key_inside, meet, spelled_out, touches
from app.domain.entry import Ceiling, Constraint, Entry, Level, LevelCeiling, OneOf, Window
from app.domain.resource import ResourcePattern, ScopeError, concrete_resource, parse_pattern, resource_inside
from app.domain.scope_text import SENSITIVITY, TIME, parse_entry, parse_level, parse_scope, render_constraint, render_entry

__all__ = [
    "SENSITIVITY",
    "TIME",
    "Ceiling",
    "Constraint",
    "Cut",
    "Entry",
    "Level",
    "LevelCeiling",
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
    "parse_level",
    "parse_pattern",
    "parse_scope",
    "render_constraint",
    "render_entry",
    "spelled_out",
    "touches",
]

Refusal = Literal["forbidden", "not_granted", "outside_requested_scope"]


@dataclass(frozen=True, slots=True)
class NamedEntry:
    """An entry of a grant; `needs_approval` counts for permits only."""

    grant: str
    entry: Entry
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing that the need asked for and wasn't given.

    `by` is the grant that forbade it, or that it missed by least; `default` where no grant is for it; `requested_scope` with the `index` of
    the entry that it missed by least, where there is one. Without a `constraint` it is the resource that was cut; a constraint that wasn't
    `requested` counts as unlimited.
    """

    reason: Refusal
    by: str
    constraint: str | None = None
    granted: Constraint | None = None
    requested: Constraint | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ScopeVerdict:
    """What the scopes say to one need. `rests_on` are the grants that permit or forbid; `cuts` is empty unless it is refused."""

    outcome: Literal["permitted", "needs_approval"] | Refusal
    rests_on: tuple[str, ...]
    cuts: tuple[Cut, ...] = ()


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
    against = _names(named for named in _at(forbids, now) if touches(need, named.entry))
    live = [named for named in _at(permits, now) if _is_clear(need, named.entry)]
    standing = [named for named in live if not named.needs_approval]
    outcome: Literal["permitted", "needs_approval"] = "permitted"
    rests_on = _resting(need, standing)
    if not rests_on:
        outcome, rests_on = "needs_approval", _resting(need, live)
    outside = requested is not None and not covers(_asked(need, requested, now), need)
    if rests_on and not against and not outside:
        return ScopeVerdict(outcome, rests_on)
    cuts = [Cut("forbidden", name) for name in against]
    if not rests_on:
        cuts += _missed(need, "not_granted", ((f"grant:{named.grant}", None, named.entry) for named in permits), "default", now)
    if outside:
        asked = (("requested_scope", index, entry) for index, entry in enumerate(requested or ()))
        cuts += _missed(need, "outside_requested_scope", asked, "requested_scope", now)
    return ScopeVerdict(cuts[0].reason, against, tuple(cuts))


def _resting(need: Entry, permits: Sequence[NamedEntry]) -> tuple[str, ...]:
    """Name the grants that the need rests on: those that hold all of it, else, where only several together do, those that hold some."""
    alone = _names(named for named in permits if contains(named.entry, need))
    if alone:
        return alone
    near = [named for named in permits if meet(named.entry, need) is not None]
    return _names(near) if covers([named.entry for named in near], need) else ()


def _asked(need: Entry, requested: Sequence[Entry], now: datetime) -> list[Entry]:
    return [entry for each in requested if (entry := _entry_at(each, now)) is not None and _is_clear(need, entry)]


def _is_clear(need: Entry, entry: Entry) -> bool:
    """Say whether each exception can be compared with the need; one that can't must not be passed over."""
    return not entry.excluded or not any(incomparable(need, part) for part in entry.excluded)


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
    """Give the entry as it is at that moment, without time windows; None outside its window. It may have nothing left."""
    if TIME not in entry.constraints and not any(TIME in part.constraints for part in entry.excluded):
        return entry
    window = entry.constraints.get(TIME)
    if isinstance(window, Window) and not window.holds(now):
        return None
    excluded = (_entry_at(part, now) for part in entry.excluded)
    constraints = {key: constraint for key, constraint in entry.constraints.items() if key != TIME}
    return replace(entry, constraints=constraints, excluded=tuple(part for part in excluded if part is not None))


def _missed(
    need: Entry, reason: Refusal, entries: Iterable[tuple[str, int | None, Entry]], otherwise: str, now: datetime
) -> tuple[Cut, ...]:
    """Give what the nearest entry doesn't cover: the one missed in fewest places, in the same unit, with the most room; then by name."""
    best: tuple[tuple[object, ...], tuple[Cut, ...]] | None = None
    for by, index, entry in entries:
        if entry.action != need.action or not resource_inside(need.resource, entry.resource):
            continue
        keys = [key for key in sorted(entry.constraints) if not _key_covered(need, key, entry.constraints[key], now)]
        cuts = tuple(Cut(reason, by, key, entry.constraints[key], need.constraints.get(key), index) for key in keys)
        now_excluded = [part for each in entry.excluded if (part := _entry_at(each, now))]
        if not cuts or any(boxes_meet(need, part) or incomparable(need, part) for part in now_excluded):
            cuts = (*cuts, Cut(reason, by, index=index))
        rank = (
            len(cuts), not keys, keys, sum(not _comparable(cut) for cut in cuts), [-_room(cut) for cut in cuts], by, index,
            [str(render_constraint(cut.granted)) for cut in cuts if cut.granted is not None],
        )  # fmt: skip
        if best is None or rank < best[0]:
            best = (rank, cuts)
    return best[1] if best is not None else (Cut(reason, otherwise),)


def _key_covered(need: Entry, key: str, limit: Constraint, now: datetime) -> bool:
    return limit.holds(now) if isinstance(limit, Window) and key == TIME else key_inside(need, key, limit)


def _comparable(cut: Cut) -> bool:
    return cut.granted is not None and cut.requested is not None and cut.granted.meet(cut.requested) is not None


def _room(cut: Cut) -> int:
    match cut.granted:
        case Ceiling(quantity):
            return quantity.minor
        case LevelCeiling(level):
            return level.rank
        case OneOf(values):
            return len(values)
        case _:
            return 0

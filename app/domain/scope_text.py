"""Scopes as they are written, in JSON and YAML alike (API.md 0.3): strict reading, and the same form back.

What isn't understood is refused with its place, never dropped: a constraint that gets lost would widen what is granted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.domain.algebra import without
from app.domain.entry import Ceiling, Constraint, Entry, Level, LevelCeiling, OneOf, Window
from app.domain.quantity import QuantityError, parse_quantity
from app.domain.resource import parse_forbidden, parse_pattern
from app.domain.resource_kind import ScopeError

ENTRIES_MAX = 200
CONSTRAINTS_MAX = 16
VALUES_MAX = 200
EXCEPT_MAX = 16
TIME = "time"
"""The one key that holds a time window; a window counts by the moment of the decision and not by the need."""

SENSITIVITY = "sensitivity"
"""The one key whose ceiling is a level of the bundle's order."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,3})?Z")
_ExponentOf = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class _Reader:
    exponent_of: _ExponentOf
    levels: tuple[str, ...]
    forbid: bool = False


def parse_scope(documents: object, exponent_of: _ExponentOf, levels: tuple[str, ...] = (), *, simplify: bool = True) -> tuple[Entry, ...]:
    """Read a list of entries; the rest is as in `parse_entry`.

    Raises:
        ScopeError: the first thing that isn't one; its pointer is from the root of the list.
    """
    if not isinstance(documents, list | tuple) or len(documents) > ENTRIES_MAX:
        raise ScopeError(f"a scope is a list of at most {ENTRIES_MAX} entries")
    entries = []
    for index, document in enumerate(documents):
        try:
            entries.append(parse_entry(document, exponent_of, levels, simplify=simplify))
        except ScopeError as error:
            raise error.below(f"/{index}") from None
    return tuple(entries)


def parse_entry(
    document: object, exponent_of: _ExponentOf, levels: tuple[str, ...] = (), *, forbid: bool = False, simplify: bool = True
) -> Entry:
    """Read one entry, strictly.

    `exponent_of` gives a currency's digits, `levels` are the bundle's, lowest first. `forbid` lets free globs in, which only forbids may
    have. With `simplify`, exceptions that touch nothing are dropped and an entry of which nothing is left is refused; that takes a search,
    so it isn't for what callers send: there such an entry is just empty.

    Raises:
        ScopeError: the first thing that isn't one; its pointer is from the root of the entry.
    """
    reader = _Reader(exponent_of, levels)
    fields = {"action", "resource", "constraints"}
    bare = _parse_bare(document, _Reader(exponent_of, levels, forbid), fields | {"except"})
    assert isinstance(document, Mapping)
    taken = document.get("except", ())
    if not isinstance(taken, list | tuple) or len(taken) > EXCEPT_MAX:
        raise ScopeError(f"`except` is a list of at most {EXCEPT_MAX} entries", "/except")
    excluded = []
    for index, part in enumerate(taken):
        try:
            excluded.append(_parse_bare(part, reader, fields))
        except ScopeError as error:
            raise error.below(f"/except/{index}") from None
    if not simplify or bare.glob is not None:
        return replace(bare, excluded=tuple(excluded))
    entry = without(bare, tuple(excluded))
    if entry is None:
        raise ScopeError("`except` takes everything out of this entry; remove the entry", "/except")
    return entry


def render_entry(entry: Entry) -> dict[str, object]:
    """Give the wire form. What a meet of patterns made goes through `spelled_out` first."""
    document: dict[str, object] = {"action": entry.action, "resource": (entry.glob or entry.resource).text}
    if entry.constraints:
        document["constraints"] = {key: render_constraint(entry.constraints[key]) for key in sorted(entry.constraints)}
    if entry.excluded:
        document["except"] = [render_entry(part) for part in entry.excluded]
    return document


def render_constraint(constraint: Constraint) -> dict[str, object]:
    return constraint.render()


def _parse_bare(document: object, reader: _Reader, known: set[str]) -> Entry:
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
        pattern, glob = parse_forbidden(resource) if reader.forbid else (parse_pattern(resource), None)
    except ScopeError as error:
        raise error.below("/resource") from None
    limits = document.get("constraints", {})
    if not isinstance(limits, Mapping) or len(limits) > CONSTRAINTS_MAX:
        raise ScopeError(f"`constraints` is an object of at most {CONSTRAINTS_MAX} fields", "/constraints")
    return Entry(action, pattern, {key: _parse_constraint(key, limit, reader) for key, limit in limits.items()}, (), glob)


def _parse_constraint(key: object, limit: object, reader: _Reader) -> Constraint:
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
    if key == SENSITIVITY:
        if fields != {"max"}:
            raise ScopeError("`sensitivity` has a level as its `max`", place)
        return LevelCeiling(parse_level(limit["max"], reader.levels, place + "/max"))
    if fields == {"max"}:
        if isinstance(limit["max"], str):
            raise ScopeError("a level is the `max` of `sensitivity` only; here it is a quantity", place + "/max")
        try:
            return Ceiling(parse_quantity(limit["max"], reader.exponent_of))
        except QuantityError as error:
            raise ScopeError(str(error), place + "/max") from None
    if fields == {"in"}:
        values = limit["in"]
        if not isinstance(values, list | tuple) or not 0 < len(values) <= VALUES_MAX or not all(isinstance(value, str) for value in values):
            raise ScopeError(f"`in` is a list of 1 to {VALUES_MAX} strings", place + "/in")
        return OneOf(frozenset(values))
    raise ScopeError("a constraint has `max`, or `in`, or `from` and `until`", place)


def parse_level(name: object, levels: tuple[str, ...], place: str = "") -> Level:
    """Read a level of sensitivity.

    Raises:
        ScopeError: it isn't one of `levels`, which are named.
    """
    if not isinstance(name, str) or name not in levels:
        if not levels:
            raise ScopeError("the policy names no levels of sensitivity; leave this out", place)
        raise ScopeError(f"a level of sensitivity is one of {', '.join(levels)}", place)
    return Level(levels, levels.index(name))


def _parse_instant(value: object, place: str) -> datetime:
    """Read a moment. YAML gives some as datetimes; without a zone they are refused like any other guess."""
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except ValueError:  # the 30th of February
            pass
    elif isinstance(value, datetime) and value.tzinfo is not None and value.microsecond % 1000 == 0:
        try:
            return value.astimezone(UTC)
        except OverflowError:  # the first and last hours of the calendar, in another zone
            pass
    raise ScopeError("write a moment in UTC, with three decimals at most, such as `2026-12-01T00:00:00.000Z`", place)


def _pointer(key: object) -> str:
    return "/" + str(key).replace("~", "~0").replace("/", "~1")

"""The values of a scope: constraints, and entries of (action, resource, constraints) (SPEC 5, API.md 0.3). `scope` says how they meet.

Each constraint is a set of values of one key, and never the empty set, which would lie inside everything; `render` gives its wire form.
`coverage` knows every kind of constraint: whoever adds one adds it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from app.domain.glob import Glob
from app.domain.quantity import Quantity
from app.domain.resource import ResourcePattern, ScopeError


@dataclass(frozen=True, slots=True)
class Ceiling:
    """From nothing up to `quantity`, in its own unit or currency only."""

    quantity: Quantity

    def __post_init__(self) -> None:
        if self.quantity.minor < 0:
            raise ScopeError("a ceiling can't be below zero; nothing would be inside it")

    def same_unit(self, other: Ceiling) -> bool:
        return (self.quantity.unit, self.quantity.exponent) == (other.quantity.unit, other.quantity.exponent)

    def meet(self, other: Constraint) -> Ceiling | None:
        if not isinstance(other, Ceiling) or not self.same_unit(other):
            return None
        return self if self.quantity.minor <= other.quantity.minor else other

    def inside(self, outer: Constraint) -> bool:
        return isinstance(outer, Ceiling) and self.same_unit(outer) and self.quantity.minor <= outer.quantity.minor

    def render(self) -> dict[str, object]:
        return {"max": self.quantity.render()}


@dataclass(frozen=True, slots=True)
class Level:
    """A level of sensitivity: the one at `rank` of the bundle's `levels`, which go from the lowest to the highest."""

    levels: tuple[str, ...]
    rank: int

    @property
    def name(self) -> str:
        return self.levels[self.rank]


@dataclass(frozen=True, slots=True)
class LevelCeiling:
    """From the lowest level up to `level`; levels of another order don't compare."""

    level: Level

    def meet(self, other: Constraint) -> LevelCeiling | None:
        if not isinstance(other, LevelCeiling) or self.level.levels != other.level.levels:
            return None
        return self if self.level.rank <= other.level.rank else other

    def inside(self, outer: Constraint) -> bool:
        return isinstance(outer, LevelCeiling) and self.level.levels == outer.level.levels and self.level.rank <= outer.level.rank

    def render(self) -> dict[str, object]:
        return {"max": self.level.name}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts."""

    values: frozenset[str]

    def __post_init__(self) -> None:
        if not self.values:
            raise ScopeError("an enumeration can't be empty")

    def meet(self, other: Constraint) -> OneOf | None:
        shared = self.values & other.values if isinstance(other, OneOf) else frozenset()
        return OneOf(shared) if shared else None

    def inside(self, outer: Constraint) -> bool:
        return isinstance(outer, OneOf) and self.values <= outer.values

    def render(self) -> dict[str, object]:
        return {"in": sorted(self.values)}


@dataclass(frozen=True, slots=True)
class Window:
    """A moment of [from_, until), both aware and UTC."""

    from_: datetime
    until: datetime

    def __post_init__(self) -> None:
        if not self.from_ < self.until:
            raise ScopeError("`until` isn't after `from`; the window is empty")

    def meet(self, other: Constraint) -> Window | None:
        if not isinstance(other, Window):
            return None
        from_, until = max(self.from_, other.from_), min(self.until, other.until)
        return Window(from_, until) if from_ < until else None

    def inside(self, outer: Constraint) -> bool:
        return isinstance(outer, Window) and outer.from_ <= self.from_ and self.until <= outer.until

    def holds(self, moment: datetime) -> bool:
        return self.from_ <= moment < self.until

    def render(self) -> dict[str, object]:
        return {"from": _instant_text(self.from_), "until": _instant_text(self.until)}


Constraint = Ceiling | LevelCeiling | OneOf | Window


@dataclass(frozen=True, slots=True)
class Entry:
    """All points with that action, a resource of the pattern and a value inside each constraint, but for those of `excluded`.

    A key that isn't constrained is unlimited. Entries in `excluded` have no `excluded` of their own. `glob` is for forbids alone: of the
    pattern's resources only those that it hits.
    """

    action: str
    resource: ResourcePattern
    constraints: Mapping[str, Constraint] = field(default_factory=dict, hash=False)
    excluded: tuple[Entry, ...] = ()
    glob: Glob | None = None


def _instant_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The values of a scope: constraints, and entries of (action, resource, constraints) (SPEC 5, API.md 0.3). `scope` says how they meet.

Each constraint is a set of values of one key, and never the empty set, which would lie inside everything. `samples` gives values that tell
any group of constraints apart, `holds` says which set has them: `coverage` is exact only as long as both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

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

    def samples(self) -> tuple[object, ...]:
        return (self.quantity,)

    def holds(self, value: object) -> bool:
        return isinstance(value, Quantity) and Ceiling(value).inside(self)


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

    def samples(self) -> tuple[object, ...]:
        return tuple(self.values)

    def holds(self, value: object) -> bool:
        return isinstance(value, str) and value in self.values


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

    def samples(self) -> tuple[object, ...]:
        return (self.from_, self.until)

    def holds(self, value: object) -> bool:
        return isinstance(value, datetime) and self.from_ <= value < self.until


Constraint = Ceiling | OneOf | Window


@dataclass(frozen=True, slots=True)
class Entry:
    """All points with that action, a resource of the pattern and a value inside each constraint, but for those of `excluded`.

    A key that isn't constrained is unlimited. Entries in `excluded` have no `excluded` of their own.
    """

    action: str
    resource: ResourcePattern
    constraints: Mapping[str, Constraint] = field(default_factory=dict, hash=False)
    excluded: tuple[Entry, ...] = ()

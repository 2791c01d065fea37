"""How entries of a scope meet, and whether one lies inside others (SPEC 5.2).

Every answer is exact as sets: no false "inside", no false "empty". Entries with a free glob don't intersect: only `touches` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.coverage import escapes
from app.domain.entry import Ceiling, Constraint, Entry, LevelCeiling
from app.domain.glob import Glob
from app.domain.resource import ResourcePattern, Segment, exact, meet_resources, overlaps, resource_inside, star, without_case
from app.domain.resource_kind import kind_of


def meet(a: Entry, b: Entry) -> Entry | None:
    """Intersect two entries, exactly; None is the empty set."""
    assert a.glob is None and b.glob is None, "what a glob hits can't be written down as a pattern"
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
    return without(Entry(a.action, resource, constraints), (*a.excluded, *b.excluded))


def contains(outer: Entry, inner: Entry) -> bool:
    """Say whether each point of `inner` is one of `outer`, exactly."""
    if box_inside(inner, outer):
        if not inner.excluded:
            return not any(boxes_meet(inner, part) for part in outer.excluded)
        return not any(meet(inner, part) for part in outer.excluded)
    return bool(inner.excluded) and not escapes(inner, [outer])  # what inner excludes may be just what outer lacks


def covers(outers: Sequence[Entry], inner: Entry) -> bool:
    """Say whether each point of `inner` is in the union of `outers`, exactly: two halves cover a whole that neither contains."""
    if any(contains(outer, inner) for outer in outers):
        return True
    near = [outer for outer in outers if boxes_meet(outer, inner)]
    return len(near) > 1 and not escapes(inner, near)


def touches(need: Entry, forbidden: Entry) -> bool:
    """Say whether a forbid hits something of the need, in any case where the kind asks for that; what it excepts is exact.

    Too much is forbidden rather than too little: a free glob is taken to hit whatever isn't one resource, and a constraint that the need's
    can't be compared with (an enumeration with a ceiling, rows with bytes) never lets the need off.
    """
    if need.action != forbidden.action:
        return False
    any_case, odd = kind_of(need.resource.kind).forbids_any_case, incomparable(need, forbidden)
    if not any_case and not odd and forbidden.glob is None:
        return meet(need, forbidden) is not None
    if not _hits(need.resource, forbidden, any_case):
        return False
    return odd or meet(need, Entry(need.action, need.resource, forbidden.constraints, forbidden.excluded)) is not None


def incomparable(need: Entry, other: Entry) -> bool:
    """Say whether some constraint of the need is of another kind than the other entry's (PS-15): as sets they only never meet."""
    return any(key in need.constraints and not comparable(need.constraints[key], limit) for key, limit in other.constraints.items())


def comparable(a: Constraint, b: Constraint) -> bool:
    """Say whether two constraints are of one kind; amounts in two currencies are, they just never meet."""
    match a, b:
        case Ceiling(), Ceiling():
            return (a.quantity.is_currency and b.quantity.is_currency) or a.same_unit(b)
        case LevelCeiling(), LevelCeiling():
            return a.level.levels == b.level.levels
        case _:
            return type(a) is type(b)


def _hits(resource: ResourcePattern, forbidden: Entry, any_case: bool) -> bool:
    pattern, glob = forbidden.resource, forbidden.glob
    if any_case:
        resource, pattern = without_case(resource), without_case(pattern)
        glob = Glob(glob.kind, tuple(part.casefold() for part in glob.parts), glob.question_is_text) if glob is not None else None
    if meet_resources(resource, pattern) is None:
        return False
    return glob is None or not resource.is_concrete or glob.matches([segment.prefix for segment in resource.segments])


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
    found = (without(Entry(entry.action, resource, entry.constraints), entry.excluded) for resource in resources)
    return tuple(part for part in found if part is not None)


def boxes_meet(a: Entry, b: Entry) -> bool:
    """Say whether two entries have a point in common, were nothing excluded."""
    return (
        a.action == b.action
        and all(key not in a.constraints or a.constraints[key].meet(limit) is not None for key, limit in b.constraints.items())
        and meet_resources(a.resource, b.resource) is not None
    )


def key_inside(need: Entry, key: str, limit: Constraint) -> bool:
    asked = need.constraints.get(key)
    return asked is not None and asked.inside(limit)


def box_inside(inner: Entry, outer: Entry) -> bool:
    """Compare without `excluded`."""
    return (
        inner.action == outer.action
        and outer.glob is None
        and all(key_inside(inner, key, limit) for key, limit in outer.constraints.items())
        and resource_inside(inner.resource, outer.resource)
    )


def without(bare: Entry, taken: Sequence[Entry]) -> Entry | None:
    """Take entries out of one that excludes nothing yet; None if nothing is left. Only the largest that touch it are kept, in one order."""
    if not taken:
        return bare
    touching = {part: None for part in taken if meet(bare, part) is not None}
    largest = [part for part in touching if not any(part != other and box_inside(part, other) for other in touching)]
    entry = Entry(bare.action, bare.resource, bare.constraints, tuple(sorted(largest, key=_order)))
    return entry if not largest or escapes(entry, ()) else None


def _order(entry: Entry) -> tuple[str, ...]:
    limits = (f"{key}={entry.constraints[key].render()}" for key in sorted(entry.constraints))
    return (entry.action, entry.resource.text, repr(entry.resource), *limits)

"""Whether one entry lies inside the union of others, exactly, by looking for a point that escapes (SPEC 5.2).

Along each dimension (number of segments, each segment, each constraint key) finitely many sample values stand for all values, because they
meet every combination of patterns that any value meets; a signature says which entries hold one. The search walks the dimensions and keeps
only which entries still hold the point. Whoever adds a kind of constraint or segment must give it signatures with that property, else a
false "inside" becomes possible. Making them costs no more than what was written, because callers write some of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import assert_never

from app.domain.entry import Ceiling, Constraint, Entry, LevelCeiling, OneOf, Window
from app.domain.resource import ANY, Segment, overlaps, star

STEPS_MAX = 20_000
"""Past this many steps the answer is "it escapes", which is the safe side: what escapes isn't granted."""

_COMPARED_MAX = 64  # comparing every pair of more would cost more than it saves


def escapes(inner: Entry, outers: Sequence[Entry]) -> bool:
    """Say whether some point of `inner` lies in none of `outers`. Without `outers`: whether `inner` has a point at all."""
    return _Search(inner, outers).run()


class _Search:
    """Bit 0 of a mask is `inner`; every other entry and every excluded entry has a bit of its own."""

    def __init__(self, inner: Entry, outers: Sequence[Entry]) -> None:
        self.boxes = [inner, *inner.excluded]
        self.barred = (1 << len(self.boxes)) - 2  # a point in one of these isn't inner's
        self.outers: list[tuple[int, int]] = []  # (bit of the entry, bits of what it excludes)
        for outer in outers:
            bit, holes = 1 << len(self.boxes), ((1 << len(outer.excluded)) - 1) << (len(self.boxes) + 1)
            self.outers.append((bit, holes))
            self.boxes += [outer, *outer.excluded]
        self.holes = sum(holes for _, holes in self.outers)  # a point in one of these isn't that outer's
        self.against = self.barred | sum(bit for bit, _ in self.outers)
        self.steps = 0

    def run(self) -> bool:
        inner = self.boxes[0]
        same = self._mask([box.action == inner.action and box.resource.kind == inner.resource.kind for box in self.boxes])
        by_key = self._key_signatures()
        own = len(inner.resource.segments)
        depth = max(len(box.resource.segments) for box in self.boxes)
        lengths = range(own + 1, depth + 2) if inner.resource.deep else range(own, own + 1)
        by_position = [self._segment_signatures(position) for position in range(lengths[-1])]
        for length in lengths:
            fits = self._mask(
                [length > len(box.resource.segments) if box.resource.deep else length == len(box.resource.segments) for box in self.boxes]
            )
            if self._escapes(by_position[:length] + by_key, same & fits):
                return True
        return False

    def _escapes(self, dimensions: Sequence[tuple[int, ...]], alive: int) -> bool:
        """Walk the dimensions, depth first and without recursion, because a caller may write thousands of keys."""
        open_ones = []
        for signatures in dimensions:
            if len(signatures) == 1:
                alive &= signatures[0]
            else:
                open_ones.append(signatures)
        seen = {(0, alive)}
        stack = [(0, alive)]
        while stack:
            dimension, alive = stack.pop()
            if not alive & 1:
                continue
            if not alive & self.against:
                return True  # what is left to choose only has to suit inner, and every set of it has a value
            if dimension == len(open_ones):
                if not alive & self.barred and all(alive & holes for bit, holes in self.outers if alive & bit):
                    return True
                continue
            for signature in reversed(open_ones[dimension]):
                self.steps += 1
                if self.steps > STEPS_MAX:
                    return True
                state = (dimension + 1, alive & signature)
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        return False

    def _key_signatures(self) -> list[tuple[int, ...]]:
        limits: dict[str, list[tuple[int, Constraint]]] = {}
        for index, box in enumerate(self.boxes):
            for key, constraint in box.constraints.items():
                limits.setdefault(key, []).append((1 << index, constraint))
        everything = (1 << len(self.boxes)) - 1
        found = []
        for key in sorted(limits):
            free = everything & ~sum(bit for bit, _ in limits[key])
            found.append(self._signatures({free | mask for mask in _masks(limits[key])}))
        return found

    def _segment_signatures(self, position: int) -> tuple[int, ...]:
        segments = [box.resource.segments[position] if position < len(box.resource.segments) else ANY for box in self.boxes]
        mine = segments[0]
        texts = {mine.prefix} if mine.suffix is None else _sample_texts(segments)
        return self._signatures({self._mask([segment.matches(text) for segment in segments]) for text in texts})

    def _signatures(self, masks: set[int]) -> tuple[int, ...]:
        """Keep those that inner holds, and of these the ones that no other makes needless; those that fewest entries hold come first."""
        mine = sorted({mask ^ self.holes for mask in masks if mask & 1})
        if len(mine) <= _COMPARED_MAX:
            mine = [mask for mask in mine if not any(other & mask == other != mask for other in mine)]
        return tuple(mask ^ self.holes for mask in mine)

    @staticmethod
    def _mask(row: list[bool]) -> int:
        return sum(1 << index for index, holds in enumerate(row) if holds)


def _masks(limits: Sequence[tuple[int, Constraint]]) -> set[int]:
    """Give, for each value of a key that matters, the bits of the constraints that hold it; 0 is for a value that none holds."""
    by_value: dict[str, int] = {}
    ceilings: dict[object, list[tuple[int, int]]] = {}  # those of one unit or order of levels, as (height, bit)
    windows: list[tuple[Window, int]] = []
    for bit, constraint in limits:
        match constraint:
            case OneOf(values):
                for value in values:
                    by_value[value] = by_value.get(value, 0) | bit
            case Ceiling(quantity):
                ceilings.setdefault((quantity.unit, quantity.exponent), []).append((quantity.minor, bit))
            case LevelCeiling(level):
                ceilings.setdefault(level.levels, []).append((level.rank, bit))
            case Window():
                windows.append((constraint, bit))
            case _:
                assert_never(constraint)
    found = {0, *by_value.values()}
    for of_unit in ceilings.values():
        mask = 0
        for _, alike in groupby(sorted(of_unit, reverse=True), key=itemgetter(0)):  # from the highest down: each holds what is below
            mask |= sum(bit for _, bit in alike)
            found.add(mask)
    for moment in {moment for window, _ in windows for moment in (window.from_, window.until)}:
        found.add(sum(bit for window, bit in windows if window.holds(moment)))
    return found


def _sample_texts(segments: Sequence[Segment]) -> set[str]:
    """Give texts that meet every combination of segments that any text meets.

    What a text meets follows from the longest prefix and suffix that it has of those named, and from its length where the two touch or
    overlap; past that, a middle of a character that nobody names is as good as any.
    """
    starred = [segment for segment in segments if segment.suffix is not None]
    used = {character for segment in segments for character in segment.text}
    fresh = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in used)
    texts = {segment.prefix for segment in segments if segment.suffix is None}
    for prefix in {segment.prefix for segment in starred}:
        for suffix in {segment.suffix or "" for segment in starred}:
            texts.update(overlaps(star(prefix, suffix, 0)))
            texts.add(prefix + fresh + suffix)
    return texts

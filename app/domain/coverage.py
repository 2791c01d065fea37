"""Whether one entry lies inside the union of others, exactly, by looking for a point that escapes (SPEC 5.2).

Along each dimension (number of segments, each segment, each constraint key) finitely many sample values stand for all values, because they
meet every combination of patterns that any value meets. The search walks the dimensions and keeps only which entries still hold the point.
Whoever adds a kind of constraint or segment must give it samples with that property, else a false "inside" becomes possible.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.entry import Entry
from app.domain.resource import ANY, Segment, overlaps, star

STEPS_MAX = 20_000
"""Past this many steps the answer is "it escapes", which is the safe side: what escapes isn't granted."""

_OUTSIDE = object()  # a value that no constraint has; only an entry without the key holds it


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
        self.keys = sorted({key for box in self.boxes for key in box.constraints})
        self.dimensions: list[tuple[int, ...]] = []
        self.failed: set[tuple[int, int]] = set()
        self.steps = 0

    def run(self) -> bool:
        inner = self.boxes[0]
        same = self._mask([box.action == inner.action and box.resource.kind == inner.resource.kind for box in self.boxes])
        by_key = [self._key_signatures(key) for key in self.keys]
        depth = max(len(box.resource.segments) for box in self.boxes)
        by_position = [self._segment_signatures(position) for position in range(depth + 1)]
        for length in range(1, depth + 2):
            fits = self._mask(
                [length > len(box.resource.segments) if box.resource.deep else length == len(box.resource.segments) for box in self.boxes]
            )
            self.dimensions = by_position[:length] + by_key
            self.failed.clear()
            if self._escapes_from(0, same & fits):
                return True
        return False

    def _escapes_from(self, dimension: int, alive: int) -> bool:
        if not alive & 1:
            return False
        open_outers = [(bit, holes) for bit, holes in self.outers if alive & bit]
        if not alive & self.barred and not open_outers:
            return True  # what is left to choose only has to suit inner, and every set of it has a value
        if dimension == len(self.dimensions):
            return not alive & self.barred and all(alive & holes for _, holes in open_outers)
        if (dimension, alive) in self.failed:
            return False
        self.steps += 1
        if self.steps > STEPS_MAX:
            return True
        if any(self._escapes_from(dimension + 1, alive & signature) for signature in self.dimensions[dimension]):
            return True
        self.failed.add((dimension, alive))
        return False

    def _key_signatures(self, key: str) -> tuple[int, ...]:
        constraints = [box.constraints.get(key) for box in self.boxes]
        values = {value for constraint in constraints if constraint is not None for value in constraint.samples()}
        rows = [[constraint is None or constraint.holds(value) for constraint in constraints] for value in (_OUTSIDE, *values)]
        return self._signatures(rows)

    def _segment_signatures(self, position: int) -> tuple[int, ...]:
        segments = [box.resource.segments[position] if position < len(box.resource.segments) else ANY for box in self.boxes]
        return self._signatures([[segment.matches(text) for segment in segments] for text in _sample_texts(segments)])

    def _signatures(self, rows: list[list[bool]]) -> tuple[int, ...]:
        return tuple(sorted({self._mask(row) for row in rows}, reverse=True))

    @staticmethod
    def _mask(row: list[bool]) -> int:
        return sum(1 << index for index, holds in enumerate(row) if holds)


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

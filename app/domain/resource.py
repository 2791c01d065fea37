"""Resources and patterns over them: `kind:segment/segment`, exact, prefix`*`suffix, `**` at the end (SPEC 5.1).

A pattern stands for the set of concrete resources that it matches, and every set has one representation, so that equal sets compare equal.
A value that came from a caller is read with `concrete_resource` and never with `parse_pattern`: it must not become a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.echo import echo
from app.domain.glob import Glob, is_free
from app.domain.resource_kind import DOTS, SEGMENTS_MAX, ScopeError, is_settled, kind_of, split

__all__ = [
    "ANY",
    "SEGMENTS_MAX",
    "ResourcePattern",
    "ScopeError",
    "Segment",
    "concrete_resource",
    "exact",
    "meet_resources",
    "meet_segments",
    "overlaps",
    "parse_forbidden",
    "parse_pattern",
    "resource_inside",
    "star",
    "without_case",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """One exact text (`suffix` is None), or all texts of at least `least` characters with that prefix and suffix, which may overlap.

    Without `least` the meet of `a*` and `*a` couldn't be written: it has `a`, which `a*a` hasn't.
    """

    prefix: str
    suffix: str | None
    least: int

    @property
    def text(self) -> str:
        return self.prefix if self.suffix is None else f"{self.prefix}*{self.suffix}"

    def matches(self, text: str) -> bool:
        if self.suffix is None:
            return text == self.prefix
        return len(text) >= self.least and text.startswith(self.prefix) and text.endswith(self.suffix)


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """`segments` one by one; with `deep`, one or more segments of any text follow (`**`: what is inside, not the thing itself)."""

    kind: str
    segments: tuple[Segment, ...]
    deep: bool = False

    @property
    def text(self) -> str:
        """The written form. A pattern that a meet made may be wider than its text reads back: `scope.spelled_out` splits it first."""
        return f"{self.kind}:{'/'.join([segment.text for segment in self.segments] + ['**'] * self.deep)}"

    @property
    def is_concrete(self) -> bool:
        return not self.deep and all(segment.suffix is None for segment in self.segments)


def exact(text: str) -> Segment:
    return Segment(text, None, len(text))


def star(prefix: str, suffix: str, least: int | None = None) -> Segment:
    """Make the segment for `prefix*suffix`; without `least`, prefix and suffix don't overlap.

    `least` is raised to the length of the shortest text that there is, which makes the representation unique.
    """
    apart = len(prefix) + len(suffix)
    length = apart if least is None else max(least, len(prefix), len(suffix))
    while length <= apart and not _overlap(prefix, suffix, length):
        length += 1
    return Segment(prefix, suffix, length)


ANY = Segment("", "", 1)
"""`*`: any text, and no segment is empty."""


def overlaps(segment: Segment) -> tuple[str, ...]:
    """Give the texts of a starred segment in which prefix and suffix overlap or touch: all that are not longer than both together."""
    if segment.suffix is None:
        return (segment.prefix,)
    apart = len(segment.prefix) + len(segment.suffix)
    found = (_overlap(segment.prefix, segment.suffix, length) for length in range(segment.least, apart + 1))
    return tuple(text for text in found if text)


def parse_pattern(text: str) -> ResourcePattern:
    """Read a pattern that an author or a runtime wrote.

    Raises:
        ScopeError: the kind or a segment isn't one.
    """
    kind, parts = split(text, "pattern")
    deep = parts[-1] == "**"
    return ResourcePattern(kind, tuple(_segment(part) for part in (parts[:-1] if deep else parts)), deep)


def parse_forbidden(text: str) -> tuple[ResourcePattern, Glob | None]:
    """Read what a forbid names: a pattern, or a free glob with the pattern of everything of its kind.

    Raises:
        ScopeError: the kind or a segment isn't one.
    """
    kind, parts = split(text, "glob")
    question_is_text = kind_of(kind).question_is_text
    if "**" not in parts[:-1] and not any(is_free(part, question_is_text=question_is_text) for part in parts if part != "**"):
        return parse_pattern(text), None
    for part in parts:
        if "**" in part and part != "**":
            raise ScopeError(f"{echo(part)} isn't a segment; `**` stands for whole segments")
    return ResourcePattern(kind, (), deep=True), Glob(kind, tuple(parts), question_is_text)


def without_case(pattern: ResourcePattern) -> ResourcePattern:
    """Give the pattern for texts whose case was taken away; it hits each text that the pattern hits in some case."""
    segments = (
        exact(one.prefix.casefold()) if one.suffix is None else star(one.prefix.casefold(), one.suffix.casefold(), one.least)
        for one in pattern.segments
    )
    return ResourcePattern(pattern.kind, tuple(segments), pattern.deep)


def concrete_resource(text: str) -> ResourcePattern:
    """Read one resource whose text may come from arguments; `*` is refused, because a value must never become a pattern (CWE-22, CWE-155).

    Raises:
        ScopeError: `*`, an empty or dotted segment, a control character, or too long.
    """
    kind, parts = split(text, "concrete")
    for part in parts:
        if "*" in part:
            raise ScopeError(f"{echo(text)} has a `*`; name one resource exactly")
    return ResourcePattern(kind, tuple(exact(part) for part in parts))


def meet_resources(a: ResourcePattern, b: ResourcePattern) -> ResourcePattern | None:
    """Intersect two patterns, exactly; None is the empty set."""
    if a.kind != b.kind:
        return None
    short, long = (a, b) if len(a.segments) <= len(b.segments) else (b, a)
    longer = len(long.segments) - len(short.segments)
    if short.deep:
        if not longer and not long.deep:
            return None
    elif longer or long.deep:
        return None
    segments = []
    for left, right in zip(short.segments, long.segments, strict=False):
        met = meet_segments(left, right)
        if met is None:
            return None
        segments.append(met)
    return ResourcePattern(a.kind, (*segments, *long.segments[len(segments) :]), long.deep)


def resource_inside(inner: ResourcePattern, outer: ResourcePattern) -> bool:
    """Say whether each resource of `inner` is one of `outer`, exactly."""
    if inner.kind != outer.kind:
        return False
    more = len(inner.segments) - len(outer.segments)
    if outer.deep:
        if more < 0 or (more == 0 and not inner.deep):
            return False
    elif more or inner.deep:
        return False
    return all(_segment_inside(left, right) for left, right in zip(inner.segments, outer.segments, strict=False))


def meet_segments(a: Segment, b: Segment) -> Segment | None:
    if a.suffix is None:
        return a if b.matches(a.prefix) else None
    if b.suffix is None:
        return b if a.matches(b.prefix) else None
    prefix, other = (a.prefix, b.prefix) if len(a.prefix) >= len(b.prefix) else (b.prefix, a.prefix)
    if not prefix.startswith(other):
        return None
    suffix, other = (a.suffix, b.suffix) if len(a.suffix) >= len(b.suffix) else (b.suffix, a.suffix)
    if not suffix.endswith(other):
        return None
    return star(prefix, suffix, max(a.least, b.least))


def _segment_inside(inner: Segment, outer: Segment) -> bool:
    if inner.suffix is None:
        return outer.matches(inner.prefix)
    if outer.suffix is None:
        return False  # a starred segment has texts without end, an exact one has one
    # the middle of inner's texts is free, so a longer prefix or suffix of outer would always miss some; `least` is reached by some text
    return inner.prefix.startswith(outer.prefix) and inner.suffix.endswith(outer.suffix) and inner.least >= outer.least


def _overlap(prefix: str, suffix: str, length: int) -> str | None:
    """Give the one text of that length with that prefix and suffix, where they overlap or touch, None if there is no such segment."""
    shared = len(prefix) + len(suffix) - length
    if shared > min(len(prefix), len(suffix)) or not prefix.endswith(suffix[:shared]):
        return None
    text = prefix + suffix[shared:]
    return None if text in DOTS or not is_settled(text) else text


def _segment(part: str) -> Segment:
    stars = part.count("*")
    if not stars:
        return exact(part)
    if stars > 1:
        raise ScopeError(f"{echo(part)} isn't a segment; write one `*` at most, and `**` only as the last segment")
    prefix, _, suffix = part.partition("*")
    return star(prefix, suffix)

"""Free globs over resources, for forbids only (SPEC 5.1): `*` and `?` inside a segment, `**` for any number of segments.

They only say whether one concrete resource is hit; they don't intersect, so nothing that is granted or requested may hold one. Matching
never backtracks more than length times length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, slots=True)
class Glob:
    """`**` stands for no, one or more segments; as the last one for one or more: what is inside, not the thing itself."""

    kind: str
    parts: tuple[str, ...]
    question_is_text: bool = False

    @property
    def text(self) -> str:
        return f"{self.kind}:{'/'.join(self.parts)}"

    def matches(self, segments: Sequence[str]) -> bool:
        parts = (*self.parts[:-1], "*", "**") if self.parts[-1] == "**" else self.parts
        return _wild(parts, segments, "**", self._segment)

    def _segment(self, part: str, text: str) -> bool:
        return _wild(part, text, "*", lambda one, character: one == character or (one == "?" and not self.question_is_text))


def is_free(part: str, *, question_is_text: bool) -> bool:
    """Say whether a segment is more than an exact text or one prefix and suffix."""
    return part.count("*") > 1 or (not question_is_text and "?" in part)


def _wild(pattern: Sequence[_A], text: Sequence[_B], any_number: _A, one: Callable[[_A, _B], bool]) -> bool:
    at = reached = 0
    star = resume = -1
    while reached < len(text):
        if at < len(pattern) and pattern[at] == any_number:
            star, resume, at = at, reached, at + 1
        elif at < len(pattern) and one(pattern[at], text[reached]):
            at, reached = at + 1, reached + 1
        elif star >= 0:  # let the last star take one more
            at, resume = star + 1, resume + 1
            reached = resume
        else:
            return False
    return all(each == any_number for each in pattern[at:])

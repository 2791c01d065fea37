"""What an author is told about a bundle that is no fault: what stands in a schema and is asserted by nothing.

A note never takes the place of a fault: what loosens a decision without its author's will is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

NOTES_MAX = 200


@dataclass(frozen=True, slots=True)
class PolicyNote:
    """One note: where it is, `pointer` inside the tool's schema."""

    file: str
    line: int
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.pointer}: {self.message}"


class Notes:
    """Collects notes, at most NOTES_MAX in the order of finding, and counts the others."""

    def __init__(self) -> None:
        self.found: list[PolicyNote] = []
        self.left_out = 0

    def add(self, note: PolicyNote) -> None:
        if len(self.found) < NOTES_MAX:
            self.found.append(note)
        else:
            self.left_out += 1

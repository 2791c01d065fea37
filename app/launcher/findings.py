"""One finding of `placet doctor`. A fault keeps the service from serving; a note doesn't, and still wants somebody's eye."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, what was seen, and, unless it is right, what to do."""

    check: str
    status: Status
    said: str
    remedy: str | None = None

    def document(self) -> dict[str, str]:
        """Give it as JSON; `remedy` is absent where nothing is to do."""
        found = {"check": self.check, "status": self.status.value, "said": self.said}
        return found | ({"remedy": self.remedy} if self.remedy is not None else {})


def good(check: str, said: str) -> Finding:
    return Finding(check, Status.OK, said)


def note(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Status.NOTE, said, remedy)


def fault(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Status.FAULT, said, remedy)


def fault_of(check: str, message: str, otherwise: str) -> Finding:
    """Make a fault of a message that says what is wrong and, behind a semicolon, what to do; `otherwise` where it doesn't say that."""
    said, _, remedy = message.partition("; ")
    return fault(check, said, remedy or otherwise)

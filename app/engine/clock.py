"""Time, ids and randomness, the only place that makes them; everything else gets them as arguments."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from uuid_utils.compat import uuid7


@dataclass(frozen=True, slots=True)
class Clock:
    """The real clock; tests give one of their own."""

    def now(self) -> datetime:
        """Give the moment, aware and UTC, to the millisecond: the precision that answers and the audit show."""
        now = datetime.now(UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def new_id(self) -> UUID:
        """Give a UUIDv7."""
        return uuid7()

    def salt(self) -> bytes:
        """Give 16 random bytes for a payload's digest."""
        return secrets.token_bytes(16)


def rfc3339(moment: datetime) -> str:
    """Write a moment as answers do: UTC, three decimals, `Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Whether this worker can decide: database, migrations at head, roles, the next partition, a served policy, and the real function
(SPEC S11.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.errors import DecisionUnavailable
from app.engine.authority import PLATFORM_TENANT
from app.storage import readiness as stored
from app.storage.database import Database
from app.storage.readiness import DatabaseState

ANSWER_WITHIN_S = 1.5
"""A database that hangs costs a time-out for the connection that is tried and another for the new one, and more than two seconds."""


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """Each check with `ok` or what is wrong and what to do."""

    checks: Mapping[str, str]

    @property
    def ready(self) -> bool:
        return all(value == "ok" for value in self.checks.values())


class Readiness:
    def __init__(self, database: Database, head_revision: str | None, *, single_role: bool) -> None:
        self._database = database
        self._head = head_revision
        self._single_role = single_role

    async def report(self) -> ReadinessReport:
        """Ask the database; one that is away is a report, not an exception."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S), self._database.transaction([PLATFORM_TENANT]) as connection:
                found = await stored.read_state(connection, PLATFORM_TENANT)
        except (DecisionUnavailable, TimeoutError):
            return ReadinessReport({"database": "can't be reached"})
        checks = {"database": "ok"}
        checks["migrations"] = "ok" if found.revision == self._head else f"at {found.revision}, not {self._head}: run `placet migrate`"
        checks["role"] = self._role(found)
        checks["partitions"] = "ok" if found.next_partitions else "next month's partitions are missing: run `placet migrate`"
        checks["policy"] = "ok" if found.policy_loaded else "no policy is active on the platform"
        checks["functions"] = "ok" if found.functions_work else "the decision functions don't answer"
        return ReadinessReport(checks)

    def _role(self, found: DatabaseState) -> str:
        if found.revision is None:
            return "can't be told without the schema"
        if found.too_powerful and not self._single_role:
            return "the service's role owns tables, bypasses row level security or is a superuser"
        return "ok"

    async def gauges(self) -> Mapping[str, float]:
        """Give the values that only the database knows, for the scrape."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S), self._database.transaction([PLATFORM_TENANT]) as connection:
                return {**await stored.read_gauges(connection), "placet_database_up": 1.0}
        except (DecisionUnavailable, TimeoutError):
            return {"placet_database_up": 0.0}

"""Audit rows of requests that got no decision: refused ones of a known key each, unauthenticated ones as a sample (SPEC S10.1)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from app.domain.errors import DecisionUnavailable
from app.domain.tool_call import Principal
from app.engine.authority import PLATFORM_TENANT
from app.engine.chain import Event, append, lock_chain
from app.engine.clock import Clock
from app.engine.rate_limits import window_of
from app.storage import rate_limits as stored
from app.storage.database import Database

EVENT = "request.refused"
SAMPLE_EVERY = timedelta(seconds=10)
SAMPLE_WITHIN_S = 0.5
LIMITED_KEYS_MAX = 10_000


class RefusalRecorder:
    """Writes one row a refused request; of the body only its digest."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._unrecorded = 0
        self._sample_due_at = clock.now()
        self._limited: OrderedDict[tuple[UUID, str], tuple[datetime | None, int]] = OrderedDict()  # (window tried last, unrecorded)

    async def refused(self, principal: Principal, route: str, code: str, status: int, trace_id: str | None, body: bytes | None) -> None:
        """Record a refused request of an authenticated key; `trace_id` is the one that its answer names.

        Raises:
            DecisionUnavailable: the row can't be written.
        """
        facts: dict[str, object] = {"route": route, "code": code, "http_status": status}
        if trace_id is not None:
            facts["trace_id"] = trace_id
        if body is not None:
            facts["body_digest"] = f"sha256:{sha256(body).hexdigest()}"
        await self._append(principal.tenant_id, principal.subject, tuple(sorted(principal.roles)), facts)

    async def limited(self, principal: Principal, route: str, code: str, trace_id: str | None) -> None:
        """Count a request that was refused for a limit of its key; one row a key, code and minute, whichever worker is first.

        Its `requests` are those that this worker has refused since its last row. It is a sample: where the row can't be written, the
        count waits for the next minute and the refusal stands, because a flood must cost the database nothing.
        """
        key = (principal.key_id, code)
        window = window_of(self._clock.now())
        tried, count = self._limited.pop(key, (None, 0))
        self._limited[key] = (window, count + 1)
        if len(self._limited) > LIMITED_KEYS_MAX:
            self._limited.popitem(last=False)
        if tried == window:
            return
        count += 1
        facts: dict[str, object] = {"route": route, "code": code, "http_status": 429, "requests": count}
        if trace_id is not None:
            facts["trace_id"] = trace_id
        try:
            async with asyncio.timeout(SAMPLE_WITHIN_S):
                written = await self._append(
                    principal.tenant_id, principal.subject, tuple(sorted(principal.roles)), facts, once=(principal.key_id, window, code)
                )
        except (DecisionUnavailable, TimeoutError):
            return
        if written and key in self._limited:
            tried, later = self._limited[key]
            self._limited[key] = (tried, later - count)

    async def unauthenticated(self, route: str) -> None:
        """Count a request without a valid key; one row each ten seconds says how many there were in this worker.

        It is a sample: where the row can't be written, the count waits for the next one and the refusal stands.
        """
        self._unrecorded += 1
        now = self._clock.now()
        if now < self._sample_due_at:
            return
        self._sample_due_at = now + SAMPLE_EVERY
        count, self._unrecorded = self._unrecorded, 0
        facts: dict[str, object] = {"route": route, "code": "unauthenticated", "http_status": 401, "requests": count}
        try:
            async with asyncio.timeout(SAMPLE_WITHIN_S):
                await self._append(PLATFORM_TENANT, "unauthenticated", (), facts)
        except (DecisionUnavailable, TimeoutError):
            self._unrecorded += count

    async def _append(
        self,
        tenant_id: UUID,
        subject: str,
        roles: tuple[str, ...],
        facts: dict[str, object],
        once: tuple[UUID, datetime, str] | None = None,
    ) -> bool:
        """Append a row; with `once` (key, window, code) only where none was appended for these. Gives whether it was."""
        async with self._database.transaction([tenant_id]) as connection:
            if once is not None and not await stored.mark_recorded(connection, tenant_id, *once):
                return False
            head, name = await lock_chain(connection, tenant_id)  # last, as every writer's
            event = Event(EVENT, self._clock.now(), subject, roles, facts)
            await append(connection, tenant_id, name, head, event, self._clock.salt())
        return True

"""Reading back: decisions, approvals, keys, freezes, policies, the verification of a tenant's chain.

Nothing here changes or permits anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import jiter

from app.domain.errors import NotFound
from app.domain.tool_call import Principal, Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.checkpoints import Checkpoints
from app.engine.clock import Clock
from app.engine.verify_chain import ChainReport, verify_chain
from app.storage import approvals, audit, decision_history, freezes
from app.storage import authority as stored
from app.storage.approvals import ApprovalRow
from app.storage.authority import KeyRow, PolicyRow
from app.storage.database import Database
from app.storage.decision_history import DecisionFilter, DecisionsPage
from app.storage.freezes import FreezeRow

WAIT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision read back. `payload` (request and answer) is None once it was erased."""

    row: Any
    payload: Mapping[str, Any] | None
    hash: str


class Reader:
    def __init__(self, database: Database, checkpoints: Checkpoints, clock: Clock | None = None) -> None:
        self._database = database
        self._checkpoints = checkpoints
        self._clock = clock if clock is not None else Clock()

    async def decision(self, principal: Principal, decision_id: UUID) -> StoredDecision:
        """Give a decision of the principal's tenant; an agent sees its own only.

        Raises:
            NotFound: there is none that this principal may see.
        """
        async with self._database.transaction([principal.tenant_id]) as connection:
            row = await audit.read_decision(connection, principal.tenant_id, decision_id)
        sees_all = bool({Role.AUDITOR, Role.EXECUTOR} & principal.roles)
        if row is None or not (sees_all or row.subject == principal.subject):
            raise NotFound("there is no such decision")
        payload = jiter.from_json(row.payload.encode(), float_mode="decimal") if row.payload is not None else None
        return StoredDecision(row, payload, row.hash)

    async def decisions(
        self, tenant_id: UUID, wanted: DecisionFilter, limit: int, after: int | None, *, newest_first: bool
    ) -> DecisionsPage:
        """Give a page of a tenant's decisions behind the one at sequence `after`."""
        async with self._database.transaction([tenant_id]) as connection:
            return await decision_history.read_page(connection, tenant_id, wanted, limit, after, newest_first=newest_first)

    async def approval(self, principal: Principal, approval_id: UUID) -> ApprovalRow:
        """Give an approval of the principal's tenant; who isn't a reviewer sees only what they asked for.

        Raises:
            NotFound: there is none that this principal may see.
        """
        async with self._database.transaction([principal.tenant_id]) as connection:
            row = await approvals.read_approval(connection, principal.tenant_id, approval_id, self._clock.now())
        if row is None or not (Role.REVIEWER in principal.roles or row.requested_by == principal.subject):
            raise NotFound("there is no such approval")
        return row

    async def wait_for_approval(self, tenant_id: UUID, approval_id: UUID, wait_s: float, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Wait until an approval isn't pending any more, at most `wait_s` seconds; no transaction is open between the looks.

        `is_over` says whether waiting has lost its sense: whoever asked has left, or the service stops.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while (left := until - loop.time()) > 0 and not await is_over():
            async with self._database.transaction([tenant_id]) as connection:
                status = await approvals.read_status(connection, tenant_id, approval_id, self._clock.now())
            if status != approvals.PENDING:
                return
            await asyncio.sleep(min(WAIT_EVERY_S, left))

    async def approvals(self, tenant_id: UUID, status: str | None, limit: int, after: UUID | None) -> list[ApprovalRow]:
        """Give a page of a tenant's approvals, oldest first."""
        async with self._database.transaction([tenant_id]) as connection:
            return await approvals.list_approvals(connection, tenant_id, status, self._clock.now(), limit, after)

    async def keys(self, tenant_id: UUID, limit: int, after: UUID | None) -> list[KeyRow]:
        """Give a page of a tenant's keys."""
        async with self._database.transaction([tenant_id]) as connection:
            return await stored.list_keys(connection, tenant_id, limit, after)

    async def freezes(self, tenant_id: UUID, limit: int, before: UUID | None, *, only_in_force: bool) -> list[FreezeRow]:
        """Give a page of a tenant's freezes, newest first."""
        async with self._database.transaction([tenant_id]) as connection:
            return await freezes.list_freezes(connection, tenant_id, limit, before, only_in_force=only_in_force)

    async def policies(self, tenant_id: UUID, limit: int, before: int | None) -> list[PolicyRow]:
        """Give a page of a tenant's policy versions, newest first."""
        async with self._database.transaction([tenant_id]) as connection:
            return await stored.list_policies(connection, tenant_id, limit, before)

    async def tenant_id(self, name: str) -> UUID | None:
        """Give a tenant's id by its name, for the platform's operator."""
        async with self._database.transaction([PLATFORM_TENANT]) as connection:
            return await stored.tenant_of_name(connection, name)

    async def verification(self, tenant_id: UUID) -> ChainReport:
        """Check a tenant's whole chain against its head and checkpoints."""
        return await verify_chain(self._database, self._checkpoints, tenant_id)

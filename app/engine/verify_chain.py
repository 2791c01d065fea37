"""Verifies a tenant's chain against its head and its signed checkpoints, page by page, so that any length fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.domain.audit_chain import START, ChainPoint, StoredPayload, StoredRow, Verification, verify
from app.domain.errors import NotFound
from app.engine.checkpoints import Checkpoints, point_of
from app.storage import audit
from app.storage import authority as stored
from app.storage.audit import ChainRow, Checkpoint
from app.storage.database import Database


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What was verified of which chain; each checkpoint with whether its signature is this service's and holds."""

    chain: str
    verification: Verification
    checkpoints: tuple[tuple[Checkpoint, bool], ...]


async def verify_chain(database: Database, checkpoints: Checkpoints, tenant_id: UUID) -> ChainReport:
    """Check every row of a tenant's chain; the first broken one is named.

    Raises:
        NotFound: there is no such tenant.
    """
    async with database.transaction([tenant_id]) as connection:
        tenant = await stored.read_tenant(connection, tenant_id)
        # before the head: one that is signed meanwhile is of a row behind the head that was read, which would look cut off
        stored_checkpoints = await audit.read_checkpoints(connection, tenant_id)
        head = await audit.read_head(connection, tenant_id)
        if tenant is None or head is None:
            raise NotFound("there is no such tenant")
        signed = tuple((each, checkpoints.is_valid(each, tenant.name)) for each in stored_checkpoints)
        # a signed point outweighs the head's own row, which whoever rewrites a chain rewrites too
        known = ([ChainPoint(head.sequence, head.hash)] if head.sequence else []) + [point_of(each) for each, valid in signed if valid]
        found = Verification(True, 0, START)
        page: list[StoredRow] = []
        async for row in audit.read_chain(connection, tenant_id, head.sequence):
            page.append(_row(row))
            if len(page) == audit.PAGE_ROWS:
                found = _go_on(found, page, [point for point in known if point.sequence <= page[-1].sequence])
                page = []
                if not found.verified:
                    break
        if found.verified:
            found = _go_on(found, page, known)
    return ChainReport(tenant.name, found, signed)


def _go_on(before: Verification, page: list[StoredRow], known: list[ChainPoint]) -> Verification:
    start = before.head
    found = verify(page, start, [point for point in known if point.sequence >= start.sequence])
    return Verification(found.verified, before.rows + found.rows, found.head, found.first_broken)


def _row(row: ChainRow) -> StoredRow:
    payload = StoredPayload(row.salt, row.payload) if row.salt is not None and row.payload is not None else None
    return StoredRow(row.sequence, row.previous_hash, row.hash, row.body, payload)

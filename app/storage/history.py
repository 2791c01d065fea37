"""Past calls by page, and the keys that history queries count them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.tables import AUDIT_PAYLOADS, CALL_KEYS, DECISIONS, PAYLOAD_OF_DECISION

KEYS_AT_ONCE = 5_000
"""Four parameters each, of the 32,767 that a statement may have."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """A decided call; `payload` is the text of its request and answer, None once it was erased."""

    decision_id: UUID
    tool: str
    decided_at: datetime
    payload: str | None


async def read_past_calls(connection: AsyncConnection, tenant_id: UUID, after: UUID, limit: int) -> list[PastCall]:
    """Give a tenant's decided calls behind `after`, in the order of their ids, which is the order of their making."""
    statement = (
        select(DECISIONS.c.decision_id, DECISIONS.c.tool, DECISIONS.c.decided_at, AUDIT_PAYLOADS.c.body)
        .outerjoin(AUDIT_PAYLOADS, PAYLOAD_OF_DECISION)
        .where(DECISIONS.c.tenant_id == tenant_id, DECISIONS.c.decision_id > after, DECISIONS.c.attempt > 0)
        .order_by(DECISIONS.c.decision_id)
        .limit(limit)
    )
    return [PastCall(r.decision_id, r.tool, r.decided_at, r.body) for r in (await connection.execute(statement)).all()]


async def insert_call_keys(connection: AsyncConnection, tenant_id: UUID, keys: Sequence[tuple[str, datetime, UUID]]) -> None:
    """Store (key in hex, decided at, decision) for calls; those that are there already stay."""
    rows = [
        {"tenant_id": tenant_id, "key": bytes.fromhex(key), "decided_at": decided_at, "decision_id": decision_id}
        for key, decided_at, decision_id in keys
    ]
    for start in range(0, len(rows), KEYS_AT_ONCE):
        await connection.execute(insert(CALL_KEYS).values(rows[start : start + KEYS_AT_ONCE]).on_conflict_do_nothing())

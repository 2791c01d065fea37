"""The chain outside the decision path: its head, one appended row, and reading it back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, Tuple, literal, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.decision_batch import Head
from app.storage.tables import AUDIT_CHECKPOINTS, AUDIT_PAYLOADS, AUDIT_ROWS, CHAIN_HEADS, DECISIONS, PAYLOAD_OF_DECISION, ROW_OF_DECISION

PAGE_ROWS = 1_000
CHECKPOINTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One stored row: the text that was hashed, what it claims, and its payload unless that was erased."""

    sequence: int
    previous_hash: str
    hash: str
    body: str
    salt: bytes | None
    payload: str | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    checkpoint_id: UUID
    sequence: int
    hash: str
    signed_at: datetime
    kid: str
    token: str


async def lock_head(connection: AsyncConnection, tenant_id: UUID) -> Head | None:
    """Lock the end of a tenant's chain; the last lock that a transaction takes."""
    return _head((await connection.execute(_head_of(tenant_id).with_for_update())).one_or_none())


async def read_head(connection: AsyncConnection, tenant_id: UUID) -> Head | None:
    """Read the end of a tenant's chain."""
    return _head((await connection.execute(_head_of(tenant_id))).one_or_none())


def _head_of(tenant_id: UUID) -> Select[Any]:
    return select(CHAIN_HEADS).where(CHAIN_HEADS.c.tenant_id == tenant_id)


def _head(row: Any | None) -> Head | None:
    return Head(row.sequence, row.hash, row.recorded_at, row.authority_version) if row is not None else None


async def append_row(
    connection: AsyncConnection, columns: dict[str, object], body: str, payload: str | None, salt: bytes | None, head: Head
) -> None:
    """Store one row and move the head, whose lock the caller holds."""
    await connection.execute(insert(AUDIT_ROWS).values(**columns, body=body))
    place = {name: columns[name] for name in ("tenant_id", "recorded_at", "sequence")}
    if payload is not None:
        await connection.execute(insert(AUDIT_PAYLOADS).values(**place, salt=salt, body=payload))
    await connection.execute(
        update(CHAIN_HEADS)
        .where(CHAIN_HEADS.c.tenant_id == columns["tenant_id"])
        .values(sequence=head.sequence, hash=head.hash, recorded_at=head.recorded_at)
    )


async def read_chain(connection: AsyncConnection, tenant_id: UUID, until_sequence: int) -> AsyncIterator[ChainRow]:
    """Give the rows of a chain up to a sequence, in order, page by page; rows that came after the head was read don't count.

    Pages go by (recorded_at, sequence), the partitions' key: recorded_at never goes back along a chain. Payloads are read beside them and
    not joined: without statistics, as in a new database, the planner walks all payloads once for every row.
    """
    last: tuple[datetime, int] | None = None
    while True:
        statement = (
            select(AUDIT_ROWS)
            .where(AUDIT_ROWS.c.tenant_id == tenant_id, AUDIT_ROWS.c.sequence <= until_sequence)
            .order_by(AUDIT_ROWS.c.recorded_at, AUDIT_ROWS.c.sequence)
            .limit(PAGE_ROWS)
        )
        if last is not None:
            statement = statement.where(tuple_(AUDIT_ROWS.c.recorded_at, AUDIT_ROWS.c.sequence) > _place(*last))
        rows = (await connection.execute(statement)).all()
        payloads = await _payloads(connection, tenant_id, rows[0], rows[-1]) if rows else {}
        for row in rows:
            salt, body = payloads.get((row.recorded_at, row.sequence), (None, None))
            yield ChainRow(row.sequence, row.previous_hash, row.hash, row.body, salt, body)
        if len(rows) < PAGE_ROWS:
            return
        last = (rows[-1].recorded_at, rows[-1].sequence)


def _place(moment: datetime, sequence: int) -> Tuple:
    return tuple_(literal(moment, AUDIT_ROWS.c.recorded_at.type), literal(sequence, AUDIT_ROWS.c.sequence.type))


async def _payloads(
    connection: AsyncConnection, tenant_id: UUID, first: Any, last: Any
) -> Mapping[tuple[datetime, int], tuple[bytes | None, str | None]]:
    """Give salt and body of what lies between two rows of a chain, by their place."""
    place = tuple_(AUDIT_PAYLOADS.c.recorded_at, AUDIT_PAYLOADS.c.sequence)
    found = await connection.execute(
        select(AUDIT_PAYLOADS).where(
            AUDIT_PAYLOADS.c.tenant_id == tenant_id,
            place >= _place(first.recorded_at, first.sequence),
            place <= _place(last.recorded_at, last.sequence),
        )
    )
    return {(row.recorded_at, row.sequence): (row.salt, row.body) for row in found.all()}


async def read_checkpoints(connection: AsyncConnection, tenant_id: UUID, most: int = CHECKPOINTS_MAX) -> list[Checkpoint]:
    """Give a tenant's newest signed checkpoints, at most `most`, oldest first."""
    newest = select(AUDIT_CHECKPOINTS).where(AUDIT_CHECKPOINTS.c.tenant_id == tenant_id)
    rows = await connection.execute(newest.order_by(AUDIT_CHECKPOINTS.c.sequence.desc()).limit(most))
    return [Checkpoint(r.checkpoint_id, r.sequence, r.hash, r.signed_at, r.kid, r.token) for r in reversed(rows.all())]


async def newest_checkpoint(connection: AsyncConnection, tenant_id: UUID) -> Checkpoint | None:
    """Give a tenant's last checkpoint."""
    return next(iter(await read_checkpoints(connection, tenant_id, 1)), None)


async def insert_checkpoint(connection: AsyncConnection, tenant_id: UUID, checkpoint: Checkpoint) -> None:
    await connection.execute(
        insert(AUDIT_CHECKPOINTS).values(
            tenant_id=tenant_id,
            checkpoint_id=checkpoint.checkpoint_id,
            sequence=checkpoint.sequence,
            hash=checkpoint.hash,
            signed_at=checkpoint.signed_at,
            kid=checkpoint.kid,
            token=checkpoint.token,
        )
    )


async def read_decision(connection: AsyncConnection, tenant_id: UUID, decision_id: UUID) -> Any | None:
    """Give a decision's row with its audit hash and payload, or None."""
    statement = (
        select(DECISIONS, AUDIT_ROWS.c.hash, AUDIT_PAYLOADS.c.body.label("payload"), AUDIT_PAYLOADS.c.erased_at)
        .join(AUDIT_ROWS, ROW_OF_DECISION)
        .outerjoin(AUDIT_PAYLOADS, PAYLOAD_OF_DECISION)
        .where(DECISIONS.c.tenant_id == tenant_id, DECISIONS.c.decision_id == decision_id)
    )
    return (await connection.execute(statement)).one_or_none()

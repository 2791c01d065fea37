"""What operators have stopped (SPEC S12.3): one row a freeze, kept after it was lifted. Written by `engine/change_authority` only.

A decision doesn't read this table: the freezes in force come with the tenant's authority, in the same snapshot as its version.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.tables import FREEZES


@dataclass(frozen=True, slots=True)
class FreezeRow:
    """`by_platform`: the platform's operator set it on another's tenant, so only they lift it."""

    tenant_id: UUID
    freeze_id: UUID
    target_kind: str
    target: str
    reason: str
    by_platform: bool
    created_by: str
    created_at: datetime
    lifted_at: datetime | None
    lifted_by: str | None


def in_force(tenant_id: ColumnElement[UUID]) -> ColumnElement[Any]:
    """Give the expression for a tenant's freezes that aren't lifted: an array of `kind:target`, part of the statement around it."""
    wanted = select(FREEZES.c.target_kind + ":" + FREEZES.c.target).where(FREEZES.c.tenant_id == tenant_id, FREEZES.c.lifted_at.is_(None))
    return func.array(wanted.scalar_subquery())


async def count_in_force(connection: AsyncConnection, tenant_id: UUID) -> int:
    statement = select(func.count()).where(FREEZES.c.tenant_id == tenant_id, FREEZES.c.lifted_at.is_(None))
    return int((await connection.execute(statement)).scalar_one())


async def insert_freeze(connection: AsyncConnection, freeze: FreezeRow) -> None:
    await connection.execute(insert(FREEZES).values(**{name: getattr(freeze, name) for name in FreezeRow.__slots__}))


async def read_freeze(connection: AsyncConnection, tenant_id: UUID, freeze_id: UUID) -> FreezeRow | None:
    """Give a freeze and lock its row."""
    statement = select(FREEZES).where(FREEZES.c.tenant_id == tenant_id, FREEZES.c.freeze_id == freeze_id).with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return _freeze(row) if row is not None else None


async def lift_freeze(connection: AsyncConnection, tenant_id: UUID, freeze_id: UUID, lifted_at: datetime, lifted_by: str) -> None:
    await connection.execute(
        update(FREEZES)
        .where(FREEZES.c.tenant_id == tenant_id, FREEZES.c.freeze_id == freeze_id)
        .values(lifted_at=lifted_at, lifted_by=lifted_by)
    )


async def list_freezes(
    connection: AsyncConnection, tenant_id: UUID, limit: int, before: UUID | None, *, only_in_force: bool
) -> list[FreezeRow]:
    """Give a page of a tenant's freezes, newest first."""
    statement = select(FREEZES).where(FREEZES.c.tenant_id == tenant_id).order_by(FREEZES.c.freeze_id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(FREEZES.c.freeze_id < before)
    if only_in_force:
        statement = statement.where(FREEZES.c.lifted_at.is_(None))
    return [_freeze(row) for row in (await connection.execute(statement)).all()]


def _freeze(row: Any) -> FreezeRow:
    return FreezeRow(*(row._mapping[name] for name in FreezeRow.__slots__))

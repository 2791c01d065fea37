"""The stored answers of POSTs by Idempotency-Key. One row a (tenant, subject, key): without a status it is still running.

Nobody deletes here (the service's role may not): a key that is to be free again loses its body digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.tables import IDEMPOTENCY_KEYS as KEYS

FREE = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's hold on a key. `created_at` tells it from the request that takes the key over after it."""

    tenant_id: UUID
    subject: str
    key: str
    route: str
    body_digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Known:
    """What is stored under a key; `status` None: not answered yet."""

    route: str
    body_digest: str
    status: int | None
    answer: str | None


async def claim_key(connection: AsyncConnection, claim: Claim, stale_before: datetime) -> Known | None:
    """Take the key for this request, or give what is stored under it.

    A key is taken if it is new, was freed, or was claimed before `stale_before` for the same request and never answered.
    """
    values = {
        "tenant_id": claim.tenant_id,
        "subject": claim.subject,
        "idempotency_key": claim.key,
        "route": claim.route,
        "body_digest": claim.body_digest,
        "created_at": claim.created_at,
    }
    same = and_(KEYS.c.route == claim.route, KEYS.c.body_digest == claim.body_digest)
    takes_over = insert(KEYS).values(**values)
    takes_over = takes_over.on_conflict_do_update(
        index_elements=[KEYS.c.tenant_id, KEYS.c.subject, KEYS.c.idempotency_key],
        set_={name: values[name] for name in ("route", "body_digest", "created_at")},
        where=and_(KEYS.c.answer_status.is_(None), or_(KEYS.c.body_digest == FREE, and_(KEYS.c.created_at <= stale_before, same))),
    )
    if (await connection.execute(takes_over.returning(KEYS.c.created_at))).one_or_none() is not None:
        return None
    # a later statement: the row that stood in the way has been committed
    row = (await connection.execute(select(KEYS).where(*_of(claim)))).one()
    return Known(row.route, row.body_digest, row.answer_status, row.answer)


async def store_answer(connection: AsyncConnection, claim: Claim, status: int, answer: str) -> None:
    """Store the answer of the request that still holds the key."""
    await connection.execute(update(KEYS).where(*_of(claim), *_held(claim)).values(answer_status=status, answer=answer))


async def free_key(connection: AsyncConnection, claim: Claim) -> None:
    """Let the key go unanswered: whoever comes next starts anew, with whatever body."""
    await connection.execute(update(KEYS).where(*_of(claim), *_held(claim)).values(body_digest=FREE))


def _of(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (KEYS.c.tenant_id == claim.tenant_id, KEYS.c.subject == claim.subject, KEYS.c.idempotency_key == claim.key)


def _held(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (KEYS.c.answer_status.is_(None), KEYS.c.created_at == claim.created_at, KEYS.c.body_digest == claim.body_digest)

"""Reads of approvals. A pending one past its expiry reads as `expired`, whether a sweep has written that down or not (SPEC S7.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.tables import APPROVALS, AUDIT_PAYLOADS, DECISIONS, PAYLOAD_OF_DECISION

PENDING = "pending"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One approval. `scope` and `review` are canonical JSON text; `decision_payload` too, None in lists and once it was erased."""

    approval_id: UUID
    kind: str
    status: str
    decision_id: UUID
    requested_by: str
    session_id: str
    task_id: str | None
    call_id: str
    tool: str
    scope: str
    bound_digest: str
    effects_digest: str | None
    policy_digest: str
    state_version: int | None
    review: str
    seen_digest: str
    quorum_required: int
    quorum_roles: tuple[str, ...]
    on_expiry: str
    created_at: datetime
    expires_at: datetime
    decision_payload: str | None = None


_READ = tuple(name for name in ApprovalRow.__dataclass_fields__ if name not in ("status", "decision_payload"))


async def read_approval(connection: AsyncConnection, tenant_id: UUID, approval_id: UUID, now: datetime) -> ApprovalRow | None:
    """Give an approval with the payload of the decision that asked for it."""
    of_decision = and_(DECISIONS.c.tenant_id == APPROVALS.c.tenant_id, DECISIONS.c.decision_id == APPROVALS.c.decision_id)
    statement = (
        select(*_columns(now), AUDIT_PAYLOADS.c.body.label("decision_payload"))
        .select_from(APPROVALS.outerjoin(DECISIONS, of_decision).outerjoin(AUDIT_PAYLOADS, PAYLOAD_OF_DECISION))
        .where(APPROVALS.c.tenant_id == tenant_id, APPROVALS.c.approval_id == approval_id)
    )
    row = (await connection.execute(statement)).one_or_none()
    return _row(row._mapping) if row is not None else None


async def read_status(connection: AsyncConnection, tenant_id: UUID, approval_id: UUID, now: datetime) -> str | None:
    """Give only an approval's status, for whoever waits for it to change."""
    statement = select(_status(now)).where(APPROVALS.c.tenant_id == tenant_id, APPROVALS.c.approval_id == approval_id)
    found: str | None = (await connection.execute(statement)).scalar_one_or_none()
    return found


async def list_approvals(
    connection: AsyncConnection, tenant_id: UUID, status: str | None, now: datetime, limit: int, after: UUID | None
) -> list[ApprovalRow]:
    """Give a page of a tenant's approvals, oldest first; their ids are in the order of time."""
    statement = select(*_columns(now)).where(APPROVALS.c.tenant_id == tenant_id).order_by(APPROVALS.c.approval_id).limit(limit)
    if status == PENDING:
        statement = statement.where(APPROVALS.c.status == PENDING, APPROVALS.c.expires_at > now)  # in the index's own words
    elif status is not None:
        statement = statement.where(_status(now) == status)
    if after is not None:
        statement = statement.where(APPROVALS.c.approval_id > after)
    return [_row(row._mapping) for row in (await connection.execute(statement)).all()]


def _columns(now: datetime) -> Sequence[ColumnElement[object]]:
    return (*(APPROVALS.c[name] for name in _READ), _status(now).label("status"))


def _status(now: datetime) -> ColumnElement[str]:
    late = and_(APPROVALS.c.status == PENDING, APPROVALS.c.expires_at <= now)
    return case((late, literal(EXPIRED)), else_=APPROVALS.c.status)


def _row(values: object) -> ApprovalRow:
    read = dict(values)  # type: ignore[call-overload]  # a row's mapping
    return ApprovalRow(**{**read, "quorum_roles": tuple(read["quorum_roles"])})

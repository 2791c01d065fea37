"""Decisions searched by auditors, page by page along the tenant's chain (SPEC S10.4).

Every page is read from one index that ends in `sequence`, from a known place on, and looks at SCAN_ROWS_MAX rows at most: where the filters
that the index doesn't serve let too little through, the page is short and its cursor goes on. So no combination of filters reads the
whole table, however many rows there are; whoever adds a filter must keep that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.audit import read_head
from app.storage.tables import AUDIT_ROWS, DECISIONS

SCAN_ROWS_MAX = 20_000
PROBE_ROWS_MAX = 1_000
"""Fewer rows than this are an index's few: it serves the page, whatever else is asked for."""

INDEXED = ("task_id", "session_id", "resource", "subject", "reason", "tool")
"""Columns with an index (tenant, column, sequence), the most telling first. Each index costs a decision a few microseconds."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What decisions are searched by, all by AND. `equal`: column -> value; times are of the row in the chain, [from_, until); risk too."""

    equal: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    from_: datetime | None = None
    until: datetime | None = None
    risk_from: Decimal | None = None
    risk_until: Decimal | None = None


@dataclass(frozen=True, slots=True)
class DecisionsPage:
    """`rows` with the row's columns, `hash` and `resources`; `after`: the sequence to go on from, None where there is no more."""

    rows: list[Any]
    after: int | None


async def read_page(
    connection: AsyncConnection, tenant_id: UUID, wanted: DecisionFilter, limit: int, after: int | None, *, newest_first: bool
) -> DecisionsPage:
    """Give the next decisions behind sequence `after` that pass the filter, at most `limit`."""
    span = await _span(connection, tenant_id, wanted)
    if after is not None:
        span.append(DECISIONS.c.sequence < after if newest_first else DECISIONS.c.sequence > after)
    served = await _served_by_index(connection, tenant_id, wanted, span)
    if served is not None:
        span.append(DECISIONS.c[served] == wanted.equal[served])
    looked_at = (
        select(DECISIONS)
        .where(DECISIONS.c.tenant_id == tenant_id, *span)
        .order_by(DECISIONS.c.sequence.desc() if newest_first else DECISIONS.c.sequence)
        .limit(SCAN_ROWS_MAX)
        .subquery("looked_at")
    )
    order = looked_at.c.sequence.desc() if newest_first else looked_at.c.sequence
    found = select(looked_at).where(*_rest(looked_at.c, wanted)).order_by(order).limit(limit + 1).subquery("found")
    statement = (
        select(found, AUDIT_ROWS.c.hash, AUDIT_ROWS.c.resources)
        .join(
            AUDIT_ROWS,
            and_(
                AUDIT_ROWS.c.tenant_id == tenant_id,
                AUDIT_ROWS.c.recorded_at == found.c.recorded_at,
                AUDIT_ROWS.c.sequence == found.c.sequence,
            ),
        )
        .order_by(found.c.sequence.desc() if newest_first else found.c.sequence)
    )
    rows = list((await connection.execute(statement)).all())
    if len(rows) > limit:
        return DecisionsPage(rows[:limit], rows[limit - 1].sequence)
    # the row after which nothing was looked at; the span ends at a head that was read before, so rows that came since don't move it
    last = select(looked_at.c.sequence).order_by(order).offset(SCAN_ROWS_MAX - 1)
    return DecisionsPage(rows, (await connection.execute(last)).scalar_one_or_none())


async def _span(connection: AsyncConnection, tenant_id: UUID, wanted: DecisionFilter) -> list[ColumnElement[bool]]:
    """Give the part of the chain that is asked for: up to its head as it is now, and with the times turned into places.

    recorded_at never goes back along a chain, and the audit's partitions are keyed by it.
    """
    head = await read_head(connection, tenant_id)
    span: list[ColumnElement[bool]] = [DECISIONS.c.sequence <= (head.sequence if head is not None else 0)]
    if wanted.from_ is not None:
        first = await _first_from(connection, tenant_id, wanted.from_)
        span.append(DECISIONS.c.sequence >= first if first is not None else literal(False))
    if wanted.until is not None:
        behind = await _first_from(connection, tenant_id, wanted.until)
        if behind is not None:
            span.append(DECISIONS.c.sequence < behind)
    return span


async def _first_from(connection: AsyncConnection, tenant_id: UUID, moment: datetime) -> int | None:
    statement = (
        select(AUDIT_ROWS.c.sequence)
        .where(AUDIT_ROWS.c.tenant_id == tenant_id, AUDIT_ROWS.c.recorded_at >= moment)
        .order_by(AUDIT_ROWS.c.recorded_at, AUDIT_ROWS.c.sequence)
        .limit(1)
    )
    found: int | None = (await connection.execute(statement)).scalar_one_or_none()
    return found


async def _served_by_index(
    connection: AsyncConnection, tenant_id: UUID, wanted: DecisionFilter, span: list[ColumnElement[bool]]
) -> str | None:
    """Give the column whose index serves the page: the first that has few rows of its value, else the first that is asked for.

    Which filter is the telling one depends on the values, so each is counted, no further than PROBE_ROWS_MAX.
    """
    asked = [name for name in INDEXED if name in wanted.equal]
    if len(asked) < 2:
        return asked[0] if asked else None
    counts = []
    for name in asked:
        few = select(literal(1)).where(DECISIONS.c.tenant_id == tenant_id, DECISIONS.c[name] == wanted.equal[name], *span)
        counts.append(select(func.count()).select_from(few.limit(PROBE_ROWS_MAX).subquery()).scalar_subquery())
    found = (await connection.execute(select(*counts))).one()
    return min(zip(found, range(len(asked)), asked, strict=True))[2]


def _rest(columns: Any, wanted: DecisionFilter) -> list[ColumnElement[bool]]:
    """Give every filter but the times, those that an index served among them."""
    tests = [columns[name] == value for name, value in wanted.equal.items()]
    if wanted.risk_from is not None:
        tests.append(columns.risk_score >= wanted.risk_from)
    if wanted.risk_until is not None:
        tests.append(columns.risk_score < wanted.risk_until)
    return tests

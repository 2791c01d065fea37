"""`GET /decisions`, the history for auditors, and `GET /decisions/{decision_id}` (SPEC S10.4). They are records and permit nothing.

Whose decisions are shown is the key's tenant alone. A cursor is a place in one query of one tenant, and opens nothing by itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from app.api.access import principal_with
from app.api.answers import ChainPlace, Moment, ReasonCode
from app.api.envelope import TOOL_NAME, OpaqueId
from app.api.keys import id_of
from app.api.services import Services
from app.domain.canonical import canonical
from app.domain.decision import Decision, Layer
from app.domain.errors import RequestInvalid
from app.domain.resource import ScopeError, concrete_resource
from app.domain.tool_call import Principal, Role
from app.engine.clock import rfc3339
from app.engine.read_back import StoredDecision
from app.storage.decision_history import DecisionFilter

PARAMETER_LENGTH_MAX = 600
CURSOR = r"^[A-Za-z0-9_-]{27}$"
MARK_BYTES = 12
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_TIMED: dict[str, Any] = {"format": "date-time"}
_MOMENT = "RFC 3339 with a zone, such as `2026-12-01T09:00:00Z`; in a URL `+` is written `%2B`"


RiskBound = Annotated[Decimal, Field(ge=0, le=1), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]


class DecisionOrder(StrEnum):
    NEWEST_FIRST = "-sequence"
    OLDEST_FIRST = "sequence"


class DecisionSummary(BaseModel):
    """A decision as lists show it; `GET /decisions/{decision_id}` has the whole of it. It permits nothing."""

    decision_id: UUID
    decision: Decision
    execution_permitted: Literal[False] = False
    status: Literal["refused", "permitted", "waiting"]
    reason: ReasonCode
    refused_by: Layer | None = None
    tool: str
    subject: str
    session_id: str
    task_id: str | None = None
    call_id: str
    attempt: int = Field(ge=0, description="how often the call id had been decided, itself included; 0: the call id was not looked at")
    resources: list[str] = Field(description="what the call would touch; empty where it was refused before that was known")
    risk_score: float | None = None
    policy_version: int | None = None
    decided_at: Moment
    recorded_at: Moment
    audit: ChainPlace


class DecisionsPage(BaseModel):
    """A page. It may have fewer items than `limit` and still go on: `next_cursor` alone says that there is more to look through."""

    items: list[DecisionSummary]
    next_cursor: str | None = None


class DecisionsQuery(BaseModel):
    """What to look for; every parameter narrows."""

    model_config = ConfigDict(extra="forbid")

    from_: str | None = Field(
        None,
        alias="from",
        description=f"recorded at this moment or later: {_MOMENT}",
        max_length=PARAMETER_LENGTH_MAX,
        json_schema_extra=_TIMED,
    )
    until: str | None = Field(
        None, description=f"recorded before this moment: {_MOMENT}", max_length=PARAMETER_LENGTH_MAX, json_schema_extra=_TIMED
    )
    subject: OpaqueId | None = Field(None, description="the principal that asked")
    session_id: OpaqueId | None = None
    task_id: OpaqueId | None = None
    call_id: OpaqueId | None = Field(None, description="one session's call id; needs `session_id` beside it")
    tool: str | None = Field(None, pattern=TOOL_NAME)
    resource: str | None = Field(None, description="what the call would touch, such as `order:A-1001`", max_length=PARAMETER_LENGTH_MAX)
    order: str | None = Field(None, description="short for `resource=order:<id>`", max_length=PARAMETER_LENGTH_MAX)
    decision: Decision | None = None
    reason: str | None = Field(None, pattern="^[a-z][a-z0-9_]{0,63}$")
    refused_by: Layer | None = Field(None, description="the layer that refused")
    risk_from: RiskBound | None = Field(None, description="a risk score of this or more")
    risk_until: RiskBound | None = Field(None, description="a risk score below this")
    sort: DecisionOrder = Field(DecisionOrder.NEWEST_FIRST, description="by the place in the audit chain")
    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = Field(None, pattern=CURSOR, description="the `next_cursor` of the page before, of the same query")


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["decisions"])
    reader = principal_with(services, Role.AGENT, Role.EXECUTOR, Role.AUDITOR)
    auditor = principal_with(services, Role.AUDITOR)

    @router.get("/decisions", response_model=DecisionsPage, response_model_exclude_none=True, summary="Search the tenant's decisions")
    async def list_decisions(query: Annotated[DecisionsQuery, Query()], principal: Principal = Depends(auditor)) -> DecisionsPage:
        mark = mark_of(principal.tenant_id, query)
        after = read_cursor(query.cursor, mark) if query.cursor is not None else None
        newest_first = query.sort is DecisionOrder.NEWEST_FIRST
        found = await services.reader.decisions(principal.tenant_id, filter_of(query), query.limit, after, newest_first=newest_first)
        items = [_summary(row, principal.tenant) for row in found.rows]
        return DecisionsPage(items=items, next_cursor=write_cursor(found.after, mark) if found.after is not None else None)

    @router.get("/decisions/{decision_id}", summary="Read a decision back", response_class=Response)
    async def read_decision(decision_id: str, principal: Principal = Depends(reader)) -> Response:
        found = await services.reader.decision(principal, id_of(decision_id))
        return Response(canonical(document_of(found, principal.tenant)), media_type="application/json")

    return router


def filter_of(query: DecisionsQuery) -> DecisionFilter:
    """Give what a query looks for.

    Raises:
        RequestInvalid: a time has no zone or isn't one, a resource isn't one, `order` and `resource` name two, or a call id has no session.
    """
    if query.call_id is not None and query.session_id is None:
        raise RequestInvalid((("/query/call_id", "needs `session_id` beside it: a call id is one session's own"),))
    names = ("call_id", "task_id", "session_id", "subject", "tool", "decision", "reason", "refused_by")
    equal = {name: str(getattr(query, name)) for name in names if getattr(query, name) is not None}
    resources = {_resource(name, text) for name, text in (("resource", query.resource), ("order", query.order)) if text is not None}
    if len(resources) > 1:
        raise RequestInvalid((("/query/order", "names another resource than `resource`; leave one of them out"),))
    if resources:
        equal["resource"] = resources.pop()
    return DecisionFilter(equal, _moment("from", query.from_), _moment("until", query.until), query.risk_from, query.risk_until)


def mark_of(tenant_id: UUID, query: DecisionsQuery) -> bytes:
    """Give what a cursor carries of its query, so that it is refused in any other, and in any other tenant."""
    asked = query.model_dump(mode="json", exclude={"limit", "cursor"}, exclude_none=True)
    return hashlib.sha256(canonical([str(tenant_id), {name: str(value) for name, value in asked.items()}]).encode()).digest()[:MARK_BYTES]


def write_cursor(sequence: int, mark: bytes) -> str:
    return base64.urlsafe_b64encode(sequence.to_bytes(8) + mark).decode().rstrip("=")


def read_cursor(text: str, mark: bytes) -> int:
    """Give the sequence that a page ended with.

    Raises:
        RequestInvalid: the cursor isn't one of this query.
    """
    try:
        read = base64.urlsafe_b64decode(text + "=")
    except (binascii.Error, ValueError):
        read = b""
    sequence = int.from_bytes(read[:8])
    if read[8:] != mark or sequence >= 2**63 or write_cursor(sequence, mark) != text:
        raise RequestInvalid((("/query/cursor", "is not the `next_cursor` of a page of this query; start again without it"),))
    return sequence


def _moment(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if _RFC_3339.fullmatch(text) is None:
            raise ValueError
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestInvalid(((f"/query/{name}", f"must be {_MOMENT}"),)) from None


def _resource(name: str, text: str) -> str:
    """Give a resource in the form that it is stored in; what a call can't touch can't be looked for either."""
    try:
        return concrete_resource(text if name == "resource" else f"order:{text}").text
    except ScopeError:
        raise RequestInvalid(((f"/query/{name}", "must name one resource exactly, such as `order:A-1001`"),)) from None


def _summary(row: Any, chain: str) -> DecisionSummary:
    return DecisionSummary(
        decision_id=row.decision_id,
        decision=row.decision,
        status=row.status,
        reason=row.reason,
        refused_by=row.refused_by,
        tool=row.tool,
        subject=row.subject,
        session_id=row.session_id,
        task_id=row.task_id,
        call_id=row.call_id,
        attempt=row.attempt,
        resources=row.resources or [],
        risk_score=row.risk_score,
        policy_version=row.policy_version,
        decided_at=rfc3339(row.decided_at),
        recorded_at=rfc3339(row.recorded_at),
        audit=ChainPlace(chain=chain, sequence=row.sequence, hash=row.hash),
    )


def document_of(found: StoredDecision, chain: str) -> dict[str, object]:
    """Give the stored answer with the call that it answers; without them, what the row alone says, once they were erased."""
    row = found.row
    fields: dict[str, object | None] = {
        "decision_id": str(row.decision_id),
        "decision": row.decision,
        "reason": row.reason,
        "refused_by": row.refused_by,
        "policy_version": row.policy_version,
        "decided_at": rfc3339(row.decided_at),
    }
    document: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
    if found.payload is not None:
        document |= found.payload["answer"]
        document["request"] = found.payload["request"]
    elif row.erased_at is not None:
        document["payload_erased_at"] = rfc3339(row.erased_at)
    return {
        **document,
        "execution_permitted": False,
        "status": row.status,
        "attempt": row.attempt,
        "audit": {"chain": chain, "sequence": row.sequence, "hash": found.hash},
    }

"""`GET /decisions/{decision_id}`: a decision read back. It is a record and permits nothing."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from app.api.access import principal_with
from app.api.keys import id_of
from app.api.services import Services
from app.domain.canonical import canonical
from app.domain.tool_call import Principal, Role
from app.engine.clock import rfc3339
from app.engine.read_back import StoredDecision


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["decisions"])
    reader = principal_with(services, Role.AGENT, Role.EXECUTOR, Role.AUDITOR)

    @router.get("/decisions/{decision_id}", summary="Read a decision back", response_class=Response)
    async def read_decision(decision_id: str, principal: Principal = Depends(reader)) -> Response:
        found = await services.reader.decision(principal, id_of(decision_id))
        return Response(canonical(document_of(found, principal.tenant)), media_type="application/json")

    return router


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

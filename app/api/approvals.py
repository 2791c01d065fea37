"""`/approvals`: what waits for a person, for reviewers whole and for the agent that asked without what reviewers see.

Answering comes in a later version; nothing here changes an approval.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import jiter
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.access import principal_with
from app.api.authentication import bearer_token
from app.api.keys import id_of
from app.api.services import Services
from app.domain.canonical import canonical
from app.domain.tool_call import Principal, Role
from app.engine.clock import rfc3339
from app.storage.approvals import ApprovalRow

WAIT_S_MAX = 60


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SPENT = "spent"
    VOID = "void"


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["approvals"])
    reviewer = principal_with(services, Role.REVIEWER)
    reader = principal_with(services, Role.REVIEWER, Role.AGENT)

    @router.get("/approvals", summary="List approvals, the oldest first", response_class=Response)
    async def list_approvals(
        principal: Principal = Depends(reviewer),
        status: Annotated[ApprovalStatus | None, Query(description="only those with this status")] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[UUID | None, Query(description="the `next_cursor` of the page before")] = None,
    ) -> Response:
        found = await services.reader.approvals(principal.tenant_id, status, limit + 1, cursor)
        page: dict[str, object] = {"items": [document_of(row, whole=False) for row in found[:limit]]}
        if len(found) > limit:
            page["next_cursor"] = str(found[limit - 1].approval_id)
        return _json(page)

    @router.get("/approvals/{approval_id}", summary="Read an approval, or wait until it is answered", response_class=Response)
    async def read_approval(
        request: Request,
        approval_id: str,
        principal: Principal = Depends(reader),
        wait_s: Annotated[int, Query(ge=0, le=WAIT_S_MAX, description="how long to wait while it is pending")] = 0,
    ) -> Response:
        found = await services.reader.approval(principal, id_of(approval_id))

        async def is_over() -> bool:
            return request.app.state.is_stopping() or await request.is_disconnected()

        if wait_s and found.status == ApprovalStatus.PENDING:
            await services.reader.wait_for_approval(principal.tenant_id, found.approval_id, wait_s, is_over)
            # a key that was revoked meanwhile reads nothing any more
            principal = await services.authority.authenticate(bearer_token(request.scope["headers"]), fresh=True)
            found = await services.reader.approval(principal, found.approval_id)
        return _json(document_of(found, whole=Role.REVIEWER in principal.roles))

    return router


def document_of(row: ApprovalRow, *, whole: bool) -> dict[str, object]:
    """Give an approval as API.md 1.3 shows it; only a reviewer gets it whole."""
    document: dict[str, object] = {
        "approval_id": str(row.approval_id),
        "kind": row.kind,
        "status": row.status,
        "decision_id": str(row.decision_id),
        "requested_by": row.requested_by,
        "session_id": row.session_id,
        "call_id": row.call_id,
        "tool": row.tool,
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at),
        "on_expiry": row.on_expiry,
        "quorum": {"required": row.quorum_required, "received": 0, "roles": list(row.quorum_roles)},
        "scope": _read(row.scope),
        "answers": [],
    }
    if row.task_id is not None:
        document["task_id"] = row.task_id
    behalf = _read(row.decision_payload)["request"].get("on_behalf_of") if row.decision_payload is not None else None
    if behalf is not None:
        document["on_behalf_of"] = behalf
    if whole:
        binding = {
            "bound_digest": row.bound_digest,
            "effects_digest": row.effects_digest,
            "policy_digest": row.policy_digest,
            "state_version": row.state_version,
        }
        document["binding"] = {name: value for name, value in binding.items() if value is not None}
        document["review"] = _read(row.review)
        document["seen_digest"] = row.seen_digest
    return document


def _read(text: str) -> Any:
    return jiter.from_json(text.encode(), float_mode="decimal")


def _json(document: dict[str, object]) -> Response:
    return Response(canonical(document), media_type="application/json", headers={"cache-control": "no-store"})

"""`/freezes`: an operator stops a tenant, a principal, a session or a tool at once, in every worker (SPEC S12.3, API.md 3.4).

The operator's words are for operators, auditors and the audit; no decision shows them.
"""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.api.access import principal_with, tenant_for
from app.api.envelope import ID_LENGTH_MAX, TOOL_NAME, OpaqueId
from app.api.idempotency import idempotent_route
from app.api.keys import TENANT_NAME, id_of
from app.api.services import Services
from app.domain.errors import RequestInvalid
from app.domain.tool_call import Principal, Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import FreezeSpec, actor_of
from app.engine.clock import rfc3339
from app.storage.freezes import FreezeRow

ELSEWHERE = "only the platform's operator acts in another tenant; leave `tenant` out"
REASON_LENGTH_MAX = 500
TARGET_LENGTH_MAX = ID_LENGTH_MAX + len("principal:")
_OPAQUE: TypeAdapter[str] = TypeAdapter(OpaqueId)
Tenant = Annotated[str | None, Query(pattern=TENANT_NAME, description="another tenant; for the platform's operator only")]


class FreezeRequest(BaseModel):
    """What to stop. `tenant` may only be named by the platform's operator, who may freeze in other tenants."""

    model_config = ConfigDict(extra="forbid", strict=True)
    target: Annotated[
        str,
        Field(
            pattern=r"^(tenant|principal|session|tool):",
            max_length=TARGET_LENGTH_MAX,
            description="`tenant:<name>`, `principal:<subject>`, `session:<session_id>` or `tool:<name>`",
            examples=["tenant:acme"],
        ),
    ]
    reason: Annotated[str, Field(min_length=1, max_length=REASON_LENGTH_MAX, examples=["refund spike, looking into it"])]
    tenant: Annotated[str, Field(pattern=TENANT_NAME)] | None = None


class FreezeAnswer(BaseModel):
    """A freeze; it is in force until it is lifted."""

    freeze_id: UUID
    target: str
    stated_reason: str
    by_platform: bool = Field(description="the platform's operator set it, and only they lift it")
    created_by: str
    created_at: str
    lifted_at: str | None = None
    lifted_by: str | None = None


class FreezesPage(BaseModel):
    items: list[FreezeAnswer]
    next_cursor: str | None = None


def routes(services: Services) -> APIRouter:
    router = APIRouter(route_class=idempotent_route(services), tags=["freezes"])
    operator = principal_with(services, Role.OPERATOR)
    reader = principal_with(services, Role.OPERATOR, Role.AUDITOR)

    @router.post(
        "/freezes", status_code=201, response_model=FreezeAnswer, response_model_exclude_none=True, summary="Stop something at once"
    )
    async def set_freeze(request: FreezeRequest, principal: Principal = Depends(operator)) -> FreezeAnswer:
        tenant_id, name = await tenant_for(services, request.tenant, principal, ELSEWHERE)
        kind, target = target_of(request.target, name)
        spec = FreezeSpec(kind, target, request.reason, by_platform=tenant_id != principal.tenant_id)
        return _shown(await services.writer.set_freeze(actor_of(principal), tenant_id, spec))

    @router.get("/freezes", response_model=FreezesPage, response_model_exclude_none=True, summary="List freezes, the newest first")
    async def list_freezes(
        principal: Principal = Depends(reader),
        in_force: Annotated[bool, Query(description="only those that aren't lifted")] = False,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[UUID | None, Query(description="the `next_cursor` of the page before")] = None,
        tenant: Tenant = None,
    ) -> FreezesPage:
        tenant_id, _ = await tenant_for(services, tenant, principal, ELSEWHERE)
        found = await services.reader.freezes(tenant_id, limit + 1, cursor, only_in_force=in_force)
        items = [_shown(freeze) for freeze in found[:limit]]
        return FreezesPage(items=items, next_cursor=str(items[-1].freeze_id) if len(found) > limit else None)

    @router.delete("/freezes/{freeze_id}", response_model=FreezeAnswer, response_model_exclude_none=True, summary="Lift a freeze")
    async def lift_freeze(freeze_id: str, principal: Principal = Depends(operator), tenant: Tenant = None) -> FreezeAnswer:
        tenant_id, _ = await tenant_for(services, tenant, principal, ELSEWHERE)
        by_platform = principal.tenant_id == PLATFORM_TENANT
        return _shown(await services.writer.lift_freeze(actor_of(principal), tenant_id, id_of(freeze_id), by_platform=by_platform))

    return router


def target_of(text: str, tenant: str) -> tuple[str, str]:
    """Read what is to be frozen in a tenant: its kind and its name or id.

    Raises:
        RequestInvalid: it is another tenant, or no call could ever have such a name.
    """
    kind, _, target = text.partition(":")
    if kind == "tenant" and target != tenant:
        raise RequestInvalid((("/target", f"is another tenant; here it can only be `tenant:{tenant}`"),))
    if kind == "tool" and re.fullmatch(TOOL_NAME[1:-1], target) is None:
        raise RequestInvalid((("/target", "must name a tool: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`"),))
    try:
        _OPAQUE.validate_python(target)
    except ValidationError:
        detail = f"must have 1 to {ID_LENGTH_MAX} characters behind `{kind}:`, and no control, format or invisible ones"
        raise RequestInvalid((("/target", detail),)) from None
    return kind, target


def _shown(freeze: FreezeRow) -> FreezeAnswer:
    return FreezeAnswer(
        freeze_id=freeze.freeze_id,
        target=f"{freeze.target_kind}:{freeze.target}",
        stated_reason=freeze.reason,
        by_platform=freeze.by_platform,
        created_by=freeze.created_by,
        created_at=rfc3339(freeze.created_at),
        lifted_at=rfc3339(freeze.lifted_at) if freeze.lifted_at is not None else None,
        lifted_by=freeze.lifted_by,
    )

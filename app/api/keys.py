"""`/tenants` and `/keys`: operators make tenants and keys. The platform's operator may name another tenant; everybody else acts in
their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.access import principal_with, tenant_for
from app.api.envelope import OpaqueId, Segment
from app.api.idempotency import idempotent_route
from app.api.services import Services
from app.domain.errors import NotFound, NotPermitted
from app.domain.limits import CONCURRENT_MAX, REQUESTS_PER_MINUTE_MAX, KeyLimits
from app.domain.tool_call import Principal, Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import KeySpec, MadeKey, actor_of
from app.engine.clock import rfc3339
from app.engine.rate_limits import RateLimits
from app.storage.authority import KeyRow

DAY_S = 86_400
LIFETIME_S_DEFAULT = 90 * DAY_S
LIFETIME_S_MAX = 366 * DAY_S
OVERLAP_S_MAX = 7 * DAY_S
ELSEWHERE = "an operator makes keys of the own tenant only; leave `tenant` out"
TENANT_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
_STRICT = ConfigDict(extra="forbid", strict=True)


class TenantRequest(BaseModel):
    """A tenant to make. It starts with the bundle that the platform serves, or with none: then every call is refused."""

    model_config = _STRICT
    tenant: Annotated[str, Field(pattern=TENANT_NAME, examples=["acme"])]
    policy: Annotated[str, Field(pattern="^(served|none)$", examples=["served"])] = "served"


class TenantAnswer(BaseModel):
    tenant_id: UUID
    tenant: str
    policy_version: int | None = None


class LimitsRequest(BaseModel):
    """A key's own limits; what is left out is the service's default, 0 stops the first request."""

    model_config = _STRICT
    requests_per_minute: Annotated[int, Field(ge=0, le=REQUESTS_PER_MINUTE_MAX)] | None = None
    concurrent: Annotated[int, Field(ge=0, le=CONCURRENT_MAX)] | None = None


class KeyRequest(BaseModel):
    """A key to make. `tenant` may only be named by the platform's operator, who makes the first keys of other tenants."""

    model_config = _STRICT
    subject: OpaqueId
    roles: Annotated[list[Annotated[str, Field(pattern=f"^({'|'.join(Role)})$")]], Field(min_length=1, max_length=len(Role))]
    owner: OpaqueId | None = None
    segments: Annotated[list[Segment], Field(max_length=32)] = []
    expires_in_s: Annotated[int, Field(ge=1, le=LIFETIME_S_MAX)] = LIFETIME_S_DEFAULT
    tenant: Annotated[str, Field(pattern=TENANT_NAME)] | None = None
    limits: LimitsRequest = LimitsRequest()


class RotationRequest(BaseModel):
    """How long the old key still counts beside the new one."""

    model_config = _STRICT
    overlap_s: Annotated[int, Field(ge=0, le=OVERLAP_S_MAX)] = 0


class LimitsAnswer(BaseModel):
    """What counts for the key now: its own limits, or the service's defaults. Each worker process takes its share of `concurrent`."""

    requests_per_minute: int
    concurrent: int


class KeyAnswer(BaseModel):
    """A key, without its secret."""

    key_id: UUID
    subject: str
    owner: str
    roles: list[str]
    segments: list[str]
    limits: LimitsAnswer
    created_by: str
    created_at: str
    expires_at: str
    revoked_at: str | None = None


class MadeKeyAnswer(KeyAnswer):
    """A new key. `secret` is shown once and stored nowhere, so a replayed answer (Idempotency-Key) has `secret_shown_once` instead."""

    secret: str | None = None
    secret_shown_once: Literal[True] | None = None


class KeysPage(BaseModel):
    items: list[KeyAnswer]
    next_cursor: str | None = None


def routes(services: Services) -> APIRouter:
    router = APIRouter(route_class=idempotent_route(services), tags=["keys"])
    operator = principal_with(services, Role.OPERATOR)

    @router.post("/tenants", status_code=201, response_model=TenantAnswer, response_model_exclude_none=True, summary="Make a tenant")
    async def make_tenant(request: TenantRequest, principal: Principal = Depends(operator)) -> TenantAnswer:
        if principal.tenant_id != PLATFORM_TENANT:
            raise NotPermitted("only the platform's operator makes tenants; use the bootstrap key")
        files = await services.writer.platform_bundle() if request.policy == "served" else None
        made = await services.writer.make_tenant(actor_of(principal), request.tenant, files)
        return TenantAnswer(tenant_id=made.tenant_id, tenant=made.name, policy_version=made.policy_version)

    @router.post("/keys", status_code=201, response_model=MadeKeyAnswer, response_model_exclude_none=True, summary="Make a key")
    async def make_key(request: KeyRequest, principal: Principal = Depends(operator)) -> MadeKeyAnswer:
        tenant_id, _ = await tenant_for(services, request.tenant, principal, ELSEWHERE)
        roles = tuple(sorted({Role(role) for role in request.roles}))
        lifetime = timedelta(seconds=request.expires_in_s)
        limits = KeyLimits(request.limits.requests_per_minute, request.limits.concurrent)
        segments = tuple(sorted(set(request.segments)))
        spec = KeySpec(request.subject, request.owner or request.subject, roles, segments, lifetime, limits)
        return _made(await services.writer.make_key(actor_of(principal), tenant_id, spec))

    @router.get("/keys", response_model=KeysPage, response_model_exclude_none=True, summary="List the tenant's keys")
    async def list_keys(
        principal: Principal = Depends(operator),
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[UUID | None, Query()] = None,
    ) -> KeysPage:
        found = await services.reader.keys(principal.tenant_id, limit + 1, cursor)
        items = [_shown(key) for key in found[:limit]]
        return KeysPage(items=items, next_cursor=str(items[-1].key_id) if len(found) > limit else None)

    @router.delete("/keys/{key_id}", response_model=KeyAnswer, response_model_exclude_none=True, summary="Revoke a key at once")
    async def revoke_key(key_id: str, principal: Principal = Depends(operator)) -> KeyAnswer:
        return _shown(await services.writer.revoke_key(actor_of(principal), principal.tenant_id, id_of(key_id)))

    @router.post(
        "/keys/{key_id}/rotation", status_code=201, response_model=MadeKeyAnswer, response_model_exclude_none=True, summary="Replace a key"
    )
    async def rotate_key(key_id: str, request: RotationRequest, principal: Principal = Depends(operator)) -> MadeKeyAnswer:
        overlap = timedelta(seconds=request.overlap_s)
        return _made(await services.writer.rotate_key(actor_of(principal), principal.tenant_id, id_of(key_id), overlap))

    def _shown(key: KeyRow) -> KeyAnswer:
        return KeyAnswer(**_fields(key, services.limits))  # type: ignore[arg-type]  # checked by the model

    def _made(made: MadeKey) -> MadeKeyAnswer:
        return MadeKeyAnswer(**_fields(made.key, services.limits), secret=made.token)  # type: ignore[arg-type]  # checked by the model

    return router


def id_of(text: str) -> UUID:
    """Read an id of a path.

    Raises:
        NotFound: it isn't one, so there can't be such a thing.
    """
    try:
        if len(text) != 36:
            raise ValueError
        return UUID(text)
    except ValueError:
        raise NotFound("there is no such thing; ids are UUIDs as answers show them") from None


def _fields(key: KeyRow, limits: RateLimits) -> dict[str, object]:
    requests_per_minute, concurrent = limits.effective(key.limits)
    return {
        "key_id": key.key_id,
        "subject": key.subject,
        "owner": key.owner,
        "roles": list(key.roles),
        "segments": list(key.segments),
        "limits": {"requests_per_minute": requests_per_minute, "concurrent": concurrent},
        "created_by": key.created_by,
        "created_at": rfc3339(key.created_at),
        "expires_at": rfc3339(key.expires_at),
        "revoked_at": rfc3339(key.revoked_at) if key.revoked_at is not None else None,
    }

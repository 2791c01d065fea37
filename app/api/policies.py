"""`/policies`: authors store bundles, authors and operators activate a version; an older one is a rollback (SPEC S6.3)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.access import principal_with
from app.api.idempotency import idempotent_route
from app.api.services import Services
from app.domain.tool_call import Principal, Role
from app.engine.change_authority import actor_of
from app.engine.clock import rfc3339
from app.policy.notes import NOTES_MAX

VERSION_MAX = 2**31 - 1


class PolicyRequest(BaseModel):
    """A bundle: its files by their path in it, as text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    files: Annotated[
        dict[str, str], Field(min_length=1, max_length=200, examples=[{"bundle.yaml": "bundle: …", "tools/refund.yaml": "tool: refund …"}])
    ]


class StoredPolicyAnswer(BaseModel):
    version: int
    digest: str
    active: bool


class PolicyNoteAnswer(BaseModel):
    """Something that is no fault and that nothing asserts: `pointer` is its place in the tool's `arguments`."""

    file: str = Field(examples=["tools/refund.yaml"])
    line: int = Field(ge=1, examples=[12])
    pointer: str = Field(examples=["/properties/n/format"])
    message: str = Field(examples=["int32 is not asserted; it is only an annotation"])


class MadePolicyAnswer(StoredPolicyAnswer):
    """A new version, and what in its schemas is only an annotation; `notes_left_out` counts what is beyond the first 200."""

    notes: list[PolicyNoteAnswer] = Field(max_length=NOTES_MAX)
    notes_left_out: int = Field(ge=0)


class PolicyAnswer(StoredPolicyAnswer):
    name: str
    created_by: str
    created_at: str


class PoliciesPage(BaseModel):
    items: list[PolicyAnswer]
    next_cursor: str | None = None


def routes(services: Services) -> APIRouter:
    router = APIRouter(route_class=idempotent_route(services), tags=["policies"])
    author = principal_with(services, Role.AUTHOR)
    activator = principal_with(services, Role.AUTHOR, Role.OPERATOR)

    @router.post("/policies", status_code=201, response_model=MadePolicyAnswer, summary="Store a bundle as the next version")
    async def store_policy(request: PolicyRequest, principal: Principal = Depends(author)) -> MadePolicyAnswer:
        version, policy = await services.writer.store_policy(actor_of(principal), principal.tenant_id, request.files)
        notes = [PolicyNoteAnswer(file=each.file, line=each.line, pointer=each.pointer, message=each.message) for each in policy.notes]
        return MadePolicyAnswer(version=version, digest=policy.digest, active=False, notes=notes, notes_left_out=policy.notes_left_out)

    @router.get("/policies", response_model=PoliciesPage, response_model_exclude_none=True, summary="List the tenant's policy versions")
    async def list_policies(
        principal: Principal = Depends(activator),
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[int | None, Query(ge=1, le=VERSION_MAX)] = None,
    ) -> PoliciesPage:
        found = await services.reader.policies(principal.tenant_id, limit + 1, cursor)
        items = [
            PolicyAnswer(
                version=row.version,
                digest=row.digest,
                active=row.active,
                name=row.name,
                created_by=row.created_by,
                created_at=rfc3339(row.created_at),
            )
            for row in found[:limit]
        ]
        return PoliciesPage(items=items, next_cursor=str(items[-1].version) if len(found) > limit else None)

    @router.post("/policies/{version}/activation", response_model=StoredPolicyAnswer, summary="Make a version the active one")
    async def activate_policy(
        version: Annotated[int, Path(ge=1, le=VERSION_MAX)], principal: Principal = Depends(activator)
    ) -> StoredPolicyAnswer:
        digest = await services.writer.activate_policy(actor_of(principal), principal.tenant_id, version)
        return StoredPolicyAnswer(version=version, digest=digest, active=True)

    return router

"""The principal of an ordinary route's request, and the tenant it acts in, asked of the database: what changes authority trusts no memory.

Here, too, a query is held against its route: a parameter that the route doesn't have, or that comes twice, is refused and never ignored,
because a filter that was ignored would look like one that found everything. NUL, which no text of the database holds, is refused here for
all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.api.authentication import bearer_token
from app.api.idempotency import claim_key
from app.api.json_body import pointer_of, require_read
from app.api.problems import ERRORS_MAX
from app.api.requests import admit
from app.api.services import Services
from app.domain.errors import NotFound, NotPermitted, RequestInvalid, Unauthenticated
from app.domain.tool_call import Principal, Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.check_tool_call import require_role


def principal_with(services: Services, *roles: Role) -> Callable[[Request], Awaitable[Principal]]:
    """Give the dependency of a route that takes any of `roles`; a refused request is recorded."""

    async def principal(request: Request) -> Principal:
        route = request.scope["route"].path
        try:
            found = await services.authority.authenticate(bearer_token(request.scope["headers"]), fresh=True)
        except Unauthenticated:
            services.metrics.unauthenticated()
            await services.recorder.unauthenticated(route)
            raise
        request.state.principal = found
        await admit(services, request.scope, found)
        require_role(found, *roles)
        require_read(request)
        _check_query(request)
        await claim_key(request, found)
        return found

    principal.__dict__["roles"] = roles  # for the contract, which says them beside the route
    return principal


async def tenant_for(services: Services, name: str | None, principal: Principal, otherwise: str) -> tuple[UUID, str]:
    """Give the tenant to act in: the principal's own, or the one that the platform's operator names.

    Raises:
        NotPermitted: another tenant was named by somebody else; `otherwise` says so.
        NotFound: there is no tenant of that name.
    """
    if name is None or name == principal.tenant:
        return principal.tenant_id, principal.tenant
    if principal.tenant_id != PLATFORM_TENANT or Role.OPERATOR not in principal.roles:
        raise NotPermitted(otherwise)
    tenant_id = await services.reader.tenant_id(name)
    if tenant_id is None:
        raise NotFound("there is no such tenant; make it with POST /tenants")
    return tenant_id, name


def _check_query(request: Request) -> None:
    """Refuse parameters that the route doesn't have, that come more than once or that hold a NUL.

    Raises:
        RequestInvalid: naming each.
    """
    if not request.scope["query_string"]:
        return
    known = _parameters(request.scope["route"])
    times: dict[str, int] = {}
    with_nul: dict[str, None] = {}
    for name, value in request.query_params.multi_items():
        times[name] = times.get(name, 0) + 1
        if "\0" in value:
            with_nul[name] = None
    unknown = "this route has no such parameter" + (f"; it has {', '.join(known)}" if known else "")
    errors = [(pointer_of(("query", name)), unknown) for name in times if name not in known]
    errors += [(pointer_of(("query", name)), "must be sent once") for name, count in times.items() if count > 1 and name in known]
    errors += [(pointer_of(("query", name)), "holds a NUL character; remove it") for name in with_nul if name in known]
    if errors:
        raise RequestInvalid(tuple(errors[:ERRORS_MAX]))


def _parameters(route: APIRoute) -> tuple[str, ...]:
    """Give the names of a route's query parameters; a model stands for its fields."""
    names: list[str] = []
    for parameter in route.dependant.query_params:
        model = parameter.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names += [field.alias or name for name, field in model.model_fields.items()]
        else:
            names.append(parameter.alias)
    return tuple(names)

"""The principal of an ordinary route's request, asked of the database each time: what changes authority never trusts a memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request

from app.api.authentication import bearer_token
from app.api.idempotency import claim_key
from app.api.json_body import require_read
from app.api.services import Services
from app.domain.errors import Unauthenticated
from app.domain.tool_call import Principal, Role
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
        require_role(found, *roles)
        require_read(request)
        await claim_key(request, found)
        return found

    principal.__dict__["roles"] = roles  # for the contract, which says them beside the route
    return principal

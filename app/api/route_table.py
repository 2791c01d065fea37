"""The routes as a flat list, whatever routers they came in, and the methods that a path takes.

The framework answers 405 for the first route of a path alone, so its Allow header leaves out what the others take (RFC 9110, 10.2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi.routing import APIRouter
from starlette.routing import Match, Route
from starlette.types import Scope


def each_route(routes: Iterable[object]) -> Iterator[Route]:
    """Give the routes, those of routers included."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if isinstance(router, APIRouter):
            yield from each_route(router.routes)
        elif isinstance(route, Route):
            yield route


def allow_of(routes: Iterable[object], scope: Scope) -> str:
    """Give the Allow header of a request's path, as the routes write it."""
    methods: set[str] = set()
    for route in each_route(routes):
        if route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))

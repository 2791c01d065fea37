"""Counts, limits and records the requests of the ordinary routes; the check route does all three itself.

A refused request of an authenticated key leaves an audit row (SPEC S10.1). Where that can't be written the answer is 503: a refusal
that can't be recorded is not given. Refusals for a key's limits are the exception: a flood must not become a flood of rows.
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.authentication import bearer_token
from app.api.problems import Problem, code_of, log_failure, problem, trace_id_of
from app.api.rate_limit_fields import fields_of
from app.api.services import Services
from app.api.tool_calls import ROUTE
from app.domain.errors import DecisionUnavailable, PlacetError, TooManyRequests, Unauthenticated
from app.domain.tool_call import Principal
from app.engine.rate_limits import Admission

RECORDED = frozenset({400, 403, 404, 408, 409, 413, 415, 422, 429})
WITHOUT_KEY = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})


async def admit(services: Services, scope: Scope, principal: Principal) -> None:
    """Count a request of an authenticated key, once; RecordedRequests lets it leave when it is answered.

    Raises:
        TooManyRequests: the key is over one of its limits.
        DecisionUnavailable: the database would have to say, and can't.
    """
    state = scope.setdefault("state", {})
    if state.get("admission") is None:
        state["admission"] = await services.limits.admit(principal)


class RecordedRequests:
    """Pure ASGI: it holds back the start of a refusal until its row is written.

    A key that this worker remembers is held against its limits here, before the body is read and the database is asked; any other one
    is, as soon as the route has authenticated it (`api.access`).
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] == ROUTE and scope["method"] == "POST"):
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state", {}))  # this request's own, whatever the server shares
        started = perf_counter()
        try:
            status = await self._refuse_early(scope, state, send)
            if status is None:
                status = await self._serve(scope, receive, send)
        finally:
            admission: Admission | None = state.get("admission")
            if admission is not None:
                self._services.limits.leave(admission)
        self._services.metrics.request(_route_of(scope), scope["method"], status, perf_counter() - started)

    async def _refuse_early(self, scope: Scope, state: dict[str, Any], send: Send) -> int | None:
        """Answer a request of a remembered key that is over its limits; None: it may go on."""
        if scope["path"] in WITHOUT_KEY:
            return None
        try:
            principal = self._services.authority.remembered(bearer_token(scope["headers"]))
        except Unauthenticated:
            return None  # the route says so, if there is one
        if principal is None:
            return None
        try:
            await admit(self._services, scope, principal)
        except (TooManyRequests, DecisionUnavailable) as refused:
            trace_id = trace_id_of(scope["headers"])
            self._services.metrics.refused_request(code_of(refused))
            if isinstance(refused, TooManyRequests):
                # the route isn't known yet, and a path is what was sent
                await self._services.recorder.limited(principal, "any", code_of(refused), trace_id)
            return await _send_problem(refused, trace_id, send)
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> int:
        held: list[Message] = []
        received: list[bytes] = []
        complete = False
        status = 500

        async def receiving() -> Message:
            nonlocal complete
            message = await receive()
            if message["type"] == "http.request":  # kept for its digest: routes read no more than the body's limit
                received.append(message.get("body", b""))
                complete = not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                admission: Admission | None = scope["state"].get("admission")
                if admission is not None:
                    message = {**message, "headers": [*message.get("headers", ()), *fields_of(admission.standing)]}
            if status in RECORDED:
                held.append(message)
            else:
                await send(message)

        await self._app(scope, receiving, sending)
        if held:
            asked = b"".join(received) if complete else None
            status = await self._send_refusal(scope, held, status, asked, send)
        return status

    async def _send_refusal(self, scope: Scope, held: list[Message], status: int, asked: bytes | None, send: Send) -> int:
        body = b"".join(message.get("body", b"") for message in held if message["type"] == "http.response.body")
        code, trace_id = _told(body)
        self._services.metrics.refused_request(code)
        principal = scope["state"].get("principal")
        route = _route_of(scope) or "unmatched"
        if principal is not None and status == 429:
            await self._services.recorder.limited(principal, route, code, trace_id)
        elif principal is not None:
            try:
                await self._services.recorder.refused(principal, route, code, status, trace_id, asked)
            except DecisionUnavailable as away:
                return await _send_problem(away, trace_id_of(scope["headers"]), send)
        for message in held:
            await send(message)
        return status


async def _send_problem(error: PlacetError, trace_id: str, send: Send) -> int:
    answer: Problem = problem(error, trace_id)
    log_failure(error, answer.status, trace_id)
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
    return answer.status


def _route_of(scope: Scope) -> str | None:
    return getattr(scope.get("route"), "path", None)


def _told(body: bytes) -> tuple[str, str | None]:
    """Give the code and the trace id that a problem document names."""
    try:
        document = json.loads(body)
        return str(document["code"]), document.get("trace_id")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unknown", None

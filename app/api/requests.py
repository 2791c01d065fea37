"""Counts and records the requests of the ordinary routes; the check route does both itself.

A refused request of an authenticated key leaves an audit row (SPEC S10.1). Where that can't be written the answer is 503: a refusal
that can't be recorded is not given.
"""

from __future__ import annotations

import json
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem, trace_id_of
from app.api.services import Services
from app.api.tool_calls import ROUTE
from app.domain.errors import DecisionUnavailable

RECORDED = frozenset({400, 403, 404, 408, 409, 413, 415, 422})


class RecordedRequests:
    """Pure ASGI: it holds back the start of a refusal until its row is written."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] == ROUTE and scope["method"] == "POST"):
            await self._app(scope, receive, send)
            return
        started = perf_counter()
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
            if status in RECORDED:
                held.append(message)
            else:
                await send(message)

        await self._app(scope, receiving, sending)
        route = getattr(scope.get("route"), "path", None)
        if held:
            status = await self._send_refusal(scope, held, status, route, b"".join(received) if complete else None, send)
        self._services.metrics.request(route, scope["method"], status, perf_counter() - started)

    async def _send_refusal(
        self, scope: Scope, held: list[Message], status: int, route: str | None, asked: bytes | None, send: Send
    ) -> int:
        body = b"".join(message.get("body", b"") for message in held if message["type"] == "http.response.body")
        code, trace_id = _told(body)
        self._services.metrics.refused_request(code)
        principal = scope.get("state", {}).get("principal")
        if principal is not None:
            try:
                await self._services.recorder.refused(principal, route or "unmatched", code, status, trace_id, asked)
            except DecisionUnavailable as away:
                answer = problem(away, trace_id_of(scope["headers"]))
                held = [
                    {"type": "http.response.start", "status": answer.status, "headers": answer.headers},
                    {"type": "http.response.body", "body": answer.body},
                ]
                status = answer.status
        for message in held:
            await send(message)
        return status


def _told(body: bytes) -> tuple[str, str | None]:
    """Give the code and the trace id that a problem document names."""
    try:
        document = json.loads(body)
        return str(document["code"]), document.get("trace_id")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unknown", None

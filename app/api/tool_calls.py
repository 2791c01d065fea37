"""`POST /tool-calls/check` as a plain ASGI endpoint: the framework's own request machinery costs more than a decision.

The order is: key, body, envelope, decision. The answer's schema still comes from the models in `envelope`; a problem on this route
always says that nothing may run. No rule and no SQL here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import structlog
from starlette.types import Receive, Scope, Send

from app.api.authentication import bearer_token
from app.api.envelope import named_call, parse_tool_call
from app.api.json_body import parse_json, read_body
from app.api.problems import CheckedCall, Problem, code_of, problem, trace_id_of
from app.api.services import Services
from app.dialects.tool_result import content_of, generic
from app.domain.canonical import canonical
from app.domain.errors import ClientDisconnected, DecisionUnavailable, PlacetError, RequestInvalid, Unauthenticated
from app.domain.tool_call import Principal
from app.engine.stored_answer import CheckAnswer

ROUTE = "/tool-calls/check"
DECIDE_WITHIN_S = 1.9
FORMATS = ("generic",)
QUERY_FIELDS_MAX = 16
_JSON = (b"content-type", b"application/json")
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class CheckRoute:
    """The endpoint, for one worker's services."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        asked = _Asked()
        try:
            answer = await self._answer(scope, receive, asked)
        except ClientDisconnected:
            return
        except Exception as error:  # isolation: whatever happens, the caller hears that nothing may run
            answer = await self._refuse(error, scope, asked)
        self._services.metrics.request(ROUTE, "POST", answer.status, perf_counter() - started)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive, asked: _Asked) -> Problem:
        services = self._services
        token = bearer_token(scope["headers"])
        asked.principal = await _within(DECIDE_WITHIN_S, services.authority.authenticate(token))
        asked.body = await read_body(scope, receive)
        document = parse_json(asked.body)
        asked.named = CheckedCall(*named_call(document))
        _check_query(scope["query_string"])
        call = parse_tool_call(document)
        answer = await services.checker.check(token, asked.principal, call)
        body = render(answer)
        headers = [_JSON, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
        if answer.replayed:
            headers.append((b"idempotent-replayed", b"true"))
        return Problem(200, tuple(headers), body)

    async def _refuse(self, error: Exception, scope: Scope, asked: _Asked) -> Problem:
        trace_id = trace_id_of(scope["headers"])
        if isinstance(error, TimeoutError):
            error = DecisionUnavailable()
        answer = problem(error, trace_id, asked.named)
        try:
            async with asyncio.timeout(DECIDE_WITHIN_S):
                await self._record(error, answer, trace_id, asked)
        except (DecisionUnavailable, TimeoutError):
            answer = problem(DecisionUnavailable(), trace_id, asked.named)
        if answer.status == 500:
            _log.error("unexpected_error", trace_id=trace_id, route=ROUTE, exc_info=error)
        self._services.metrics.refused_request(code_of(error))
        return answer

    async def _record(self, error: Exception, answer: Problem, trace_id: str, asked: _Asked) -> None:
        services = self._services
        if isinstance(error, Unauthenticated):
            services.metrics.unauthenticated()
            await services.recorder.unauthenticated(ROUTE)
        elif asked.principal is not None and isinstance(error, PlacetError) and not isinstance(error, DecisionUnavailable):
            await services.recorder.refused(asked.principal, ROUTE, code_of(error), answer.status, trace_id, asked.body)


class _Asked:
    """What is known of a request so far."""

    __slots__ = ("body", "named", "principal")

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.body: bytes | None = None
        self.named = CheckedCall()


def render(answer: CheckAnswer) -> bytes:
    """Write an answer: the stored document as it is, and what belongs to this answer alone behind it."""
    rest: dict[str, object] = {
        "audit": {"chain": answer.chain, "sequence": answer.sequence, "hash": answer.hash},
        "replayed": answer.replayed,
    }
    if answer.fix_hint is not None:
        rest["tool_result"] = generic(answer.tool, answer.call_id, content_of(answer.tool, answer.reason, answer.fix_hint))
    return f"{answer.document[:-1]},{canonical(rest)[1:]}".encode()


def _check_query(query: bytes) -> None:
    """Refuse parameters that this route doesn't have.

    Raises:
        RequestInvalid: an unknown parameter, or a format that this version doesn't write.
    """
    if not query:
        return
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise RequestInvalid((("/query", "this route has the parameter `format` only"),)) from None
    for name, value in fields:
        if name != "format":
            raise RequestInvalid((("/query", "this route has the parameter `format` only"),))
        if value not in FORMATS:
            raise RequestInvalid((("/query/format", f"this version writes {', '.join(FORMATS)} only"),))


async def _within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    async with asyncio.timeout(seconds):
        return await work

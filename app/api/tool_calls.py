"""`POST /tool-calls/check` as a plain ASGI endpoint: the framework's own request machinery costs more than a decision.

The order is: key, its limits, body, envelope, decision. The answer's schema still comes from the models in `envelope`; a problem on
this route always says that nothing may run. No rule and no SQL here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from app.api.authentication import bearer_token
from app.api.envelope import named_call, named_locales, parse_tool_call
from app.api.json_body import parse_json, read_body
from app.api.problems import CheckedCall, Problem, code_of, log_failure, problem, trace_id_of
from app.api.rate_limit_fields import fields_of
from app.api.services import Services
from app.dialects.tool_result.formats import DEFAULT_FORMAT, FORMATS, tool_result
from app.domain.canonical import canonical
from app.domain.errors import ClientDisconnected, DecisionUnavailable, PlacetError, RequestInvalid, TooManyRequests, Unauthenticated
from app.domain.tool_call import Principal
from app.domain.wording import say
from app.engine.rate_limits import Admission
from app.engine.stored_answer import CheckAnswer

ROUTE = "/tool-calls/check"
DECIDE_WITHIN_S = 1.9
QUERY_FIELDS_MAX = 16
_JSON = (b"content-type", b"application/json")
_T = TypeVar("_T")


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
        finally:
            if asked.admission is not None:
                self._services.limits.leave(asked.admission)
        self._services.metrics.request(ROUTE, "POST", answer.status, perf_counter() - started)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive, asked: _Asked) -> Problem:
        services = self._services
        format_, wrong = read_query(scope["query_string"])
        asked.named = CheckedCall(format=format_)
        token = bearer_token(scope["headers"])
        await _within(DECIDE_WITHIN_S, self._admit(token, asked))
        assert asked.principal is not None and asked.admission is not None, "or it was refused"
        asked.body = await read_body(scope, receive)
        document = parse_json(asked.body)
        asked.named = CheckedCall(*named_call(document), asked.named.format, named_locales(document))
        if wrong is not None:
            place, sentence = wrong
            raise RequestInvalid(((place, say(asked.named.locales, sentence, value=", ".join(FORMATS))),))
        call = parse_tool_call(document)
        answer = await services.checker.check(token, asked.principal, call)
        body = render(answer, format_)
        fields = fields_of(asked.admission.standing)
        headers = [_JSON, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store"), *fields]
        if answer.replayed:
            headers.append((b"idempotent-replayed", b"true"))
        return Problem(200, tuple(headers), body)

    async def _admit(self, token: str, asked: _Asked) -> None:
        asked.principal = await self._services.authority.authenticate(token)
        asked.admission = await self._services.limits.admit(asked.principal)

    async def _refuse(self, error: Exception, scope: Scope, asked: _Asked) -> Problem:
        trace_id = trace_id_of(scope["headers"])
        if isinstance(error, TimeoutError):
            away = DecisionUnavailable()
            away.__cause__ = error
            error = away
        answer = problem(error, trace_id, asked.named)
        try:
            async with asyncio.timeout(DECIDE_WITHIN_S):
                await self._record(error, answer, trace_id, asked)
        except (DecisionUnavailable, TimeoutError):
            answer = problem(DecisionUnavailable(), trace_id, asked.named)
        log_failure(error, answer.status, trace_id, route=ROUTE)
        self._services.metrics.refused_request(code_of(error))
        return answer if asked.admission is None else answer._replace(headers=(*answer.headers, *fields_of(asked.admission.standing)))

    async def _record(self, error: Exception, answer: Problem, trace_id: str, asked: _Asked) -> None:
        services = self._services
        if isinstance(error, Unauthenticated):
            services.metrics.unauthenticated()
            await services.recorder.unauthenticated(ROUTE)
        elif asked.principal is not None and isinstance(error, TooManyRequests):
            await services.recorder.limited(asked.principal, ROUTE, code_of(error), trace_id)
        elif asked.principal is not None and isinstance(error, PlacetError) and not isinstance(error, DecisionUnavailable):
            await services.recorder.refused(asked.principal, ROUTE, code_of(error), answer.status, trace_id, asked.body)


class _Asked:
    """What is known of a request so far."""

    __slots__ = ("admission", "body", "named", "principal")

    def __init__(self) -> None:
        self.admission: Admission | None = None
        self.principal: Principal | None = None
        self.body: bytes | None = None
        self.named = CheckedCall()


def render(answer: CheckAnswer, format_: str) -> bytes:
    """Write an answer: the stored document as it is, and what belongs to this answer alone behind it."""
    rest: dict[str, object] = {
        "audit": {"chain": answer.chain, "sequence": answer.sequence, "hash": answer.hash},
        "replayed": answer.replayed,
    }
    if answer.fix_hint is not None:
        rest["tool_result"] = tool_result(format_, answer.tool, answer.call_id, answer.reason, answer.fix_hint, answer.locales)
    return f"{answer.document[:-1]},{canonical(rest)[1:]}".encode()


def read_query(query: bytes) -> tuple[str, tuple[str, str] | None]:
    """Give the format that is asked for, and what is wrong with the query, as a place and a sentence: it is told in its turn."""
    if not query:
        return DEFAULT_FORMAT, None
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        fields = [("", "")]
    if [name for name, _ in fields] != ["format"]:
        return DEFAULT_FORMAT, ("/query", "request_query")
    asked = fields[0][1]
    if asked not in FORMATS:
        return DEFAULT_FORMAT, ("/query/format", "request_one_of")
    return asked, None


async def _within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    async with asyncio.timeout(seconds):
        return await work

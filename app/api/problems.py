"""Problem documents (RFC 9457): the only place where a failure becomes a status code.

The body is made of our own words and of names that were checked, written as ASCII: whatever was sent (NaN, lone surrogates, secrets),
making the answer can't fail and can't echo it. On check routes every problem says that nothing may run.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.api.envelope import detail_of
from app.api.json_body import pointer_of
from app.api.rate_limit_fields import fields_of
from app.api.route_table import allow_of
from app.dialects.tool_result.formats import DEFAULT_FORMAT, tool_result
from app.domain.credentials import without_credentials
from app.domain.errors import (
    BodyMalformed,
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    Conflict,
    DecisionUnavailable,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    NotFound,
    NotPermitted,
    PlacetError,
    PolicyInvalid,
    RateLimited,
    RequestInvalid,
    TooManyRequests,
    TooManyUnderWay,
    Unauthenticated,
    UnsupportedMediaType,
)
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.wording import DEFAULT, ENGLISH, Locales, joined, language_of, say
from app.policy.templates import spoken

TYPE_BASE = "/problems/"
"""A relative reference with its full path (RFC 9457, 4.2): true on every host that serves this, and nothing to configure."""

MEDIA_TYPE = "application/problem+json"
ERRORS_MAX = 20
TEXT_MAX = 500

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_log = structlog.get_logger(__name__)


class Kind(NamedTuple):
    """How a failure is told. `detail` is said where the failure's own message isn't for the client."""

    status: int
    code: str
    title: str
    retryable: Retryable
    denial_class: DenialClass = DenialClass.STRUCTURAL
    detail: str | None = None


class Problem(NamedTuple):
    """A whole answer, ready for ASGI."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class CheckedCall(NamedTuple):
    """What is known of a call on a check route; None where the body couldn't say it. `format` is one of `FORMATS`, as the query asks."""

    tool: str | None = None
    call_id: str | None = None
    format: str = DEFAULT_FORMAT
    locales: Locales = ENGLISH


_BUG = "an unexpected error; it was logged under trace_id"
INTERNAL = Kind(500, "internal_error", "Something went wrong here", Retryable.NEVER, DenialClass.TRANSIENT, _BUG)
KINDS: Mapping[type[PlacetError], Kind] = {
    BodyMalformed: Kind(400, "body_malformed", "The body is not one exact JSON document", Retryable.AFTER_CHANGE),
    ClientDisconnected: Kind(400, "client_disconnected", "The client left", Retryable.AFTER_DELAY, DenialClass.TRANSIENT),
    Unauthenticated: Kind(401, "unauthenticated", "A valid key is needed", Retryable.AFTER_CHANGE, DenialClass.PERMISSION),
    NotPermitted: Kind(403, "not_permitted", "The key may not do this", Retryable.NEVER, DenialClass.PERMISSION),
    NotFound: Kind(404, "not_found", "There is no such thing", Retryable.NEVER, DenialClass.STATE),
    Conflict: Kind(409, "conflict", "It can't be done in this state", Retryable.NEVER, DenialClass.STATE),
    IdempotencyInProgress: Kind(
        409, "idempotency_in_progress", "The first request still runs", Retryable.AFTER_DELAY, DenialClass.TRANSIENT
    ),
    BodyTooSlow: Kind(408, "body_too_slow", "The body came too slowly", Retryable.AFTER_DELAY, DenialClass.TRANSIENT),
    BodyTooLarge: Kind(413, "body_too_large", "The body is too large", Retryable.AFTER_CHANGE),
    UnsupportedMediaType: Kind(415, "unsupported_media_type", "The body has an unsupported type", Retryable.AFTER_CHANGE),
    RequestInvalid: Kind(422, "request_invalid", "The request has errors", Retryable.AFTER_CHANGE),
    IdempotencyKeyReused: Kind(422, "idempotency_key_reused", "The Idempotency-Key was used before", Retryable.AFTER_CHANGE),
    PolicyInvalid: Kind(422, "policy_invalid", "The policy bundle has faults", Retryable.AFTER_CHANGE),
    RateLimited: Kind(429, "rate_limited", "The key's requests are spent", Retryable.AFTER_DELAY, DenialClass.TRANSIENT),
    TooManyUnderWay: Kind(429, "too_many_requests_under_way", "Too many requests at once", Retryable.AFTER_DELAY, DenialClass.TRANSIENT),
    DecisionUnavailable: Kind(503, "decision_unavailable", "No decision could be made", Retryable.AFTER_DELAY, DenialClass.TRANSIENT),
}
_HTTP_KINDS: Mapping[int, Kind] = {
    404: Kind(404, "not_found", "There is no such thing", Retryable.NEVER, DenialClass.STATE, "no route has this path"),
    405: Kind(405, "method_not_allowed", "The path doesn't take this method", Retryable.NEVER, detail="see the Allow header"),
}

_SENTENCES: Mapping[int, str] = {401: "key_needed", 403: "role_needed", 429: "too_many_requests", 500: "no_decision", 503: "no_decision"}
"""What a hint says in another language than the details', of the failures that can come once the body was read."""


def problem(error: BaseException, trace_id: str, check: CheckedCall | None = None) -> Problem:
    """Give the answer for a failure. With `check` it is the answer of a check route: no permission, a hint and a tool result.

    What isn't a PlacetError or an HTTP error of the framework is an internal error, told without its message.
    """
    kind, headers = _kind_of(error)
    errors = _errors_of(error)
    detail = _clean(kind.detail if kind.detail is not None else str(error))
    document: dict[str, object] = {
        "type": TYPE_BASE + kind.code,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": kind.code,
    }
    if errors:
        document["errors"] = [{"pointer": pointer, "detail": text} for pointer, text in errors]
    if check is not None:
        document["execution_permitted"] = False
    document["retryable"] = kind.retryable.value
    if isinstance(error, DecisionUnavailable | TooManyRequests) and error.retry_after_s is not None:
        document["retry_after_s"] = error.retry_after_s
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if check is not None:
        hint = _hint(error, kind, detail, errors, check.locales).document()
        document["fix_hint"] = hint
        document["tool_result"] = tool_result(check.format, check.tool, check.call_id, kind.code, hint, check.locales)
    document["trace_id"] = trace_id
    body = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    return Problem(kind.status, tuple(headers), body)


def code_of(error: BaseException) -> str:
    """Give the code that a failure is counted and recorded under."""
    return _kind_of(error)[0].code


def trace_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Give the trace id of a well-formed W3C `traceparent` among raw ASGI headers, else a fresh one: 32 hex digits."""
    found = [value for name, value in headers if name == b"traceparent"]
    if len(found) == 1 and len(found[0]) <= 512:
        match = _TRACEPARENT.fullmatch(found[0].decode("latin-1").strip())
        if match is not None and (not match[0].startswith("00") or len(match[0]) == 55):  # version 00 has four parts exactly
            return match[1]
    return secrets.token_hex(16)


def answer_of(request: Request, error: Exception) -> Response:
    """Give the answer of an ordinary route for a failure, which is logged where it is ours."""
    trace_id = trace_id_of(request.scope["headers"])
    answer = problem(error, trace_id)
    log_failure(error, answer.status, trace_id, method=request.method)
    return _response(answer)


def log_failure(error: BaseException, status: int, trace_id: str, **where: str) -> None:
    """Log what a caller can do nothing about, under the trace id that the answer names: a bug with its traceback, because the answer says
    nothing of it, and of an outage by its kind what was away."""
    if status == INTERNAL.status:
        _log.error("unexpected_error", trace_id=trace_id, **where, exc_info=error)
    elif isinstance(error, DecisionUnavailable) and error.__cause__ is not None:
        _log.warning("unavailable", trace_id=trace_id, **where, cause=type(error.__cause__).__name__)


def install(app: FastAPI) -> None:
    """Make every failure of the app's ordinary routes a problem document."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error.headers = {"allow": allow_of(app.routes, request.scope)}
        return answer_of(request, error)

    app.add_exception_handler(PlacetError, handle)
    app.add_exception_handler(RequestValidationError, handle)
    app.add_exception_handler(HTTPException, handle)
    app.add_exception_handler(Exception, handle)


def _response(answer: Problem) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = list(answer.headers)
    return response


def _kind_of(error: BaseException) -> tuple[Kind, list[tuple[bytes, bytes]]]:
    if isinstance(error, HTTPException):
        return _http_kind(error)
    if isinstance(error, RequestValidationError):
        return KINDS[RequestInvalid]._replace(detail=_count(len(error.errors()))), []
    for ancestor in type(error).__mro__:
        kind = KINDS.get(ancestor)
        if kind is not None:
            break
    else:
        return INTERNAL, []
    if isinstance(error, Conflict):
        kind = kind._replace(code=error.code)
    if isinstance(error, Unauthenticated):
        return kind, [(b"www-authenticate", b"Bearer")]
    if isinstance(error, TooManyRequests):
        if error.retry_after_s is None:  # the limit is 0
            kind = kind._replace(retryable=Retryable.NEVER, denial_class=DenialClass.PERMISSION)
        return kind, [*fields_of(error.standing, none_at_once=isinstance(error, TooManyUnderWay))]
    return kind, []


def _http_kind(error: HTTPException) -> tuple[Kind, list[tuple[bytes, bytes]]]:
    """Tell what the framework itself refuses; its own words are kept out, because a path is what was sent."""
    allow = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    headers = [(b"allow", allow.encode("latin-1"))] if allow else []
    known = _HTTP_KINDS.get(error.status_code)
    if known is not None:
        return known, headers
    if 400 <= error.status_code < 500:
        return Kind(
            error.status_code, "request_refused", "The request was refused", Retryable.NEVER, detail=_phrase(error.status_code)
        ), headers
    return INTERNAL, []


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.lower()
    except ValueError:
        return "the framework gave no reason"


def _errors_of(error: BaseException) -> list[tuple[str, str]]:
    """Give (pointer, detail) pairs, at most ERRORS_MAX."""
    if isinstance(error, RequestInvalid):
        return [(_clean(pointer), _clean(text)) for pointer, text in error.errors[:ERRORS_MAX]]
    if isinstance(error, BodyMalformed) and error.pointer:
        return [(_clean(error.pointer), _clean(str(error)))]
    if isinstance(error, RequestValidationError):
        return [(_framework_pointer(item["loc"]), detail_of(item["type"], item.get("ctx", {}))) for item in error.errors()[:ERRORS_MAX]]
    if isinstance(error, PolicyInvalid):
        return [("", _clean(str(fault))) for fault in error.faults[:ERRORS_MAX]]
    return []


def _framework_pointer(place: tuple[str | int, ...]) -> str:
    """A body's place is a pointer from its root; a parameter is named with where it is, `query/limit`."""
    if place and place[0] == "body":
        return pointer_of(tuple(place[1:]))
    return pointer_of(tuple(place))


def _hint(error: BaseException, kind: Kind, detail: str, errors: list[tuple[str, str]], locales: Locales) -> FixHint:
    """Say how the failure can be mended, in the caller's locale where the failure can be said there: `errors` are in it already.

    `field` points into the arguments, as in a decision's hint.
    """
    field = None
    if language_of(locales) != DEFAULT and kind.status in _SENTENCES:
        detail = say(locales, _SENTENCES[kind.status])
    if errors:
        found = (say(locales, "at_place", place=spoken(pointer), found=text) if pointer else text for pointer, text in errors)
        detail = joined(locales, found)[:TEXT_MAX]
        pointer = errors[0][0]
        field = pointer.removeprefix("/arguments") if pointer.startswith("/arguments/") else None
    match kind.retryable:
        case Retryable.AFTER_CHANGE:
            action = NextAction(NextActionKind.CALL_AGAIN)
        case Retryable.AFTER_DELAY:
            action = NextAction(NextActionKind.WAIT)
        case _:
            action = NextAction(NextActionKind.STOP)
    wait_s = error.retry_after_s if isinstance(error, DecisionUnavailable | TooManyRequests) else None
    delay = wait_s * 1000 if wait_s is not None else None
    return FixHint(kind.denial_class, kind.retryable, detail, action, field=field, retry_after_ms=delay)


def _count(number: int) -> str:
    return f"{number} error" + ("s" if number != 1 else "")


def _clean(text: str) -> str:
    """Bound a text; json escapes what isn't ASCII, so nothing else can break the answer."""
    text = without_credentials(text, dense=False)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"

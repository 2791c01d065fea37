"""`Idempotency-Key` on the ordinary POSTs: the same request again gets the first answer, and has its effect once.

The key counts for one subject of one tenant. What is stored is what was answered, without a secret: that is shown once and kept nowhere.
A failure of ours (5xx) frees the key. The check routes have their own way: (session_id, call_id).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from fastapi import Request, Response

from app.api.json_body import JsonRoute, document_of_request
from app.api.problems import MEDIA_TYPE, answer_of
from app.api.services import Services
from app.domain.canonical import digest
from app.domain.errors import DecisionUnavailable, RequestInvalid
from app.domain.tool_call import Principal
from app.engine.answer_once import StoredAnswer
from app.storage.idempotency import Claim

HEADER = b"idempotency-key"
KEY_LENGTH_MAX = 128
SECRET_FIELDS = frozenset({"secret"})
_log = structlog.get_logger(__name__)


def idempotent_route(services: Services) -> type[JsonRoute]:
    """Give the route class whose POSTs take an Idempotency-Key (`APIRouter(route_class=idempotent_route(services))`)."""

    class IdempotentRoute(JsonRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()
            if "POST" not in (self.methods or ()):
                return handler
            route = f"POST {self.path}"

            async def answer_once(request: Request) -> Response:
                keys = [value for name, value in request.scope["headers"] if name == HEADER]
                if not keys:
                    return await handler(request)
                once = request.state.once = _Once(services, route, keys)
                try:
                    response = await handler(request)
                except _AnsweredBefore as before:
                    return before.response
                except Exception as error:
                    response = answer_of(request, error)  # a refusal is an answer like another
                return await once.finish(response)

            return answer_once

    return IdempotentRoute


async def claim_key(request: Request, principal: Principal) -> None:
    """Claim the request's Idempotency-Key, if it has one, for a principal that may make the request.

    Raises:
        RequestInvalid: it isn't a key.
        IdempotencyKeyReused, IdempotencyInProgress: see AnswerOnce.claim.
    """
    once: _Once | None = getattr(request.state, "once", None)
    if once is not None:
        await once.claim(request, principal)


class _AnsweredBefore(Exception):
    """Leads from the dependency that found a stored answer past the endpoint to the route."""

    def __init__(self, response: Response) -> None:
        self.response = response


class _Once:
    """One request with a key."""

    def __init__(self, services: Services, route: str, keys: list[bytes]) -> None:
        self._services = services
        self._route = route
        self._keys = keys
        self._claim: Claim | None = None

    async def claim(self, request: Request, principal: Principal) -> None:
        key = _key_of(self._keys)
        asked = {"path": dict(request.path_params), "body": await document_of_request(request)}
        found = await self._services.once.claim(principal.tenant_id, principal.subject, key, self._route, digest(asked))
        if isinstance(found, StoredAnswer):
            media_type = "application/json" if found.status < 400 else MEDIA_TYPE
            raise _AnsweredBefore(Response(found.body, found.status, {"idempotent-replayed": "true"}, media_type))
        self._claim = found

    async def finish(self, response: Response) -> Response:
        """Store the answer, or give the key back. What happened has happened: a failure here doesn't change the answer."""
        if self._claim is None:
            return response
        try:
            if response.status_code >= 500:
                await self._services.once.free(self._claim)
            else:
                await self._services.once.finish(self._claim, response.status_code, without_secrets(bytes(response.body)))
        except DecisionUnavailable:
            _log.warning("answer_not_stored", route=self._route)
        return response


def without_secrets(body: bytes) -> str:
    """Give an answer as it may be stored: a secret is left out, and `secret_shown_once` says so."""
    document = json.loads(body)
    if not SECRET_FIELDS.isdisjoint(document):
        document = {name: value for name, value in document.items() if name not in SECRET_FIELDS}
        document["secret_shown_once"] = True
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def _key_of(values: list[bytes]) -> str:
    value = values[0]
    if len(values) > 1 or not 0 < len(value) <= KEY_LENGTH_MAX or not all(33 <= byte <= 126 for byte in value):
        raise RequestInvalid((("/header/Idempotency-Key", f"must be one header of 1 to {KEY_LENGTH_MAX} visible ASCII characters"),))
    return value.decode("ascii")

"""The parts of the contract that operations share: what a failure answers, its headers and its examples.

A failure that is told alike everywhere is one component; 404, 409 and 422 are each operation's own, because their examples are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from app.api import answers
from app.api.examples import CHECK_PROBLEMS, PROBLEMS, Exchange, answers_of, exchanges
from app.api.problems import MEDIA_TYPE

SCHEMA = "#/components/schemas/{model}"
JSON = "application/json"
LIMITS = ("RateLimit-Policy", "RateLimit")
REPLAYED = "Idempotent-Replayed"
RETRY_AFTER = "Retry-After"
DEFAULT = "default"
OTHER = "any other failure"
DESCRIPTIONS: Mapping[int, str] = {
    400: "the body isn't one exact JSON document",
    401: "a valid key is needed",
    403: "the key may not do this",
    404: "there is no such thing, or the key may not know of it",
    408: "the body wasn't complete within ten seconds",
    409: "it can't be done in this state, or the first request with this Idempotency-Key still runs",
    413: "the body is too large",
    415: "the body isn't declared as JSON in UTF-8",
    422: "the request has errors",
    429: "the key is over its requests a minute or has too many under way; wait as long as Retry-After says",
    503: "nothing could be recorded and nothing was changed; wait as long as Retry-After says",
}
OWN = frozenset({404, 409, 422})
_OF_A_POST: Mapping[int, str] = {409: "idempotency_in_progress", 422: "idempotency_key_reused"}
_NOT_FOUND: Mapping[str, str] = {
    **dict.fromkeys(("make_key", "set_freeze", "list_freezes"), "no_such_tenant"),
    **dict.fromkeys(("rotate_key", "revoke_key"), "no_such_key"),
}
_BESIDE_LIMITS: Mapping[int, tuple[str, ...]] = {401: ("WWW-Authenticate",), 429: (RETRY_AFTER,), 503: (RETRY_AFTER,)}
"""A failure's own headers. The key's limits may stand in each, 401 too: in that of a key that was revoked a moment ago."""


def components() -> dict[str, Any]:
    """Give the shared responses, examples and headers."""
    found: dict[str, Any] = {"responses": {}, "examples": {}, "headers": _headers()}
    for model, file in ((answers.Problem, PROBLEMS), (answers.CheckProblem, CHECK_PROBLEMS)):
        for exchange in exchanges(file):
            found["examples"][_name(model, exchange.name)] = example_of(exchange, exchange.answer)
        for status in DESCRIPTIONS.keys() - OWN:
            shared = {each.name: _example(model, each.name) for each in exchanges(file) if each.status == status}
            found["responses"][_name(model, str(status))] = _response(model, status, shared)
        found["responses"][_name(model, DEFAULT)] = {"description": OTHER, "content": content(model, MEDIA_TYPE)}
    return {kind: dict(sorted(named.items())) for kind, named in found.items()}


def failures(operation: str, statuses: Iterable[int], model: type[BaseModel] = answers.Problem, *, post: bool = False) -> dict[str, Any]:
    """Give an operation's responses for its failures; whatever isn't listed is a problem too. `post`: it takes an Idempotency-Key."""
    found: dict[str, Any] = {}
    for status in sorted(statuses):
        if status not in OWN:
            found[str(status)] = {"$ref": f"#/components/responses/{_name(model, str(status))}"}
            continue
        examples = {each.name: example_of(each, each.answer) for each in answers_of(operation, status)}
        if status == 404 and operation in _NOT_FOUND:
            examples[_NOT_FOUND[operation]] = _example(model, _NOT_FOUND[operation])
        if post and status in _OF_A_POST:
            examples[_OF_A_POST[status]] = _example(model, _OF_A_POST[status])
        found[str(status)] = _response(model, status, examples)
        if post:
            found[str(status)]["headers"] |= headers(REPLAYED)
    return found | {DEFAULT: {"$ref": f"#/components/responses/{_name(model, DEFAULT)}"}}


def headers(*names: str) -> dict[str, Any]:
    """Refer to shared headers."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def content(model: type[BaseModel], media_type: str = JSON) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": SCHEMA.format(model=model.__name__)}}}


def example_of(exchange: Exchange, value: Any) -> dict[str, Any]:
    return {"summary": exchange.summary, "value": value}


def _response(model: type[BaseModel], status: int, examples: Mapping[str, Any]) -> dict[str, Any]:
    said = content(model, MEDIA_TYPE)
    if examples:
        said[MEDIA_TYPE]["examples"] = dict(examples)
    return {"description": DESCRIPTIONS[status], "headers": headers(*_BESIDE_LIMITS.get(status, ()), *LIMITS), "content": said}


def _headers() -> dict[str, Any]:
    return {
        REPLAYED: {
            "description": "the answer was stored before, or the call id was decided before; absent from a first answer",
            "schema": {"type": "string", "const": "true"},
        },
        "RateLimit": {
            "description": "requests that are left, and the seconds until there are new ones; a hint and no promise",
            "schema": {
                "type": "string",
                "pattern": r'^"requests";r=\d+;t=\d+(, "concurrent";r=0)?$',
                "examples": ['"requests";r=29950;t=31'],
            },
        },
        "RateLimit-Policy": {
            "description": "the key's limits, as draft-ietf-httpapi-ratelimit-headers writes them",
            "schema": {
                "type": "string",
                "pattern": r'^"requests";q=\d+;w=60, "concurrent";q=\d+;qu="concurrent-requests"$',
                "examples": ['"requests";q=30000;w=60, "concurrent";q=128;qu="concurrent-requests"'],
            },
        },
        RETRY_AFTER: {
            "description": "how many seconds to wait; absent where waiting doesn't help, because the key's limit is 0",
            "schema": {"type": "integer", "minimum": 0},
        },
        "WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}},
    }


def _name(model: type[BaseModel], name: str) -> str:
    return f"{model.__name__}.{name}"


def _example(model: type[BaseModel], name: str) -> dict[str, str]:
    return {"$ref": f"#/components/examples/{_name(model, name)}"}

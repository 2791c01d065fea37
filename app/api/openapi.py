"""The contract: what `/openapi.json` serves and `openapi/openapi.yaml` holds (SPEC S14.3).

It is made of the routes themselves, of the models of `envelope`, `answers` and `reports`, and of one table here for the routes that
answer with text of their own. The framework's guesses about errors are replaced: every failure is a problem document. A test holds it
against real answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from ruamel.yaml import YAML

from app.api import answers, reports
from app.api.envelope import ToolCallCheckRequest
from app.api.examples import EXAMPLES
from app.api.idempotency import KEY_LENGTH_MAX
from app.api.problems import MEDIA_TYPE
from app.api.tool_calls import ROUTE
from app.dialects.tool_result.formats import DEFAULT_FORMAT, FORMATS
from app.domain.tool_call import Role

SECURITY_SCHEME = "key"
DESCRIPTION = """Decides tool calls before they run, and says why.

Every failure is a problem document (RFC 9457). Fields that an answer may leave out are never null. Ignore answer fields that you don't
know; request fields that Placet doesn't know are refused."""
TAGS: Mapping[str, str] = {
    "decisions": "tool calls are checked, and decisions read back",
    "approvals": "what waits for a person",
    "freezes": "what an operator has stopped",
    "keys": "tenants and their keys",
    "policies": "the tenant's policy versions",
    "audit": "the tenant's audit chain",
    "operations": "for whoever runs the service; no key",
}
_REF = "#/components/schemas/{model}"
_PROBLEMS: Mapping[int, str] = {
    400: "the body isn't one exact JSON document",
    401: "a valid key is needed",
    403: "the key may not do this",
    404: "there is no such thing, or the key may not know of it",
    409: "it can't be done in this state, or the first request with this Idempotency-Key still runs",
    408: "the body wasn't complete within ten seconds",
    413: "the body is too large",
    415: "the body isn't declared as JSON in UTF-8",
    422: "the request has errors",
    429: "the key is over its requests a minute or has too many under way; wait as long as Retry-After says",
    503: "nothing could be recorded and nothing was changed; wait as long as Retry-After says",
}
_OTHER = "any other failure"
_RETRY_AFTER: Mapping[str, Any] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 0}}}

_RATE_LIMIT: Mapping[str, Any] = {
    "RateLimit-Policy": {
        "description": "the key's limits, as draft-ietf-httpapi-ratelimit-headers writes them",
        "schema": {"type": "string", "examples": ['"requests";q=30000;w=60, "concurrent";q=128;qu="concurrent-requests"']},
    },
    "RateLimit": {
        "description": "requests that are left, and the seconds until there are new ones; a hint and no promise",
        "schema": {"type": "string", "examples": ['"requests";r=29950;t=31']},
    },
}


class _Answer(NamedTuple):
    status: int
    model: type[BaseModel]
    description: str


_WRITTEN: Mapping[tuple[str, str], tuple[_Answer, ...]] = {
    ("get", "/decisions/{decision_id}"): (_Answer(200, answers.DecisionRecord, "the decision"),),
    ("get", "/approvals"): (_Answer(200, reports.ApprovalsPage, "a page of approvals"),),
    ("get", "/approvals/{approval_id}"): (_Answer(200, reports.Approval, "the approval"),),
    ("get", "/audit/verification"): (_Answer(200, reports.ChainVerification, "what was verified"),),
    ("get", "/healthz"): (_Answer(200, reports.Health, "the process answers"),),
    ("get", "/readyz"): (
        _Answer(200, reports.Readiness, "the service can decide"),
        _Answer(503, reports.Readiness, "it can't; the checks say why"),
    ),
}
_MODELS: tuple[type[BaseModel], ...] = (
    ToolCallCheckRequest,
    answers.ToolCallDecision,
    answers.Problem,
    answers.CheckProblem,
    *(answer.model for written in _WRITTEN.values() for answer in written),
)


def serve_contract(app: FastAPI) -> None:
    """Make the application serve the whole contract instead of what the framework knows of it."""
    made: dict[str, Any] = {}
    from_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(_contract(from_routes(), app.routes))
        return made

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's documented way


def as_yaml(contract: Mapping[str, Any]) -> str:
    """Write the contract as it is committed: the same text for the same contract."""
    writer = YAML()
    writer.width = 140
    writer.representer.ignore_aliases = lambda _: True  # readers of the file shouldn't have to follow anchors
    writer.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    text.write("# Written by `placet openapi > openapi/openapi.yaml`; a test keeps it equal to what the service serves.\n")
    writer.dump(contract, text)
    return text.getvalue()


def _contract(document: dict[str, Any], routes: Iterable[object]) -> dict[str, Any]:
    _, models = models_json_schema([(model, "serialization") for model in dict.fromkeys(_MODELS)], ref_template=_REF)
    schemas: dict[str, Any] = {**document["components"]["schemas"], **models["$defs"]}
    for framework in ("HTTPValidationError", "ValidationError"):
        schemas.pop(framework, None)
    for name, schema in schemas.items():
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
        if not name.endswith("Request"):
            _leave_out_nulls(schema)
    for route in _api_routes(routes):
        for method in route.methods or ():
            operation = document["paths"][route.path][method.lower()]
            _describe(operation, method, route)
    document["paths"] = {ROUTE: {"post": _check_operation()}, **document["paths"]}
    document["info"]["description"] = DESCRIPTION
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["components"] = {
        "schemas": {name: schemas[name] for name in sorted(schemas)},
        "securitySchemes": {
            SECURITY_SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "a key; it alone says tenant, subject and roles",
            }
        },
    }
    return document


def _leave_out_nulls(schema: dict[str, Any]) -> None:
    """An answer's field that is None is left out, so it is never null."""
    for field in schema.get("properties", {}).values():
        kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1 and field.get("default", ...) is None:
            del field["anyOf"], field["default"]
            field.update(kinds[0])


def _api_routes(routes: Iterable[object]) -> Iterator[APIRoute]:
    for route in routes:
        router = getattr(route, "original_router", None)
        if isinstance(router, APIRouter):
            yield from _api_routes(router.routes)
        elif isinstance(route, APIRoute) and route.include_in_schema:
            yield route


def _describe(operation: dict[str, Any], method: str, route: APIRoute) -> None:
    """Add to one operation what the framework can't know."""
    operation["operationId"] = route.name
    roles = [role for each in route.dependant.dependencies for role in getattr(each.call, "roles", ())]
    for parameter in operation.get("parameters", ()):  # one that is absent is left out, never null
        kinds = [kind for kind in parameter["schema"].get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1:
            del parameter["schema"]["anyOf"]
            parameter["schema"].update(kinds[0])
    responses: dict[str, Any] = {
        status: response for status, response in operation["responses"].items() if status not in ("422", "503") and response.get("content")
    }
    for response in responses.values():
        response["description"] = operation["summary"][0].lower() + operation["summary"][1:]
    if route.path == "/metrics":
        responses["200"] = {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    for answer in _WRITTEN.get((method.lower(), route.path), ()):
        responses[str(answer.status)] = {"description": answer.description, "content": _content(answer.model)}
        if answer.status == 503:
            responses["503"]["headers"] = _RETRY_AFTER
    problems: set[int] = set()
    if roles:
        _require_key(operation, roles)
        problems |= {401, 403, 429, 503}
        for status, response in responses.items():
            if status != "503":
                response["headers"] = {**response.get("headers", {}), **_RATE_LIMIT}
    if "{" in route.path:
        problems.add(404)
    if any(each["in"] == "query" or each["schema"]["type"] != "string" for each in operation.get("parameters", ())):
        problems.add(422)  # an id that isn't one is 404
    if route.body_field is not None:
        problems |= {400, 408, 413, 415, 422}
    if method == "POST":
        problems |= {404, 409, 422}
        _take_idempotency_key(operation, responses)
    operation["responses"] = responses | _problems(problems, answers.Problem)


def _require_key(operation: dict[str, Any], roles: Iterable[Role]) -> None:
    said = operation.get("description")
    needed = f"Needs a key with the role {' or '.join(roles)}."
    operation["description"] = f"{said}\n\n{needed}" if said else needed
    operation["security"] = [{SECURITY_SCHEME: []}]


def _take_idempotency_key(operation: dict[str, Any], responses: Mapping[str, Any]) -> None:
    header = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "names this request: the same again gets the first answer, without a secret, and has no second effect",
        "schema": {"type": "string", "pattern": f"^[!-~]{{1,{KEY_LENGTH_MAX}}}$"},
    }
    operation.setdefault("parameters", []).append(header)
    for response in responses.values():
        replayed = {"Idempotent-Replayed": _replayed("the answer was stored before")}
        response["headers"] = replayed | response.get("headers", {})


def _replayed(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string", "const": "true"}}


def _check_operation() -> dict[str, Any]:
    """Describe the check route, which the framework doesn't know."""
    decided = {
        "description": "the decision, whatever it says",
        "headers": {"Idempotent-Replayed": _replayed("this call id was decided before")} | dict(_RATE_LIMIT),
        "content": _content(answers.ToolCallDecision),
    }
    operation: dict[str, Any] = {
        "tags": ["decisions"],
        "summary": "Check a tool call before it runs",
        "description": "May this agent make this tool call now? It may run only if `execution_permitted` is true in the answer. The call "
        "id makes a retry safe: what is settled is replayed, and a replay permits nothing. Every other answer, a problem too, means no.",
        "operationId": "check_tool_call",
        "parameters": [
            {
                "name": "format",
                "in": "query",
                "required": False,
                "description": "how `tool_result` is written",
                "schema": {"type": "string", "enum": list(FORMATS), "default": DEFAULT_FORMAT},
            }
        ],
        "requestBody": {"required": True, "content": _content(ToolCallCheckRequest)},
        "responses": {"200": decided} | _problems({400, 401, 403, 408, 413, 415, 422, 429, 503}, answers.CheckProblem),
    }
    _require_key(operation, [Role.AGENT])
    return operation


def _problems(statuses: Iterable[int], model: type[BaseModel]) -> dict[str, Any]:
    """Give the responses for failures; whatever isn't listed is a problem too."""
    content = _content(model, MEDIA_TYPE)
    found: dict[str, Any] = {str(status): {"description": _PROBLEMS[status], "content": content} for status in sorted(statuses)}
    if "401" in found:
        found["401"]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}}}
    if "429" in found:
        found["429"]["headers"] = {**_RETRY_AFTER, **_RATE_LIMIT}
    if "503" in found:
        found["503"]["headers"] = _RETRY_AFTER
    return found | {"default": {"description": _OTHER, "content": content}}


def _content(model: type[BaseModel], media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REF.format(model=model.__name__)}}}

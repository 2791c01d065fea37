"""The contract: what `/openapi.json` serves and `openapi/openapi.yaml` holds (SPEC S14.3).

It is made of the routes themselves, of the models of `envelope`, `answers` and `reports`, of the exchanges of `examples`, and of one table
here for the routes that answer with text of their own. The framework's guesses about errors are replaced: every failure is a problem
document, and an operation names each status that it can give. Tests hold it against real answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from ruamel.yaml import YAML

from app.api import answers, reports
from app.api.contract_responses import JSON, LIMITS, REPLAYED, RETRY_AFTER, SCHEMA, components, content, example_of, failures, headers
from app.api.envelope import ToolCallCheckRequest
from app.api.examples import Exchange, answers_of, exchanges
from app.api.idempotency import KEY_LENGTH_MAX
from app.api.route_table import each_route
from app.api.tool_calls import ROUTE
from app.dialects.tool_result.formats import DEFAULT_FORMAT, FORMATS
from app.domain.tool_call import Role
from app.telemetry import CONTENT_TYPE

SECURITY_SCHEME = "key"
CHECK = "check_tool_call"
IDEMPOTENCY_KEY = "Idempotency-Key"
DESCRIPTION = """Decides tool calls before they run, and says why.

Every failure is a problem document (RFC 9457). Fields that an answer may leave out are never null. Ignore answer fields that you don't
know; request fields and parameters that Placet doesn't know are refused.

Examples with the same name belong together: a request's, and the answer's to it."""
TAGS: Mapping[str, str] = {
    "decisions": "tool calls are checked, and decisions read back",
    "approvals": "what waits for a person",
    "freezes": "what an operator has stopped",
    "keys": "tenants and their keys",
    "policies": "the tenant's policy versions",
    "audit": "the tenant's audit chain",
    "operations": "for whoever runs the service; no key",
}
WITH_KEY = frozenset({401, 403, 422, 429, 503})
WITH_BODY = frozenset({400, 408, 413, 415, 422})
OF_A_POST = frozenset({409, 422})
NAMES_A_TENANT = frozenset({"make_key", "set_freeze", "list_freezes"})
"""Operations without an id in their path that can name a tenant which isn't there (404)."""


class _Answer(NamedTuple):
    status: int
    model: type[BaseModel]
    description: str


_WRITTEN: Mapping[str, tuple[_Answer, ...]] = {
    "read_decision": (_Answer(200, answers.DecisionRecord, "the decision"),),
    "list_approvals": (_Answer(200, reports.ApprovalsPage, "a page of approvals"),),
    "read_approval": (_Answer(200, reports.Approval, "the approval"),),
    "verification": (_Answer(200, reports.ChainVerification, "what was verified"),),
    "healthz": (_Answer(200, reports.Health, "the process answers"),),
    "readyz": (
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
    _, models = models_json_schema([(model, "serialization") for model in dict.fromkeys(_MODELS)], ref_template=SCHEMA)
    schemas: dict[str, Any] = {**document["components"]["schemas"], **models["$defs"]}
    for framework in ("HTTPValidationError", "ValidationError"):
        schemas.pop(framework, None)
    for name, schema in schemas.items():
        if not name.endswith("Request"):
            _leave_out_nulls(schema)
    for route in each_route(routes):
        if not isinstance(route, APIRoute):
            continue  # the check route, which is described here, and the contract's own
        for method in route.methods or ():
            operation = document["paths"][route.path][method.lower()]
            _describe(operation, method, route)
    document["paths"] = {ROUTE: {"post": _check_operation()}, **document["paths"]}
    for item in document["paths"].values():
        for operation in item.values():
            _show_examples(operation)
    document["info"]["description"] = DESCRIPTION
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["components"] = {
        "schemas": {name: schemas[name] for name in sorted(schemas)},
        **components(),
        "securitySchemes": {
            SECURITY_SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "a key; it alone says tenant, subject and roles. Where an operation needs it, the roles that may are named",
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


def _describe(operation: dict[str, Any], method: str, route: APIRoute) -> None:
    """Add to one operation what the framework can't know."""
    name = operation["operationId"] = route.name
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
        responses["200"] = {"description": "Prometheus text", "content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}
    for answer in _WRITTEN.get(name, ()):
        responses[str(answer.status)] = {"description": answer.description, "content": content(answer.model)}
        if answer.status == 503:
            responses["503"]["headers"] = headers(RETRY_AFTER)
    statuses: set[int] = set()
    if roles:
        _require_key(operation, roles)
        statuses |= WITH_KEY
        for status, response in responses.items():
            if status != "503":
                response["headers"] = headers(*([REPLAYED] if method == "POST" else []), *LIMITS)
    if "{" in route.path or name in NAMES_A_TENANT:
        statuses.add(404)
    if route.body_field is not None:
        statuses |= WITH_BODY
    if method == "POST":
        statuses |= OF_A_POST
        _take_idempotency_key(operation)
    operation["responses"] = responses | failures(name, statuses, post=method == "POST")


def _require_key(operation: dict[str, Any], roles: Iterable[Role]) -> None:
    said = operation.get("description")
    needed = f"Needs a key with the role {' or '.join(roles)}."
    operation["description"] = f"{said}\n\n{needed}" if said else needed
    operation["security"] = [{SECURITY_SCHEME: [role.value]} for role in roles]  # any of them will do


def _take_idempotency_key(operation: dict[str, Any]) -> None:
    header = {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "description": "names this request: the same again gets the first answer, without a secret, and has no second effect",
        "schema": {"type": "string", "pattern": f"^[!-~]{{1,{KEY_LENGTH_MAX}}}$"},
    }
    operation.setdefault("parameters", []).append(header)


def _check_operation() -> dict[str, Any]:
    """Describe the check route, which the framework doesn't know."""
    decided = {
        "description": "the decision, whatever it says",
        "headers": headers(REPLAYED, *LIMITS),
        "content": content(answers.ToolCallDecision),
    }
    operation: dict[str, Any] = {
        "tags": ["decisions"],
        "summary": "Check a tool call before it runs",
        "description": "May this agent make this tool call now? It may run only if `execution_permitted` is true in the answer. The call "
        "id makes a retry safe: what is settled is replayed, and a replay permits nothing. Every other answer, a problem too, means no.",
        "operationId": CHECK,
        "parameters": [
            {
                "name": "format",
                "in": "query",
                "required": False,
                "description": "how `tool_result` is written",
                "schema": {"type": "string", "enum": list(FORMATS), "default": DEFAULT_FORMAT},
            }
        ],
        "requestBody": {"required": True, "content": content(ToolCallCheckRequest)},
        "responses": {"200": decided} | failures(CHECK, WITH_KEY | WITH_BODY, answers.CheckProblem),
    }
    _require_key(operation, [Role.AGENT])
    return operation


def _show_examples(operation: dict[str, Any]) -> None:
    """Put an operation's exchanges into it: what was sent in those that were accepted, and what came. No value is shown twice."""
    name = operation["operationId"]
    accepted = [exchange for exchange in exchanges(name) if exchange.accepted]
    if "requestBody" in operation:
        _show(operation["requestBody"]["content"][JSON], ((exchange, exchange.body) for exchange in accepted))
    for parameter in operation.get("parameters", ()):
        sent = {"path": "path", "query": "query", "header": "headers"}[parameter["in"]]
        values = ((each, getattr(each, sent)[parameter["name"]]) for each in accepted if parameter["name"] in getattr(each, sent))
        _show(parameter, ((each, _read(text, parameter["schema"])) for each, text in values))
    for status, response in operation["responses"].items():
        for said in response.get("content", {}).values():
            if "examples" not in said and status.isdigit():
                _show(said, ((each, each.answer) for each in answers_of(name, int(status))))


def _read(text: str, schema: Mapping[str, Any]) -> object:
    """Give a parameter's text as what its schema says that it is."""
    match schema.get("type"):
        case "integer":
            return int(text)
        case "boolean":
            return text == "true"
        case _:
            return text


def _show(place: dict[str, Any], shown: Iterable[tuple[Exchange, Any]]) -> None:
    examples: dict[str, Any] = {}
    for exchange, value in shown:
        if all(value != other["value"] for other in examples.values()):
            examples[exchange.name] = example_of(exchange, value)
    if examples:
        place["examples"] = examples

"""The contract against the service (S14.3): schemathesis makes requests of the contract, and of its opposite, and finds no answer amiss."""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import structlog
import uvicorn
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.main import contract, create_app
from app.settings import Limits, Settings
from tests.engine.shop import ResettableShop, Shop

EXAMPLES_MAX = 60
SEED = 7
ENOUGH = Limits(requests_per_minute=10_000_000, concurrent=1000)
START_WITHIN_S = 30

UNSAID: Mapping[str, Mapping[str, str]] = {
    "check_tool_call": {"/requested_scope/": "a scope's grammar: resources' kinds, quantities of a currency's digits"},
    "list_decisions": {
        "/query/call_id": "parameters can't need each other in OpenAPI: a call id is one session's own",
        "/query/order": "the grammar of resources; and `resource` may name another one",
        "/query/resource": "the grammar of resources",
    },
    "set_freeze": {"/target": "the tenant that may be named is the key's own"},
    "store_policy": {"": "what a bundle is, is said in the policy format"},
}
"""By operation: where the service refuses (422) what the contract's schema takes, and why the schema can't say it."""

# NUL is refused in every string (400), and a schema of what is nested in `arguments` could not say so
_CONFIG = schemathesis.Config.from_dict({"seed": SEED, "generation": {"allow-x00": False}})
_schema = schemathesis.openapi.from_dict(contract(), config=_CONFIG)


@dataclass
class Served:
    """A service on a port, and what it takes to ask it."""

    url: str
    shop: Shop
    turns: Iterator[int] = field(default_factory=itertools.count)
    names: Iterator[int] = field(default_factory=itertools.count)

    def token_for(self, operation_id: str, role: str) -> str:
        return self.shop.platform_token if operation_id == "make_tenant" else self.shop.acme.tokens[role]

    def ask(self, method: str, path: str, role: str, body: object = None) -> dict[str, Any]:
        answer = httpx.request(method, self.url + path, json=body, headers={"authorization": f"Bearer {self.shop.acme.tokens[role]}"})
        answer.raise_for_status()
        return dict(answer.json())

    def real_id(self, parameter: str) -> str:
        """Make a thing that a request may do what it likes with, and give its id; the keys that ask are never among them."""
        match parameter:
            case "key_id":
                return str(self.ask("POST", "/keys", "operator", {"subject": "spare", "roles": ["user"]})[parameter])
            case "freeze_id":
                return str(self.ask("POST", "/freezes", "operator", {"target": "session:spare", "reason": "a spare one"})[parameter])
            case "version":
                return "1"
            case _:
                return str({**self.waiting, **self.waiting["approval"]}[parameter])

    @cached_property
    def waiting(self) -> dict[str, Any]:
        """A decision that waits for a person."""
        arguments = {"order_id": "A-1002", "amount": 100, "currency": "EUR", "cause": "damaged"}
        call = {"tool": "refund", "arguments": arguments, "session_id": "spare", "call_id": "call_01", "on_behalf_of": {"id": "cust-77"}}
        return self.ask("POST", "/tool-calls/check", "agent", call)


@pytest.fixture(scope="module")
def served(settings: Settings, resettable_shop: ResettableShop) -> Iterator[Served]:
    """Serve as a worker does, in a thread: requests then pass a server's own reading of HTTP too."""
    asyncio.run(resettable_shop.reset())
    shop = resettable_shop.shop
    with tempfile.TemporaryDirectory(prefix="placet-api-") as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        own = replace(
            settings,
            database=replace(settings.database, url=shop.url),
            folders=replace(settings.folders, data=Path(folder)),
            limits=ENOUGH,
        )
        app = create_app(own)
        structlog.configure(cache_logger_on_first_use=False)
        server = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", lifespan="on", log_config=None, server_header=False))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        until = time.monotonic() + START_WITHIN_S
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", shop)
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@_schema.parametrize()
@hypothesis_settings(max_examples=EXAMPLES_MAX, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
def test_s14_3_schemathesis_finds_nothing(case: schemathesis.Case[Any], served: Served) -> None:
    operation = case.operation.definition.raw
    name = operation["operationId"]
    roles = [role for need in operation.get("security", ()) for role in need["key"]]
    headers = {"Authorization": f"Bearer {served.token_for(name, roles[0])}"} if roles else {}
    if case.meta is not None and case.meta.generation.mode.is_positive:
        serve_what_cannot_be_made_up(case, served)
    answer = case.call(base_url=served.url, headers=headers)
    if name == "set_freeze" and answer.status_code == 201:  # or nothing could be decided any more
        served.ask("DELETE", f"/freezes/{answer.json()['freeze_id']}", "operator")
    excluded: list[Any] = [positive_data_acceptance] if is_unsaid(name, answer) else []
    case.validate_response(answer, headers=headers, excluded_checks=excluded, transport_kwargs={"base_url": served.url})


def serve_what_cannot_be_made_up(case: schemathesis.Case[Any], served: Served) -> None:
    """Put what only the service knows into every second request: ids of real things, and what a search can be made for."""
    known = next(served.turns) % 2
    if case.path_parameters and known:
        case.path_parameters = {parameter: served.real_id(parameter) for parameter in case.path_parameters}
    if case.headers and known and "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = f"once-{next(served.names)}"
    if not isinstance(case.query, dict):
        return
    if case.query.get("wait_s"):
        case.query["wait_s"] = 1  # nobody answers
    if case.path == "/decisions":
        case.query.pop("cursor", None)  # each belongs to one query: `test_examples` follows one
        if known and "resource" in case.query:
            case.query |= {"resource": "order:A-1002", "order": "A-1002"}
        if known and "call_id" in case.query:
            case.query["session_id"] = "spare"


def is_unsaid(operation_id: str, answer: Response) -> bool:
    """Whether each reason of a refusal is one that no schema could say."""
    if answer.status_code != 422:
        return False
    problem = answer.json()
    if problem["code"] == "idempotency_key_reused":  # what came before isn't in a schema
        return True
    unsaid = UNSAID.get(operation_id, {})
    return bool(problem.get("errors")) and all(any(error["pointer"].startswith(place) for place in unsaid) for error in problem["errors"])

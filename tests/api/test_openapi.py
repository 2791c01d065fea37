"""The contract (S14.3): it is what is served, and real answers are what it says, with nothing that it doesn't say."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

from app.api.envelope import ToolCallCheckRequest, parse_tool_call
from app.api.examples import OPERATIONS
from app.api.json_body import parse_json
from app.api.openapi import as_yaml
from app.cli import main
from app.domain.errors import RequestInvalid
from app.main import contract
from app.settings import PROJECT, Settings
from tests.api.serving import PROBLEM, Client, code, serving, take_away
from tests.engine.shop import SHOP_FILES, Shop

COMMITTED = PROJECT / "openapi" / "openapi.yaml"
DOCUMENT = contract()
HEADERS = {"retry-after", "www-authenticate", "idempotent-replayed", "ratelimit", "ratelimit-policy"}
WITHOUT_KEY = {("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics")}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def closed(node: Any) -> Any:
    """Give a document whose objects with named properties have no others."""
    if isinstance(node, dict):
        if "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False
        for item in node.values():
            closed(item)
    elif isinstance(node, list):
        for item in node:
            closed(item)
    return node


STRICT = closed(copy.deepcopy(DOCUMENT["components"]))


def resolved(part: Any) -> Any:
    """Give what a part of the contract refers to, itself if to nothing."""
    while isinstance(part, dict) and "$ref" in part:
        found: Any = DOCUMENT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def as_the_contract_says(answer: httpx.Response, method: str, path: str) -> Any:
    """Assert that an answer is one that the contract names for the route, and give its document."""
    operation = DOCUMENT["paths"][path][method]
    said = resolved(operation["responses"].get(str(answer.status_code)))
    assert said is not None, f"{method} {path} answered {answer.status_code}, which the contract doesn't name"
    media_type = answer.headers["content-type"]
    assert list(said["content"]) == [media_type]
    validator = jsonschema_rs.Draft202012Validator({**said["content"][media_type]["schema"], "components": STRICT}, validate_formats=True)
    document = answer.json() if media_type.endswith("json") else answer.text
    assert [f"{'/'.join(map(str, fault.instance_path))}: {fault.message}" for fault in validator.iter_errors(document)] == []
    headers = {name.lower(): resolved(header)["schema"] for name, header in said.get("headers", {}).items()}
    for name in HEADERS & set(answer.headers):
        value = int(answer.headers[name]) if headers[name]["type"] == "integer" else answer.headers[name]
        assert jsonschema_rs.is_valid(headers[name], value), (name, value)
    return document


def test_s14_3_the_committed_contract_is_the_applications() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == as_yaml(DOCUMENT), "run `placet openapi > openapi/openapi.yaml`"
    assert YAML(typ="safe").load(COMMITTED) == json.loads(json.dumps(DOCUMENT))


def test_s14_3_the_command_prints_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["placet", "openapi"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    assert capsys.readouterr().out == COMMITTED.read_text(encoding="utf-8")


async def test_s14_3_it_is_served(client: Client) -> None:
    answer = await client.get("/openapi.json")
    assert (answer.status_code, answer.json()) == (200, json.loads(json.dumps(DOCUMENT)))
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect", "/keys/", "/healthz/"):
        assert code(await client.get(path)) == (404, "not_found")


def test_it_is_made_the_same_each_time() -> None:
    assert as_yaml(contract()) == as_yaml(DOCUMENT)


def test_s12_1_every_route_but_three_takes_a_key_and_names_its_roles() -> None:
    """A dependency that the framework doesn't recognise becomes a query parameter, and the route is open or broken."""
    for method, path, operation in operations():
        asked = {each["name"] for each in operation.get("parameters", ())}
        assert "principal" not in asked, path
        if (method, path) in WITHOUT_KEY:
            assert "security" not in operation
        else:
            roles = [role for need in operation["security"] for role in need["key"]]
            assert operation["description"].endswith(f"Needs a key with the role {' or '.join(roles)}."), path
            assert roles
            assert {"401", "403", "422", "429", "503"} <= set(operation["responses"]), path


def test_every_operation_has_a_name_and_its_failures_are_problems() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert sorted(names) == sorted(set(names))
    assert {"check_tool_call", "read_decision", "read_approval", "list_approvals", "make_key", "store_policy", "verification"} <= set(names)
    for method, path, operation in operations():
        for status, response in operation["responses"].items():
            said = resolved(response)
            if status == "default" or (status[0] in "45" and path != "/readyz"):
                assert list(said["content"]) == [PROBLEM], (method, path, status)
            assert said["description"]
    check = DOCUMENT["paths"]["/tool-calls/check"]["post"]
    assert set(check["responses"]) == {"200", "400", "401", "403", "408", "413", "415", "422", "429", "503", "default"}
    assert "Retry-After" in resolved(check["responses"]["503"])["headers"]
    assert set(resolved(check["responses"]["429"])["headers"]) == {"Retry-After", "RateLimit-Policy", "RateLimit"}


def test_nothing_in_the_contract_is_unused_or_missing() -> None:
    text = json.dumps(DOCUMENT)
    for kind in ("schemas", "responses", "examples", "headers"):
        for name in DOCUMENT["components"][kind]:
            assert f'"#/components/{kind}/{name}"' in text, name
        for used in {part.partition('"')[0] for part in text.split(f"#/components/{kind}/")[1:]}:
            assert used in DOCUMENT["components"][kind]
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate({**schema, "components": DOCUMENT["components"]})
        assert all(field.get("default", ...) is not None for field in schema.get("properties", {}).values()), name


def examples() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Give each example of the contract: where it is, its value and the schema that it is one of."""
    for method, path, operation in operations():
        where = f"{method} {path}"
        for parameter in operation.get("parameters", ()):
            for name, example in parameter.get("examples", {}).items():
                yield f"{where} {parameter['name']} {name}", example["value"], parameter["schema"]
        for media_type in operation.get("requestBody", {}).get("content", {}).values():
            for name, example in media_type.get("examples", {}).items():
                yield f"{where} body {name}", example["value"], media_type["schema"]
        for status, response in operation["responses"].items():
            for media_type in resolved(response)["content"].values():
                for name, example in media_type.get("examples", {}).items():
                    yield f"{where} {status} {name}", resolved(example)["value"], media_type["schema"]


def test_s14_3_each_example_is_what_its_schema_says() -> None:
    checked = 0
    for where, value, schema in examples():
        validator = jsonschema_rs.Draft202012Validator({**schema, "components": STRICT}, validate_formats=True)
        assert [fault.message for fault in validator.iter_errors(value)] == [], where
        checked += 1
    assert checked > 150


def test_s14_3_every_operation_shows_each_of_its_answers_and_what_leads_to_them() -> None:
    for method, path, operation in operations():
        for status, response in operation["responses"].items():
            for media_type in resolved(response)["content"].values():
                assert status == "default" or media_type["examples"], (method, path, status)
        sent = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "path"]
        sent += list(operation.get("requestBody", {}).get("content", {}).values())
        assert all(each["examples"] for each in sent), (method, path)
    assert set(OPERATIONS) == {operation["operationId"] for _, _, operation in operations()}


def test_no_example_is_written_twice() -> None:
    written: dict[str, str] = {}
    for method, path, operation in operations():
        media_types = list(operation.get("requestBody", {}).get("content", {}).values())
        for response in operation["responses"].values():
            media_types += response.get("content", {}).values()
        for media_type in media_types:
            for name, example in media_type.get("examples", {}).items():
                if "value" in example:
                    assert written.setdefault(json.dumps(example["value"], sort_keys=True), where := f"{method} {path} {name}") == where
    for name, example in DOCUMENT["components"]["examples"].items():
        assert written.setdefault(json.dumps(example["value"], sort_keys=True), name) == name
        assert f'"#/components/examples/{name}"' in json.dumps(DOCUMENT)


async def test_s3_1_decisions_are_as_the_contract_says(client: Client, shop: Shop) -> None:
    agent = shop.acme.tokens["agent"]
    route = ("post", "/tool-calls/check")

    async def decided(decision: str, call_id: str, **more: Any) -> dict[str, Any]:
        document = as_the_contract_says(await client.check(agent, call_id, **more), *route)
        assert document["decision"] == decision, document
        return dict(document)

    accepted = await decided("accepted", "c1")
    assert {"effective_arguments", "effective_scope", "side_effects", "risk"} <= set(accepted)
    replay = await decided("accepted", "c1")
    assert (replay["replayed"], replay["execution_permitted"]) == (True, False)
    denied = await decided("denied", "c2", arguments={"amount": 12990}, task_id="task-17")
    assert {"suggested_arguments", "attempts_left"} <= set(denied["fix_hint"])
    waiting = await decided("needs_user", "c3", arguments={"amount": 100, "order_id": "A-1002"}, turn=1, state_version=2)
    assert "approval" in waiting
    reused = await decided("denied", "c1", arguments={"amount": 21})
    assert reused["reason"] == "call_id_reused"
    outside = [{"action": "refund", "resource": "order:A-1001", "constraints": {"amount": {"max": {"amount": "4.00", "currency": "EUR"}}}}]
    cut = await decided("denied", "c4", requested_scope=outside)
    assert cut["cuts"]
    for call_id, more in {
        "c5": {"tool": "nope"},
        "c6": {"arguments": {"amount": "x", "surprise": 1}},
        "c7": {"arguments": {"order_id": "A-9999"}},
        "c8": {"arguments": {"currency": "JPY"}},
        "c9": {"arguments": {"amount": 16000}},
        "c10": {"arguments": {"amount": 1.005}},
        "c11": {"requested_scope": []},
        "c12": {"arguments": {"order_id": "A-1005"}},
    }.items():
        await decided("denied", call_id, **more)
    decisions = [accepted, denied, waiting, reused, cut]
    for decision in decisions:
        read = await client.ask("GET", f"/decisions/{decision['decision_id']}", shop.acme.tokens["auditor"])
        record = as_the_contract_says(read, "get", "/decisions/{decision_id}")
        assert record["execution_permitted"] is False
        assert record["request"]["call_id"].startswith("c")
    await shop.execute("UPDATE placet.audit_payloads SET body = NULL, salt = NULL, erased_at = now()")
    read = await client.ask("GET", f"/decisions/{denied['decision_id']}", shop.acme.tokens["auditor"])
    assert "payload_erased_at" in as_the_contract_says(read, "get", "/decisions/{decision_id}")
    for query in ("", "?wait_s=0"):
        for role in ("reviewer", "agent"):
            shown = await client.ask("GET", f"/approvals/{waiting['approval']['approval_id']}{query}", shop.acme.tokens[role])
            as_the_contract_says(shown, "get", "/approvals/{approval_id}")
    page = await client.ask("GET", "/approvals?limit=1", shop.acme.tokens["reviewer"])
    as_the_contract_says(page, "get", "/approvals")


async def test_s10_2_verifications_are_as_the_contract_says(client: Client, shop: Shop) -> None:
    await client.check(shop.acme.tokens["agent"], "c1")
    auditor = shop.acme.tokens["auditor"]
    whole = as_the_contract_says(await client.ask("GET", "/audit/verification", auditor), "get", "/audit/verification")
    assert whole["verified"] is True
    await shop.execute("UPDATE placet.audit_rows SET body = replace(body, 'accepted', 'denied') WHERE event = 'tool_call.decided'")
    broken = as_the_contract_says(await client.ask("GET", "/audit/verification", auditor), "get", "/audit/verification")
    assert (broken["verified"], broken["first_broken"]["kind"]) == (False, "changed")


async def test_ordinary_answers_are_as_the_contract_says(client: Client, shop: Shop) -> None:
    operator, author = shop.acme.tokens["operator"], shop.acme.tokens["author"]
    agent_key = str(shop.acme.key_ids["agent"])
    for method, template, path, token, body, status in (
        ("get", "/healthz", "/healthz", None, ..., 200),
        ("get", "/readyz", "/readyz", None, ..., 200),
        ("post", "/tenants", "/tenants", shop.platform_token, {"tenant": "initech"}, 201),
        ("post", "/tenants", "/tenants", shop.platform_token, {"tenant": "initech"}, 409),
        ("post", "/tenants", "/tenants", operator, {"tenant": "hooli"}, 403),
        ("post", "/keys", "/keys", operator, {"subject": "a", "roles": ["agent"]}, 201),
        ("post", "/keys", "/keys", operator, {"subject": "a", "roles": []}, 422),
        ("post", "/keys", "/keys", shop.platform_token, {"subject": "a", "roles": ["agent"], "tenant": "none"}, 404),
        ("get", "/keys", "/keys?limit=1", operator, ..., 200),
        ("get", "/keys", "/keys?limit=0", operator, ..., 422),
        ("post", "/keys/{key_id}/rotation", f"/keys/{agent_key}/rotation", operator, {}, 201),
        ("delete", "/keys/{key_id}", f"/keys/{agent_key}", operator, ..., 200),
        ("post", "/keys/{key_id}/rotation", f"/keys/{agent_key}/rotation", operator, {}, 409),
        ("delete", "/keys/{key_id}", "/keys/x", operator, ..., 404),
        ("post", "/policies", "/policies", author, {"files": dict(SHOP_FILES)}, 201),
        ("post", "/policies", "/policies", author, {"files": {"bundle.yaml": "x"}}, 422),
        ("get", "/policies", "/policies?limit=1", author, ..., 200),
        ("post", "/policies/{version}/activation", "/policies/2/activation", author, ..., 200),
        ("post", "/policies/{version}/activation", "/policies/9/activation", author, ..., 404),
        ("post", "/policies/{version}/activation", "/policies/x/activation", author, ..., 422),
    ):  # fmt: skip
        answer = await client.ask(method.upper(), path, token, body)
        assert answer.status_code == status, answer.text
        as_the_contract_says(answer, method, template)
    again = {"idempotency-key": "k"}
    for _ in range(2):
        answer = await client.ask("POST", "/keys", operator, {"subject": "b", "roles": ["user"]}, headers=again)
        as_the_contract_says(answer, "post", "/keys")


@pytest.mark.parametrize("path", sorted({path for _, path, _ in operations()}))
async def test_a_wrong_method_is_told_all_that_the_path_takes(client: Client, path: str) -> None:
    """RFC 9110, 15.5.6: also where each method is a route of its own."""
    answer = await client.ask("PATCH", path.replace("{", "").replace("}", ""))
    assert code(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"].split(", ") == sorted(method.upper() for method in DOCUMENT["paths"][path])


PROBLEMS_OF_A_CHECK = [
    (b"{", {}, "agent", (400, "body_malformed")),
    (b"{}", {}, None, (401, "unauthenticated")),
    (b'{"tool":"refund","arguments":{},"session_id":"s","call_id":"c"}', {}, "auditor", (403, "not_permitted")),
    (b" " * 1_048_577, {}, "agent", (413, "body_too_large")),
    (b"{}", {"content-type": "text/plain"}, "agent", (415, "unsupported_media_type")),
    (b'{"tool":"refund","call_id":"c7","arguments":{},"x":1}', {}, "agent", (422, "request_invalid")),
]


@pytest.mark.parametrize(("body", "headers", "role", "said"), PROBLEMS_OF_A_CHECK, ids=lambda value: repr(value)[:20])
async def test_s3_1_problems_of_a_check_are_as_the_contract_says(
    client: Client, shop: Shop, body: bytes, headers: dict[str, str], role: str | None, said: tuple[int, str]
) -> None:
    answer = await client.ask("POST", "/tool-calls/check", shop.acme.tokens[role] if role else None, body, headers=headers)
    assert code(answer) == said
    assert as_the_contract_says(answer, "post", "/tool-calls/check")["execution_permitted"] is False
    if role is None:
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_s3_10_with_the_database_away_answers_are_as_the_contract_says(own_shop: Shop, settings: Settings) -> None:
    async with serving(settings, own_shop) as away:
        await away.check(own_shop.acme.tokens["agent"], "c1")
        await take_away(own_shop)
        checked = await away.check(own_shop.acme.tokens["agent"], "c2")
        assert code(checked) == (503, "decision_unavailable")
        as_the_contract_says(checked, "post", "/tool-calls/check")
        listed = await away.ask("GET", "/keys", own_shop.acme.tokens["operator"])
        assert code(listed) == (503, "decision_unavailable")
        as_the_contract_says(listed, "get", "/keys")
        made = await away.ask("POST", "/keys", own_shop.acme.tokens["operator"], {}, headers={"idempotency-key": "k"})
        assert code(made) == (503, "decision_unavailable")
        ready = await away.ask("GET", "/readyz")
        assert ready.status_code == 503
        assert as_the_contract_says(ready, "get", "/readyz")["status"] == "not_ready"


BASE: dict[str, Any] = {"tool": "refund", "arguments": {}, "session_id": "s", "call_id": "c"}
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 1.5, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**70),
    *("", "x", " ", "x" * 64, "x" * 65, "x" * 128, "x" * 129, "a\u200bb", "\u0085", "é" * 128, "enforce", "shadow"),
    *("01a230d5-2fd8-7907-9af2-55e55f2a8983", "01A230D5-2FD8-7907-9AF2-55E55F2A8983", "01a230d52fd879079af255e55f2a8983"),
    *("zh-CN", "zh_CN", "zh-", "zh-CN\n"),
    *("refund\n", "a b", "re.fund-2_X", [], {}, [{}], [1], [{}] * 32, [{}] * 33, {"segment": "x"}, {"id": ""}, {"id": 1}),
    *({"id": "cust-77"}, {"id": "cust-77", "segment": "standard"}, {"id": "a", "segment": None}, {"id": "a", "segment": "x" * 65}),
    {"id": "a", "surprise": 1},
]
FIELDS = [*ToolCallCheckRequest.model_fields, "provenance", "tenant_id", "surprise", "Tool", "after"]
REQUEST_SCHEMA = jsonschema_rs.Draft202012Validator(
    {"$ref": "#/components/schemas/ToolCallCheckRequest", "components": DOCUMENT["components"]}, validate_formats=True
)


def readings(body: bytes) -> tuple[bool, bool]:
    """Say whether pydantic and whether the contract's schema take a body's document as a check request."""
    document = parse_json(body)
    try:
        ToolCallCheckRequest.model_validate(document)
        accepted = True
    except ValidationError:
        accepted = False
    return accepted, REQUEST_SCHEMA.is_valid(json.loads(body))


@given(st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=3), st.sets(st.sampled_from(list(BASE)), max_size=1))
def test_the_route_the_model_and_the_contract_read_an_envelope_alike(changes: dict[str, Any], left_out: set[str]) -> None:
    body = json.dumps({**{name: value for name, value in BASE.items() if name not in left_out}, **changes}).encode()
    try:
        parse_tool_call(parse_json(body))
        taken = True
    except RequestInvalid:
        taken = False
    assert readings(body) == (taken, taken)


async def test_the_served_route_takes_and_refuses_what_the_model_does(client: Client, shop: Shop) -> None:
    """Every field with every value: a refused envelope is 422, an accepted one is decided or its scope is refused."""
    agent = shop.acme.tokens["agent"]
    counts = {True: 0, False: 0}
    for number, (field, value) in enumerate((field, value) for field in FIELDS for value in random.Random(7).sample(VALUES, 14)):
        body = json.dumps({**BASE, "tool": "nope", "call_id": f"c{number}", field: value}).encode()
        answer = await client.ask("POST", "/tool-calls/check", agent, body)
        document = as_the_contract_says(answer, "post", "/tool-calls/check")
        accepted, _ = readings(body)
        if accepted and answer.status_code == 422:
            assert all(error["pointer"].startswith("/requested_scope/") for error in document["errors"]), (field, value)
        else:
            assert answer.status_code == (200 if accepted else 422), (field, value, answer.text)
        counts[accepted] += 1
    assert min(counts.values()) > 20


async def test_pm_01_unknown_paths_and_methods_make_no_series(client: Client, shop: Shop) -> None:
    """PM-01: paths and methods that a caller made up are no labels, and their answers are problems."""
    chance = random.Random(1)
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO", "TRACE", "PROPFIND"]
    known = ["/keys", "/policies", "/healthz", "/metrics", "/tool-calls/check", "/approvals", "/openapi.json", "/audit/verification"]
    tokens = [None, shop.acme.tokens["agent"], "placet_made_up"]

    async def one(method: str, path: str, token: str | None) -> None:
        answer = await client.ask(method, path, token)
        if answer.status_code != 200:
            assert 400 <= answer.status_code < 500, (method, path, answer.text)
            assert answer.headers["content-type"] == PROBLEM
            assert method == "HEAD" or code(answer)
        else:
            assert method in ("GET", "HEAD"), (method, path)

    async def series() -> set[str]:
        text = (await client.get("/metrics")).text
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    for method in methods:
        for path in ("/nothing", *known):
            for token in tokens:
                await one(method, path, token)
    before = await series()
    for _ in range(500):
        path = "/" + "/".join("".join(chance.choices("abcxyz0189-_.~%20é", k=chance.randint(1, 12))) for _ in range(chance.randint(1, 4)))
        method = chance.choice([*methods, "".join(chance.choices("ABCXYZ", k=6))])
        await one(method, path.replace("%", "%25"), chance.choice(tokens))
    assert await series() == before
    assert not any("abc" in line or "FOO" in line or "PROPFIND" in line for line in before)


@pytest.mark.parametrize("thing", ["x", "0" * 36, "%00", "..%2f..", "1" * 5000, "9" * 19, "-1", "%F0%9F%98%80", "1e3"])
async def test_what_is_no_id_or_number_is_never_a_failure_of_ours(client: Client, shop: Shop, thing: str) -> None:
    operator, auditor = shop.acme.tokens["operator"], shop.acme.tokens["auditor"]
    assert code(await client.ask("GET", f"/decisions/{thing}", auditor)) == (404, "not_found")
    assert code(await client.ask("DELETE", f"/keys/{thing}", operator)) == (404, "not_found")
    assert code(await client.ask("POST", f"/keys/{thing}/rotation", operator, {})) == (404, "not_found")
    activation = await client.ask("POST", f"/policies/{thing}/activation", operator)
    assert code(activation) in ((404, "not_found"), (422, "request_invalid"))
    for path in (f"/keys?cursor={thing}", f"/policies?cursor={thing}x", f"/policies?limit={thing}x"):
        assert code(await client.ask("GET", path, operator)) == (422, "request_invalid")

"""Faults of reading JSON that others shipped: what isn't exact, too deep, too large, hostile; sent as bytes over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from decimal import Decimal

import pytest

from app.api.json_body import BODY_BYTES_MAX, DEPTH_MAX
from tests.cases.stage import BOOTSTRAP_KEY, CUSTOMER, Answer, Stage, Tenant, Text, call, together, with_tool, written

ACCEPTED = ("accepted", "within_policy")
MALFORMED = ("400", "body_malformed")
INVALID = ("422", "request_invalid")
CHECK = "/tool-calls/check"
MEGABYTE = 1_048_576


async def _refused_rows(tenant: Tenant) -> int:
    return len(await tenant.events("request.refused"))


def _is_a_problem(answer: Answer, check: bool = True) -> None:
    """What every refused request looks like (S3.4); a check's also says that nothing may run and what to tell the model."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer["trace_id"]) == 32
    assert "Traceback" not in answer.text
    if check:
        assert answer["execution_permitted"] is False
        assert answer["fix_hint"]["message"]
        assert answer["tool_result"]["is_error"] is True
        assert answer["tool_result"]["content"]["guard_rejected"] is True


NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "nan", "1e400", "-1e400", "1e99999999999", "01", "1.", ".5", "+1", "0x10", "1_000")


@pytest.mark.parametrize("whole", [True, False], ids=["", "and a field is missing"])
async def test_ij_01_what_is_no_number_is_a_problem_with_a_row(stage: Stage, whole: bool) -> None:
    """S3.4: 400, a JSON answer without the value, counted, and in the chain. Also where the envelope has an error too."""
    tenant = await stage.tenant()
    counted = await stage.counted("placet_refused_requests_total", code="body_malformed")
    for times, number in enumerate(NO_NUMBERS, start=1):
        document = call("refund", {"order_id": "A-1001", "amount": Text(number), "currency": "EUR", "cause": "damaged"})
        if not whole:
            del document["session_id"]
        answer = await stage.check(await tenant.key(), document)
        assert answer.said == MALFORMED, number
        _is_a_problem(answer)
        assert await _refused_rows(tenant) == times
    assert await stage.counted("placet_refused_requests_total", code="body_malformed") == counted + len(NO_NUMBERS)
    assert await tenant.decisions() == 0
    await tenant.is_sound()


async def test_ij_01_in_every_field_of_the_envelope(stage: Stage) -> None:
    tenant = await stage.tenant()
    for field in ("turn", "state_version", "session_id", "mode", "on_behalf_of", "requested_scope", "extra"):
        for number in ("NaN", "1e400", "-Infinity"):
            answer = await stage.check(await tenant.key(), call("search_order", {"order_id": "A-1001"}) | {field: Text(number)})
            assert answer.said == MALFORMED, (field, number)
            _is_a_problem(answer)


@pytest.mark.parametrize("path", ["/keys", "/tenants", "/policies"])
async def test_ij_01_on_the_other_routes(stage: Stage, path: str) -> None:
    tenant = await stage.tenant()
    key = BOOTSTRAP_KEY if path == "/tenants" else await tenant.key("author" if path == "/policies" else "operator")
    for body in (b'{"x": NaN}', b'{"expires_in_s": 1e400, "subject": "s", "roles": ["agent"]}', b"[Infinity]", b"NaN"):
        answer = await stage.send("POST", path, key, body)
        assert answer.said == MALFORMED, body
        _is_a_problem(answer, check=False)


def _nested(depth: int, kind: str) -> Text:
    opening, closing = {"arrays": ("[", "]"), "objects": ('{"a":', "}")}[kind]
    return Text(opening * depth + ("" if kind == "arrays" else "1") + closing * depth)


FREE = with_tool("note", "{type: object}")


@pytest.mark.parametrize("kind", ["arrays", "objects"])
async def test_ij_03_depth_has_one_limit(stage: Stage, kind: str) -> None:
    """64 levels of the whole body: the 64th is decided, hashed, stored, read back and verified; the 65th is 400 with the limit named."""
    tenant = await stage.tenant(FREE)
    key = await tenant.key()
    fits = DEPTH_MAX - 2  # the body and the arguments are the first two
    for depth in (1, 50, fits - 1, fits):
        answer = await tenant.call("note", {"a": _nested(depth, kind)})
        assert answer.said == ACCEPTED, depth
        read = await stage.get(f"/decisions/{answer['decision_id']}", key)
        assert read["request"]["arguments"] == {"a": json.loads(_nested(depth, kind))}
    for depth in (fits + 1, 100, 300, 900, 5_000, 20_000, 300_000 if kind == "arrays" else 100_000):
        answer = await tenant.call("note", {"a": _nested(depth, kind)})
        assert answer.said == MALFORMED, depth
        _is_a_problem(answer)
        assert len(answer.text) < 2_000
    deep = await tenant.call("note", {"a": _nested(fits + 1, kind)})
    assert f"nested deeper than {DEPTH_MAX}" in deep["detail"] + str(deep.body.get("errors"))
    await tenant.is_sound()


@pytest.mark.parametrize("where", ["requested_scope", "on_behalf_of", "unknown", "/keys", "/policies"])
async def test_ij_03_everywhere(stage: Stage, where: str) -> None:
    tenant = await stage.tenant()
    for depth in (DEPTH_MAX, 900, 20_000):
        if where.startswith("/"):
            key = await tenant.key("author" if where == "/policies" else "operator")
            answer = await stage.send("POST", where, key, f'{{"files": {_nested(depth, "arrays")}}}'.encode())
        else:
            answer = await stage.check(await tenant.key(), call("search_order", {"order_id": "A-1001"}) | {where: _nested(depth, "arrays")})
        assert answer.said == MALFORMED, depth
        _is_a_problem(answer, check=not where.startswith("/"))


async def test_ij_03_a_deep_schema_is_refused_at_registration(stage: Stage) -> None:
    """A bundle's YAML is text for the body's limit, so the compiler has one of its own."""
    tenant = await stage.tenant()
    for depth in (300, 900, 5_000):
        schema = '{"properties":{"a":' * depth + "{}" + "}}" * depth
        answer = await stage.post("/policies", await tenant.key("author"), {"files": with_tool("note", schema)})
        assert answer.said == ("422", "policy_invalid"), depth
        assert answer["errors"][0]["detail"].startswith("tools/note.yaml:")


BIG = [
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e30",
    "9" * 79,
    "9" * 400,
    "9" * 5000,
    "-9223372036854775809",
]


@pytest.mark.parametrize("number", BIG, ids=lambda number: f"{number[:12]} of {len(number)}")
async def test_ij_05_big_integers_in_arguments_and_envelope(stage: Stage, number: str) -> None:
    """What no column holds is refused with a reason or a problem, never a 5xx; what is stored is stored exactly."""
    tenant = await stage.tenant(with_tool("count", "{type: object, additionalProperties: false, properties: {n: {type: integer}}}"))
    await tenant.order("A-1001", 100_00)
    key = await tenant.key()
    value, beyond = int(Decimal(number)), len(number) > 80
    counted = await tenant.call("count", {"n": Text(number)})
    amount = await tenant.refund("A-1001", number)
    if beyond:
        assert counted.said == amount.said == MALFORMED
    else:
        exact = -(2**63) <= value < 2**63
        assert counted.said == (ACCEPTED if exact else ("denied", "number_not_exact"))
        too_large = ("denied", "not_granted") if abs(value) * 100 < 2**63 else ("denied", "amount_not_exact")
        if value < 0:
            too_large = ("denied", "schema_invalid")
        elif len(number) > 34:
            too_large = ("denied", "number_not_exact")
        assert amount.said == too_large
    for field, most in (("turn", 2**31 - 1), ("state_version", 2**63 - 1)):
        answer = await stage.check(key, call("search_order", {"order_id": "A-1001"}) | {field: Text(number)})
        assert answer.said == (MALFORMED if beyond else ACCEPTED if 0 <= value <= most else INVALID), field
        if answer.status == 422:
            assert answer["errors"][0]["pointer"] == f"/{field}"
    made = await stage.send(
        "POST", "/keys", await tenant.key("operator"), f'{{"subject":"s","roles":["agent"],"expires_in_s":{number}}}'.encode()
    )
    assert made.said == (MALFORMED if beyond else INVALID)
    await tenant.is_sound()


@pytest.mark.parametrize(
    "number", [number for number in BIG if number.lstrip("-").isdigit()], ids=lambda number: f"{number[:12]} of {len(number)}"
)
async def test_ij_05_big_integers_in_paths_and_queries(stage: Stage, number: str) -> None:
    """404 for an id of a path, 422 for a parameter (a policy version is a number of the path: 422 beyond what a version can be)."""
    tenant = await stage.tenant()
    operator, auditor = await tenant.key("operator"), await tenant.key("auditor")
    assert (await stage.get(f"/decisions/{number}", auditor)).said == ("404", "not_found")
    assert (await stage.send("DELETE", f"/keys/{number}", operator, None)).said == ("404", "not_found")
    assert (await stage.post(f"/policies/{number}/activation", operator, None)).status in (404, 422)
    for path in ("/keys?limit=", "/keys?cursor=", "/policies?limit=", "/policies?cursor="):
        assert (await stage.get(path + number, operator)).said == INVALID, path


NUL_AND_SURROGATES = {
    "NUL": "\\u0000",
    "lone high": "\\ud800",
    "lone low": "\\udc00",
    "swapped": "\\udc00\\ud800",
    "high and text": "\\ud83dx",
}
PLACES = {
    "tool": '{"tool":"refund%s","arguments":{},"session_id":"s","call_id":"c"}',
    "nested key": '{"tool":"note","arguments":{"a":[{"k%s":1}]},"session_id":"s","call_id":"c"}',
    "nested value": '{"tool":"note","arguments":{"a":[{"k":"v%s"}]},"session_id":"s","call_id":"c"}',
    "session": '{"tool":"note","arguments":{},"session_id":"s%s","call_id":"c"}',
    "call": '{"tool":"note","arguments":{},"session_id":"s","call_id":"c%s"}',
    "task": '{"tool":"note","arguments":{},"session_id":"s","call_id":"c","task_id":"%s"}',
    "end user": '{"tool":"note","arguments":{},"session_id":"s","call_id":"c","on_behalf_of":{"id":"u%s"}}',
    "scope": '{"tool":"note","arguments":{},"session_id":"s","call_id":"c","requested_scope":[{"action":"note%s","resource":"file:x"}]}',
    "unknown key": '{"tool":"note","arguments":{},"session_id":"s","call_id":"c","x%s":1}',
}


@pytest.mark.parametrize("escape", NUL_AND_SURROGATES.values(), ids=NUL_AND_SURROGATES)
async def test_ij_06_nul_and_lone_surrogates_in_every_place(stage: Stage, escape: str) -> None:
    """S3.4: what isn't exact text isn't a request, so 400 where the case says 422; a NUL's place is named; each has a row and a count."""
    tenant = await stage.tenant(FREE)
    key = await tenant.key()
    counted = await stage.counted("placet_refused_requests_total", code="body_malformed")
    for number, (place, body) in enumerate(PLACES.items(), start=1):
        answer = await stage.send("POST", CHECK, key, (body % escape).encode())
        assert answer.said == MALFORMED, place
        _is_a_problem(answer)
        assert answer.text.isascii()
        assert await _refused_rows(tenant) == number
        where = [error["pointer"] for error in answer.body.get("errors", [])]
        assert where or "line 1 column" in answer["detail"], place
    assert await stage.counted("placet_refused_requests_total", code="body_malformed") == counted + len(PLACES)
    assert await tenant.decisions() == 0
    await tenant.is_sound()


async def test_ij_06_a_nul_is_named_by_its_pointer(stage: Stage) -> None:
    tenant = await stage.tenant(FREE)
    for place, pointer in (
        ("nested value", "/arguments/a/0/k"),
        ("session", "/session_id"),
        ("task", "/task_id"),
        ("end user", "/on_behalf_of/id"),
    ):
        answer = await stage.send("POST", CHECK, await tenant.key(), (PLACES[place] % "\\u0000").encode())
        assert [error["pointer"] for error in answer["errors"]] == [pointer]


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xe2\x82", b"\x00", b"\x1f"], ids=repr)
async def test_ij_06_bytes_that_are_no_text(stage: Stage, raw: bytes) -> None:
    tenant = await stage.tenant(FREE)
    for body in (PLACES["nested value"], PLACES["nested key"], PLACES["session"]):
        answer = await stage.send("POST", CHECK, await tenant.key(), body.encode().replace(b"%s", raw))
        assert answer.said == MALFORMED
        _is_a_problem(answer)


async def test_ij_06_a_nul_in_a_query_or_a_path_is_no_failure_of_ours(stage: Stage) -> None:
    """Every parameter of every route that needs a key, as the contract has them; what isn't known or isn't an id comes first."""
    tenant = await stage.tenant()
    contract = (await stage.client.get("/openapi.json")).json()["paths"]
    asked = 0
    for path, operations in contract.items():
        for method, operation in operations.items():
            if path == CHECK or not operation.get("security"):
                continue
            role = next(iter(operation["security"][0].values()))[0]
            parameters = [each for each in operation.get("parameters", ()) if "$ref" not in each]
            bare = re.sub(r"\{\w+\}", str(uuid.uuid4()), path)
            for each in (each for each in parameters if each["in"] == "query"):
                answer = await stage.send(method.upper(), f"{bare}?{each['name']}=%00", await tenant.key(role), b"{}")
                assert answer.status == 422, (path, each["name"], answer.text)
                asked += 1
            for each in (each for each in parameters if each["in"] == "path"):
                answer = await stage.send(method.upper(), re.sub(r"\{\w+\}", "%00", path), await tenant.key(role), b"{}")
                assert answer.status in (404, 422), (path, each["name"], answer.text)
                asked += 1
    assert asked > 25


async def test_ij_06_paired_surrogates_are_text(stage: Stage) -> None:
    tenant = await stage.tenant(FREE)
    answer = await stage.send("POST", CHECK, await tenant.key(), (PLACES["nested value"] % "\\ud83d\\ude00").encode())
    assert answer.said == ACCEPTED
    read = await stage.get(f"/decisions/{answer['decision_id']}", await tenant.key())
    assert read["request"]["arguments"] == {"a": [{"k": "v\U0001f600"}]}


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\xc3\xa9", b"", b"a b", b"x" * 129], ids=repr)
async def test_ij_06_an_idempotency_key_that_is_no_key(stage: Stage, value: bytes) -> None:
    tenant = await stage.tenant()
    operator = await tenant.key("operator")
    response = await stage.client.post(
        "/keys",
        content=b'{"subject": "x", "roles": ["agent"]}',
        headers=[(b"content-type", b"application/json"), (b"authorization", b"Bearer " + operator.encode()), (b"idempotency-key", value)],
    )
    assert (response.status_code, response.json()["code"]) == (422, "request_invalid")
    assert response.json()["errors"][0]["pointer"] == "/header/Idempotency-Key"
    assert await tenant.value("SELECT count(*) FROM placet.api_keys WHERE tenant_id = $1 AND subject = 'x'") == 0


async def test_ij_08_multiple_of_a_cent_is_exact(stage: Stage) -> None:
    """`multipleOf: 0.01` is evaluated on decimals."""
    properties = "{amount: {type: number, multipleOf: 0.01}, steps: {type: number, multipleOf: 0.1}}"
    schema = f"{{type: object, additionalProperties: false, properties: {properties}}}"
    tenant = await stage.tenant(with_tool("pay", schema))
    for amount in ("4.02", "19.99", "1.11", "600.03", "0.07", "145.05", "1e-2", "90071992547409.93", "4.020", "1e3"):
        assert (await tenant.call("pay", {"amount": Text(amount)})).said == ACCEPTED, amount
    for amount in ("19.999", "0.001", "4.0200001", "1e-3", "90071992547409.935"):
        refused = await tenant.call("pay", {"amount": Text(amount)})
        assert refused.said == ("denied", "schema_invalid"), amount
        assert refused["fix_hint"]["field"] == "/amount"
        assert refused["fix_hint"]["expected"] == {"multipleOf": Decimal("0.01")}
    for steps, said in (("0.3", ACCEPTED), ("0.7", ACCEPTED), ("1.1", ACCEPTED), ("0.35", ("denied", "schema_invalid"))):
        assert (await tenant.call("pay", {"steps": Text(steps)})).said == said, steps
    await tenant.is_sound()


ENCODED = json.dumps({"order_id": "A-1001", "amount": 9999, "currency": "EUR", "cause": "damaged"})


NO_OBJECTS = (ENCODED, json.dumps(ENCODED), "", "{}", "null", None, [], [{}], 42, 0, True, False, [["order_id", "A-1001"]], Text("1.5"))


@pytest.mark.parametrize("tool", ["refund", "note"])
async def test_ij_09_arguments_that_are_no_object_are_never_empty(stage: Stage, tool: str) -> None:
    """422 at `/arguments` with a hint; a tool that takes anything isn't called with {} either."""
    tenant = await stage.tenant(FREE)
    for times, arguments in enumerate(NO_OBJECTS, start=1):
        answer = await stage.check(await tenant.key(), {**call(tool, {}), "arguments": arguments, "on_behalf_of": CUSTOMER})
        assert answer.said == INVALID, arguments
        _is_a_problem(answer)
        (error,) = answer["errors"]
        assert error["pointer"] == "/arguments"
        assert "must be an object" in error["detail"]
        assert answer["fix_hint"]["message"].startswith("/arguments: ")
        assert answer["tool_result"]["tool_name"] == tool
        assert await _refused_rows(tenant) == times
    assert await tenant.decisions() == 0


async def test_ij_09_a_missing_field_is_no_empty_one(stage: Stage) -> None:
    tenant = await stage.tenant(FREE)
    document = call("note", {})
    del document["arguments"]
    answer = await stage.check(await tenant.key(), document)
    assert (answer.said, answer["errors"]) == (INVALID, [{"pointer": "/arguments", "detail": "this field is required"}])


HOSTILE = {
    "nested quantifier": ("^(a+)+$", "a" * 40 + "!"),
    "alternation": ("^(a|aa)+$", "a" * 40 + "!"),
    "lazy": ("^(.*a){20}$", "a" * 60 + "!"),
    "large count": ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 60),
    "long string": ("(x+x+)+y", "x" * 60_000),
}


@pytest.mark.parametrize(("pattern", "text"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties", "propertyNames"])
async def test_ij_11_a_pathological_pattern_stalls_nobody(stage: Stage, keyword: str, pattern: str, text: str) -> None:
    """S3.4: refused at registration, or matched by a linear engine: the call and another tenant's calls beside it are answered at once."""
    schemas = {
        "pattern": {"type": "object", "properties": {"t": {"type": "string", "pattern": pattern}}},
        "patternProperties": {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False},
        "propertyNames": {"type": "object", "propertyNames": {"pattern": pattern}},
    }
    tenant, other = await stage.tenant(), await stage.tenant()
    stored = await stage.post("/policies", await tenant.key("author"), {"files": with_tool("hostile", json.dumps(schemas[keyword]))})
    if stored.status != 201:
        assert stored.said == ("422", "policy_invalid")
        return
    assert (await stage.post(f"/policies/{stored['version']}/activation", await tenant.key("operator"), None)).status == 200
    arguments = {"t": text} if keyword == "pattern" else {text: 1}
    started = time.monotonic()
    answers = await together(
        [tenant.call("hostile", arguments) for _ in range(4)] + [other.call("search_order", {"order_id": "A-1001"}) for _ in range(8)]
    )
    assert time.monotonic() - started < 1.5
    assert [answer.said for answer in answers] == [("denied", "schema_invalid")] * 4 + [ACCEPTED] * 8


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"a": {"$dynamicRef": "https://example.com/s#x"}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"type": "string", "pattern": "("}}},
        {"properties": {"a": {"type": "string", "pattern": "(?<=a)b" * 2 + "\\k<x>"}}},
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
async def test_ij_11_what_a_schema_may_not_refer_to(stage: Stage, schema: dict[str, object]) -> None:
    """Nothing remote is fetched, a reference that leads to itself or nowhere is a fault with file and line, and the active bundle stays."""
    tenant = await stage.tenant()
    files = with_tool("hostile", json.dumps({"type": "object", **schema}))
    started = time.monotonic()
    answer = await stage.post("/policies", await tenant.key("author"), {"files": files})
    assert answer.said == ("422", "policy_invalid"), answer.text
    assert answer["errors"][0]["detail"].startswith("tools/hostile.yaml:")
    assert time.monotonic() - started < 1.5
    assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED


async def test_ij_11_references_that_multiply_are_bounded(stage: Stage) -> None:
    """Twelve levels of ten references each to the next: refused at registration or answered at once, never a stalled worker."""
    tenant, other = await stage.tenant(), await stage.tenant()
    bomb = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(12)} | {"d12": {"type": "integer"}}
    schema = {"type": "object", "$defs": bomb, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    started = time.monotonic()
    stored = await stage.post("/policies", await tenant.key("author"), {"files": with_tool("bomb", json.dumps(schema))})
    if stored.status == 201:
        await stage.post(f"/policies/{stored['version']}/activation", await tenant.key("operator"), None)
        assert (await tenant.call("bomb", {"a": "x"})).said == ("denied", "schema_invalid")
    else:
        assert stored.said == ("422", "policy_invalid")
    assert (await other.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED
    assert time.monotonic() - started < 2


async def _flood(
    stage: Stage, key: str | None, size: int, *, chunked: bool, path: str = CHECK, encoding: str | None = None
) -> tuple[bytes, int]:
    """Push a body until it is whole or the server has had enough; give what it answered and how many bytes it took."""
    body = b"a" * 65_536
    headers = ["Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"]
    if encoding:
        headers.append(f"Content-Encoding: {encoding}")
    pushed, answered = 0, b""
    async with stage.socket() as (reader, writer):
        answer = asyncio.create_task(reader.read(65_536))
        with suppress(OSError):
            writer.write(stage.request(key, b"", *headers, path=path, length=False))
            while pushed < size and not answer.done():
                writer.write(b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
                await asyncio.wait_for(writer.drain(), 5)
                pushed += len(body)
        with suppress(OSError):
            answered = await asyncio.wait_for(answer, 5)
        writer.transport.abort()
    return answered, pushed


FLOODS = {
    "declared": ({"chunked": False}, "agent", 413),
    "chunked": ({"chunked": True}, "agent", 413),
    "declared, bad key": ({"chunked": False}, None, 401),
    "chunked, bad key": ({"chunked": True}, None, 401),
    "gzip": ({"chunked": True, "encoding": "gzip"}, "agent", 415),
    "declared, keys": ({"chunked": False, "path": "/keys"}, "operator", 413),
    "chunked, keys": ({"chunked": True, "path": "/keys"}, "operator", 413),
    "chunked, keys, bad key": ({"chunked": True, "path": "/keys"}, None, 401),
    "chunked, policies": ({"chunked": True, "path": "/policies"}, "author", 413),
}


@pytest.mark.parametrize(("options", "role", "status"), FLOODS.values(), ids=FLOODS)
async def test_ij_13_sixty_four_megabytes_take_no_memory(stage: Stage, options: dict[str, object], role: str | None, status: int) -> None:
    """413 (401 for a bad key, 415 for a compressed body) after at most the limit and what was on its way; the workers' memory is flat."""
    tenant = await stage.tenant()
    key = await tenant.key(role) if role else "placet_" + "a" * 26 + "_" + "b" * 43
    before = stage.resident_kib()
    started = time.monotonic()
    floods = await asyncio.gather(*(_flood(stage, key, 64 * MEGABYTE, **options) for _ in range(4)))  # type: ignore[arg-type]
    took = time.monotonic() - started
    after = stage.resident_kib()
    for answered, pushed in floods:
        assert answered.startswith(b"HTTP/1.1 %d " % status), answered[:200]
        assert pushed < 16 * MEGABYTE
    assert took < 5
    assert before.keys() == after.keys()
    grown = {pid: after[pid] - before[pid] for pid in after}
    assert max(grown.values()) < 12_288, grown
    assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED


async def test_ij_13_a_small_body_that_would_grow_is_not_unpacked(stage: Stage) -> None:
    tenant = await stage.tenant()
    packed = gzip.compress(written(call("search_order", {"order_id": "A-1001", "x": "a" * (64 * MEGABYTE)})))
    assert len(packed) < BODY_BYTES_MAX
    before = max(stage.resident_kib("VmHWM").values())
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
        answer = await stage.send("POST", CHECK, await tenant.key(), packed, {"content-encoding": encoding})
        assert answer.said == ("415", "unsupported_media_type")
        _is_a_problem(answer)
    assert max(stage.resident_kib("VmHWM").values()) - before < 8_192


async def test_ij_13_the_limit_itself_passes_and_a_byte_more_does_not(stage: Stage) -> None:
    tenant = await stage.tenant(FREE)
    key = await tenant.key()
    least = written(call("note", {"t": ""}, "k"))
    for more, status in ((0, 200), (1, 413)):
        body = least.replace(b'""', b'"' + b"a" * (BODY_BYTES_MAX - len(least) + more) + b'"').replace(b'"k"', b'"%d"' % more)
        assert len(body) == BODY_BYTES_MAX + more

        async def chunks(body: bytes = body) -> AsyncIterator[bytes]:
            for start in range(0, len(body), 100_000):
                yield body[start : start + 100_000]

        for sent in (body, chunks()):
            answer = await stage.send("POST", CHECK, key, sent)
            assert answer.status == status, answer.text[:300]
    await tenant.is_sound()

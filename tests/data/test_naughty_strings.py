"""The big list of naughty strings in every place that takes a string (SPEC S3.4, IE-03, TA-06).

Of each: no 5xx; the text comes back exactly as it came or is refused with a problem that says what is expected; and in a sentence that a
model reads it is one plain word or quoted and escaped, so that it can't speak as the guard.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.serving import Client
from tests.data.sending import CHECK, Answered, contract, each, filled, take_notes
from tests.data.suites import rows
from tests.engine.shop import Shop

pytestmark = pytest.mark.slow
Json = dict[str, Any]

FIELDS: Mapping[str, Callable[[str], Json]] = {
    "tool": lambda text: {"tool": text},
    "session_id": lambda text: {"session_id": text},
    "call_id": lambda text: {"call_id": text},
    "task_id": lambda text: {"task_id": text},
    "on_behalf_of.id": lambda text: {"on_behalf_of": {"id": text, "segment": "standard"}},
    "on_behalf_of.segment": lambda text: {"on_behalf_of": {"id": "cust-77", "segment": text}},
    "approval_id": lambda text: {"approval_id": text},
    "locale": lambda text: {"locale": text},
    "mode": lambda text: {"mode": text},
    "requested_scope, action": lambda text: {"requested_scope": [{"action": text, "resource": "file:notes/all"}]},
    "requested_scope, resource": lambda text: {"requested_scope": [{"action": "note", "resource": text}]},
    "requested_scope, kind's rest": lambda text: {"requested_scope": [{"action": "note", "resource": f"file:{text}"}]},
    "requested_scope, constraint": lambda text: {
        "requested_scope": [{"action": "note", "resource": "file:notes/all", "constraints": {text: {"max": 1}}}]
    },
    "requested_scope, constraint's value": lambda text: {
        "requested_scope": [{"action": "note", "resource": "file:notes/all", "constraints": {"x": {"in": [text], "max": text}}}]
    },
    "a field's name": lambda text: {text: 1},
    "arguments, text": lambda text: {"arguments": {"text": text}},
    "arguments, any": lambda text: {"arguments": {"note": [text, {"a": text}]}},
    "arguments, name": lambda text: {"arguments": {text: text}},
    "arguments, name inside": lambda text: {"arguments": {"note": {text: 1}}},
}
OTHERS = {"turn", "state_version"}
"""Fields of the request that are no strings."""
EXACT = {
    "session_id",
    "call_id",
    "task_id",
    "on_behalf_of.id",
    "arguments, text",
    "arguments, any",
    "arguments, name",
    "arguments, name inside",
}
"""Fields whose text comes back with the decision."""


@pytest.fixture(scope="module")
def strings(shared_dir: Path) -> list[str]:
    found = [row["string"] for row in rows(shared_dir, "naughty_strings")]
    assert len(found) == 515
    return found


async def test_no_string_field_of_the_request_is_left_out(client: Client) -> None:
    operation = (await client.ask("GET", "/openapi.json")).json()
    schema = operation["components"]["schemas"]["ToolCallCheckRequest"]
    assert schema["properties"].keys() <= {name.split(".")[0].split(",")[0] for name in FIELDS} | OTHERS


@pytest.mark.parametrize("field", FIELDS)
async def test_each_string_in_a_field_of_the_check(client: Client, shop: Shop, strings: list[str], field: str) -> None:
    await take_notes(client, shop)
    token, number = shop.acme.tokens["agent"], itertools.count()

    def body(text: str) -> bytes:
        call: Json = {"tool": "note", "arguments": {"note": 1}, "session_id": f"s{next(number)}", "call_id": f"c{next(number)}"}
        return json.dumps(call | FIELDS[field](text)).encode()

    said = Counter[str]()
    for text, answer in await each(strings, lambda text: client.ask("POST", CHECK, token, body(text))):
        said[answer.said] += 1
        if answer.status == 200:
            if field.startswith("arguments") and answer.document["decision"] == "accepted":
                assert answer.document["effective_arguments"] == FIELDS[field](text)["arguments"]
            elif field in EXACT and answer.document["decision"] == "accepted":
                auditor = shop.acme.tokens["auditor"]
                kept = (await client.ask("GET", f"/decisions/{answer.document['decision_id']}", auditor)).json()["request"]
                assert {name: kept[name] for name in FIELDS[field](text)} == FIELDS[field](text), text
        else:
            says_what_is_wrong(text, answer)
    assert said["accepted"] > 300 or field not in EXACT, said
    assert set(said) <= {"accepted", "denied", "needs_user", "422 request_invalid", "400 body_malformed"}, said


async def test_each_string_in_a_sentence_for_a_model(client: Client, shop: Shop, strings: list[str]) -> None:
    """IE-03: as a decision's hint writes it, and in the message for the model."""
    rule = """
  - rule: never
    require: "false"
    refuse: {reason: never, field: /text, fact: args.text, expected: {const: x}, message: {en: "the text {args.text} is refused"}}
"""
    await take_notes(client, shop, static_rules=rule)
    token, number = shop.acme.tokens["agent"], itertools.count()

    def body(text: str) -> Json:
        return {"tool": "note", "arguments": {"text": text}, "session_id": f"s{next(number)}", "call_id": f"c{next(number)}"}

    for text, answer in await each(strings, lambda text: client.ask("POST", CHECK, token, body(text))):
        assert (answer.said, answer.document["reason"]) == ("denied", "never"), text
        hint = answer.document["fix_hint"]
        read = re.fullmatch(
            r'the text (?:([\w.@:/+#-]+)|"((?:[^"\\]|\\["\\]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*)") is refused', hint["message"]
        )
        assert read is not None, hint["message"]
        written = read[1] if read[1] is not None else unescaped(read[2])
        assert written == (text if len(text) <= 120 else text[:120] + "…"), hint["message"]
        assert is_seen(hint["message"]), hint["message"]
        assert is_seen(str(hint["actual"])), text
        assert hint["actual"] in (text, "[redacted]") or len(text) > 120 or not is_seen(text), text
        assert answer.document["tool_result"]["content"]["fix_hint"] == hint["message"]


async def test_each_string_breaks_a_schema_without_being_spoken(client: Client, shop: Shop, strings: list[str]) -> None:
    """IE-03: what the schema refuses is told by the schema's words."""
    token, number = shop.acme.tokens["agent"], itertools.count()

    def body(text: str) -> Json:
        arguments = {"order_id": text, text: text}
        return {"tool": "search_order", "arguments": arguments, "session_id": f"s{next(number)}", "call_id": f"c{next(number)}"}

    for text, answer in await each(strings, lambda text: client.ask("POST", CHECK, token, body(text))):
        assert (answer.said, answer.document["reason"]) == ("denied", "schema_invalid"), text
        assert is_quoted(text, answer.document["fix_hint"]["message"]), answer.document["fix_hint"]["message"]


async def test_each_string_in_paths_and_queries(client: Client, shop: Shop, strings: list[str]) -> None:
    """TA-06: whatever stands where an id is expected is a thing that isn't there, or a problem that says what is expected."""
    tried = 0
    for path, operations in (await contract(client)).items():
        for method in sorted(operations.keys() & {"get", "delete"}):
            token = await key_for(client, shop, method, filled(path, "x"))
            for place in places_of(path, method, operations[method].get("parameters", []), str(shop.acme.tenant_id)):
                tried += 1
                for text, answer in await each(
                    strings,
                    lambda text, place=place, method=method, token=token: client.ask(method.upper(), place(text), token),
                    plain=True,
                ):
                    other = text in ("", ".", "..") or "tenant=" in place(text)  # another route, and another tenant
                    assert answer.status in (200, 400, 404, 405, 422) or (other and answer.status == 403), (place(text), answer)
    assert tried > 12


def places_of(path: str, method: str, parameters: list[Json], some_id: str) -> list[Callable[[str], str]]:
    """Give the addresses of an operation that hold a text: in its path, in all parameters that take any text, and in all the others."""
    places: list[Callable[[str], str]] = [lambda text: filled(path, text)] if "{" in path else []
    asked = [each for each in parameters if each["in"] == "query"]
    if method == "get" and asked:
        free = [each["name"] for each in asked if takes_text(each["schema"])]
        others = [each["name"] for each in asked if each["name"] not in free]
        places.append(lambda text: f"{filled(path, some_id)}?{with_all(free, text)}")
        places.append(lambda text: f"{filled(path, some_id)}?{with_all([*others, 'nothing'], text)}")
    return places


def with_all(names: list[str], text: str) -> str:
    return "&".join(f"{name}={quote(text, safe='')}" for name in names)


def takes_text(schema: Json) -> bool:
    return any(each.get("type") == "string" and not each.keys() & {"format", "enum"} for each in (schema, *schema.get("anyOf", ())))


async def test_each_string_as_a_subject_an_owner_and_a_segment(client: Client, shop: Shop, strings: list[str]) -> None:
    for field in ("subject", "owner", "segments"):
        values: Callable[[str], Any] = (lambda text: [text]) if field == "segments" else (lambda text: text)
        kept = 0
        for text, answer in await each(
            strings,
            lambda text, field=field, values=values: client.ask(
                "POST", "/keys", shop.acme.tokens["operator"], {"subject": "someone", "roles": ["agent"], field: values(text)}
            ),
        ):
            if answer.status == 201:
                kept += 1
                assert answer.document[field] == (values(text) if text or field != "owner" else "someone"), text
            else:
                says_what_is_wrong(text, answer)
        assert kept > 300, field


async def test_each_string_as_a_tenants_name(client: Client, shop: Shop, strings: list[str]) -> None:
    made = 0
    for text, answer in await each(
        strings, lambda text: client.ask("POST", "/tenants", shop.platform_token, {"tenant": text, "policy": "none"})
    ):
        if answer.status == 201:
            made += 1
            assert answer.document["tenant"] == text
            assert re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", text)
        elif answer.status == 409:
            assert answer.document["code"] == "tenant_exists"
        else:
            says_what_is_wrong(text, answer)
    assert made > 20


async def test_each_string_as_a_bundles_file_and_text(client: Client, shop: Shop, strings: list[str]) -> None:
    """S6.3: refused whole, with a place."""
    author = shop.acme.tokens["author"]
    bodies: list[Callable[[str], Json]] = [
        lambda text: {text: "bundle: {name: x, format: 1}"},
        lambda text: {"bundle.yaml": text},
        lambda text: {"tools/x.yaml": f"tool: {json.dumps(text)}\n{json.dumps(text)}: 1\n"},
        lambda text: {"bundle.yaml": f"bundle: {{name: {json.dumps(text)}, format: 1}}\ngrants: []\n"},
    ]
    for body in bodies:
        for text, answer in await each(strings, lambda text, body=body: client.ask("POST", "/policies", author, {"files": body(text)})):
            assert answer.said in ("422 policy_invalid", "422 request_invalid"), (text, answer)
            assert answer.document["errors"], text


async def test_each_string_as_an_idempotency_key(client: Client, shop: Shop, strings: list[str]) -> None:
    """S3.9: a key is taken as it is, or refused."""
    said = Counter[str]()
    for _, answer in await each(
        strings,
        lambda text: client.ask(
            "POST",
            "/keys",
            shop.acme.tokens["operator"],
            {"subject": "someone", "roles": ["agent"]},
            headers={b"idempotency-key": text.encode()},
        ),
    ):
        said[str(answer.status)] += 1
    assert set(said) <= {"201", "400", "409", "422"}, said
    assert said["201"] > 100


async def test_each_string_as_a_credential(client: Client, shop: Shop, strings: list[str]) -> None:
    """TA-01: opens nothing."""
    for place, method in ((CHECK, "POST"), ("/policies", "POST"), ("/keys", "GET")):
        for text, answer in await each(
            strings,
            lambda text, place=place, method=method: client.ask(
                method, place, body=b"{}", headers={b"authorization": b"Bearer " + text.encode(), b"traceparent": text.encode()}
            ),
        ):
            assert answer.status == 401, (place, text, answer)


def says_what_is_wrong(text: str, answer: Answered) -> None:
    """Assert that a refusal names what was expected, and that its sentences don't repeat what was sent."""
    document = answer.document
    assert answer.status in (400, 422), answer
    assert document["detail"] or document["errors"], answer
    told = [str(document["detail"]), *(error["detail"] for error in document.get("errors", []))]
    told += [document["fix_hint"]["message"]] if "fix_hint" in document else []
    for sentence in told:
        assert is_seen(sentence), sentence
        assert is_quoted(text, sentence), sentence


def is_quoted(text: str, sentence: str) -> bool:
    """Say whether a sentence repeats a text only as one plain word or inside a quotation."""
    rest = re.sub(r'`[^`]*`|"(?:[^"\\]|\\.)*"', "", sentence)
    return re.fullmatch(r"[\w.@:/+#-]{0,64}", text) is not None or len(text) < 8 or text not in rest


def is_seen(text: str) -> bool:
    """Say whether nothing is in a text that a reader doesn't see, or that turns or breaks the text around it."""
    return not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for character in text)


async def key_for(client: Client, shop: Shop, method: str, place: str) -> str:
    """Give a key that may use a route."""
    for token in shop.acme.tokens.values():
        if (await client.ask(method.upper(), place, token)).status_code != 403:
            return token
    raise AssertionError(f"nobody may use {method} {place}")


def unescaped(text: str) -> str:
    """Read a quoted text back."""
    return re.sub(r'\\(?:(["\\])|u([0-9a-f]{4})|U([0-9a-f]{8}))', lambda found: found[1] or chr(int(found[2] or found[3], 16)), text)

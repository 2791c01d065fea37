"""Faults of redaction that others shipped: secrets that come to the audit, to an approval, to a log or to a model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from app.domain.canonical import digest
from tests.cases.stage import CUSTOMER, SHOP, Answer, Stage, Tenant, call, with_tool

SCHEMA = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "headers": {"type": "object"},
            "cfg": {"type": "array"},
            "count": {"type": "integer"},
            "level": {"enum": ["low", "high"]},
            "note": {"type": "string"},
            "password": {"type": "string"},
            "api_key": {"enum": ["the-only-one"]},
        },
    }
)
RULES = (
    "[{rule: not_many, require: args.count == null || args.count < 10, refuse: {reason: too_many, field: /password,"
    " expected: {const: '{args.password}'}, suggest: {/count: 1}, message: {en: '{args.note} with {args.password} is too much'}}}]"
)
ASK = "  - {grant: with_care, effect: permit, needs_approval: true, to: {roles: [agent]}, scope: [{action: ask, resource: 'file:**'}]}\n"


def bundle() -> dict[str, str]:
    """Give the shop with two tools of free-form arguments: `keep` is granted, `ask` wants a person."""
    files = with_tool("keep", SCHEMA, static_rules=RULES)
    asking = with_tool("ask", SCHEMA)
    return {**files, "tools/ask.yaml": asking["tools/ask.yaml"], "grants.yaml": files["grants.yaml"] + ASK}


def secret() -> str:
    """Give a text that is in nothing else."""
    return f"z{uuid.uuid4().hex}q"


async def stored(stage: Stage) -> str:
    """Read every text of every column of the service's schema, as its owner sees it; bytes as text where they are one."""
    tables = await stage.superuser.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'placet'::regnamespace AND relkind = 'r'")
    texts = []
    for table in tables:
        for row in await stage.superuser.fetch(f'SELECT * FROM placet."{table["relname"]}"'):
            texts += [bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value) for value in row.values()]
    return "\n".join(texts)


async def seen(stage: Stage, tenant: Tenant, answers: Iterable[Answer]) -> str:
    """Read what every GET of the service shows of these decisions, to everyone who may ask."""
    auditor, reviewer, agent = await tenant.key("auditor"), await tenant.key("reviewer"), await tenant.key()
    pages = [await stage.get(path, auditor) for path in ("/decisions", "/audit/verification")]
    pages += [await stage.get("/approvals", reviewer), await stage.get("/policies", await tenant.key("author"))]
    for answer in answers:
        pages += [await stage.get(f"/decisions/{answer['decision_id']}", key) for key in (auditor, agent)]
        if "approval" in answer.body:
            pages += [await stage.get(f"/approvals/{answer['approval']['approval_id']}", key) for key in (reviewer, agent)]
    assert {page.status for page in pages} == {200}, [page.text for page in pages if page.status != 200]
    return "\n".join(page.text for page in pages) + (await stage.client.get("/metrics")).text


def logged(stage: Stage) -> str:
    """Read what the service and its database have logged."""
    return stage.service.output + (stage.service.data / "postgres" / "postgres.log").read_text(errors="replace")


async def nowhere(stage: Stage, tenant: Tenant, secrets: Iterable[str], answers: Iterable[Answer]) -> None:
    places = {"stored": await stored(stage), "seen": await seen(stage, tenant, answers), "logged": logged(stage)}
    assert {(place, text) for place, read in places.items() for text in secrets if text in read} == set()


def nested(*secrets: str) -> dict[str, Any]:
    """Give arguments that hold four secrets, at three depths."""
    first, second, third, fourth = secrets
    pem = f"-----BEGIN PRIVATE KEY-----\n{third}\n-----END PRIVATE KEY-----"
    return {
        "headers": {"Authorization": f"Bearer {first}", "accept": "text/html"},
        "cfg": [{"cookie": f"s={second}"}, {"private_key": pem}],
        "note": f"log in with sk-live-{fourth}",
    }


async def test_as_01_a_secret_is_redacted_at_every_depth_and_every_exit(stage: Stage) -> None:
    """Accepted, denied and waiting; in the database, in every answer to a GET, in the metrics and in the logs."""
    tenant = await stage.tenant(bundle())
    secrets = [secret() for _ in range(4)]
    sent = nested(*secrets)
    kept = {
        "headers": {"Authorization": "[redacted]", "accept": "text/html"},
        "cfg": [{"cookie": "[redacted]"}, {"private_key": "[redacted]"}],
        "note": "[redacted]",
    }
    accepted = await tenant.call("keep", {**sent, "count": 1})
    denied = await tenant.call("keep", {**sent, "count": 10})
    asked = await tenant.call("ask", sent)
    unknown = await tenant.call("nothing", sent)
    assert [answer["decision"] for answer in (accepted, denied, asked, unknown)] == ["accepted", "denied", "needs_user", "denied"]
    await nowhere(stage, tenant, secrets, (accepted, denied, asked, unknown))
    for answer, count in ((accepted, {"count": 1}), (denied, {"count": 10}), (asked, {}), (unknown, {})):
        read = await stage.get(f"/decisions/{answer['decision_id']}", await tenant.key("auditor"))
        assert read["request"]["arguments"] == {**kept, **count}
    review = await stage.get(f"/approvals/{asked['approval']['approval_id']}", await tenant.key("reviewer"))
    assert review["review"]["call"]["arguments"] == kept
    assert review["seen_digest"] == digest(review["review"])
    assert review["binding"]["bound_digest"] == digest({"tool": "ask", "arguments": sent})  # of the call as it is
    await tenant.is_sound()


async def test_as_01_the_agent_gets_what_it_may_run_again_and_again(stage: Stage) -> None:
    """What is stored is redacted; the answer and its replays have the arguments that were sent, and the suggestion made of them."""
    tenant = await stage.tenant(bundle())
    secrets = [secret() for _ in range(4)]
    sent = {**nested(*secrets), "count": 1}
    first, again = [await tenant.call("keep", sent, "c1") for _ in range(2)]
    assert first["effective_arguments"] == again["effective_arguments"] == sent
    assert again.body == {**first.body, "execution_permitted": False, "replayed": True}
    refused, once_more = [await tenant.call("keep", {**sent, "count": 10}, "c2") for _ in range(2)]
    assert refused["fix_hint"]["suggested_arguments"] == sent
    assert refused["fix_hint"]["suggestion_decision"] == "accepted"
    assert once_more.body == {**refused.body, "replayed": True}
    other = await tenant.call("keep", {**sent, "note": f"log in with sk-live-{secret()}"}, "c1")
    assert other.said == ("denied", "call_id_reused")  # the digest is over what was sent
    await nowhere(stage, tenant, secrets, (first, refused))


async def test_as_01_effects_that_show_a_secret(stage: Stage) -> None:
    """The dry run's rows: what the call would write is said without it, to the agent as well."""
    tenant = await stage.tenant(SHOP)
    await tenant.order("A-1001", 12990)
    text = secret()
    arguments = {"order_id": "A-1001", "subject": "Your order", "body": f"the password is: sk-live-{text}"}
    answer = await tenant.call("send_message", arguments, on_behalf_of=CUSTOMER)
    assert answer["decision"] == "accepted"
    assert [row["after"]["body"] for row in answer["side_effects"]["rows"]] == ["[redacted]"]
    assert answer["effective_arguments"]["body"] == arguments["body"]
    await nowhere(stage, tenant, [text], [answer])


@pytest.mark.parametrize(
    "name",
    [
        "PASSWORD",
        "Password",
        "Api-Key",
        "apiKey",
        "x_api_key",
        "X-Api-Key",
        "pass word",
        "token\u200b",
        "to\u00adken",
        "ＴＯＫＥＮ",
        "Set-Cookie",
        "密码",
    ],
)
async def test_as_03_a_name_is_read_before_it_is_compared(stage: Stage, name: str) -> None:
    tenant = await stage.tenant(bundle())
    text = secret()
    sent = {"headers": {"nested": [{name: text}], "token_count": 12, "cookie_consent": True}, "count": 1}
    answer = await tenant.call("keep", sent)
    assert answer["effective_arguments"] == sent
    await nowhere(stage, tenant, [text], [answer])
    read = await stage.get(f"/decisions/{answer['decision_id']}", await tenant.key("auditor"))
    assert read["request"]["arguments"] == {
        "headers": {"nested": [{name: "[redacted]"}], "token_count": 12, "cookie_consent": True},
        "count": 1,
    }


async def test_as_04_a_refusal_names_the_place_and_what_is_expected_not_the_value(stage: Stage) -> None:
    """In a number, in an enumeration, in an argument that isn't one, in a name, and what a rule's author writes into a sentence."""
    tenant = await stage.tenant(bundle())
    text = secret()
    key = f"sk-live-{text}"
    answers = {
        "number": await tenant.call("keep", {"count": key}),
        "enum": await tenant.call("keep", {"count": 1, "level": key}),
        "secret_enum": await tenant.call("keep", {"count": 1, "api_key": text}),
        "unknown": await tenant.call("keep", {"count": 1, "hints": key}),
        "name": await tenant.call("keep", {"count": 1, key: 1}),
        "rule": await tenant.call("keep", {"count": 10, "note": f"use {key}", "password": text}),
    }
    assert {name: text in json.dumps(answer.body["fix_hint"], default=str) for name, answer in answers.items()} == {
        **dict.fromkeys(answers, False),
        "rule": True,  # in suggested_arguments, which may run
    }
    hints = {name: answer["fix_hint"] for name, answer in answers.items()}
    assert {name: (hint.get("field"), hint.get("actual"), hint.get("expected")) for name, hint in hints.items()} == {
        "number": ("/count", "[redacted]", {"type": "integer"}),
        "enum": ("/level", "[redacted]", {"enum": ["low", "high"]}),
        "secret_enum": ("/api_key", "[redacted]", {"enum": "[redacted]"}),
        "unknown": ("/hints", "[redacted]", {"not": {}}),
        "name": ("/[redacted]", 1, {"not": {}}),
        "rule": ("/password", "[redacted]", {"const": "[redacted]"}),
    }
    assert hints["rule"]["message"] == '"use [redacted]" with [redacted] is too much'
    assert "the-only-one" not in "".join(answer.text for answer in answers.values())
    for answer in answers.values():
        said = json.loads(answer.text)
        said["fix_hint"].pop("suggested_arguments", None)
        said["tool_result"]["content"].pop("suggested_arguments", None)
        assert text not in json.dumps(said)
    await nowhere(stage, tenant, [text], answers.values())


async def test_as_04_a_request_that_is_refused_is_not_repeated(stage: Stage) -> None:
    """422 by the envelope, 400 by the body, 404 by a path that is no UUID: the place, never the value, in answer, row and log."""
    tenant = await stage.tenant(bundle())
    text = secret()
    key, agent = f"sk-live-{text}", await tenant.key()
    good = call("keep", {"count": 1})
    bodies = [
        {**good, "turn": key},
        {**good, "mode": key},
        {**good, key: 1},
        {**good, "approval_id": key},
        {**good, "on_behalf_of": {"id": 1, key: key}},
        {**good, "tool": f"{key}!"},
        {**good, "requested_scope": [{key: key}]},
        {**good, "requested_scope": [{"action": key, "resource": key}]},
        {**good, "requested_scope": [{"action": "keep", "resource": "file:**", "constraints": {key: {key: key}}}]},
    ]
    answers = [await stage.check(agent, body) for body in bodies]
    answers += [await stage.send("POST", "/tool-calls/check", agent, f'{{"{key}": 1, "{key}": 2}}'.encode())]
    answers += [await stage.get(f"/decisions/{key}", agent), await stage.get(f"/approvals/{key}", agent), await stage.get(f"/{key}", agent)]
    answers += [await stage.get(f"/decisions?{key}={key}", await tenant.key("auditor"))]
    assert {answer.status for answer in answers} <= {400, 404, 422}
    assert [answer.text for answer in answers if text in answer.text] == []
    await nowhere(stage, tenant, [text], ())


async def test_as_04_what_the_database_says_of_a_value_is_not_told(stage: Stage) -> None:
    """A dry run fails on a constraint whose error carries the row: the answer names the constraint, the logs nothing of the row."""
    text = secret()
    statement = (
        "sandbox:\n  strategy: transaction\n  statements:\n    - sql: |\n"
        "        INSERT INTO shop.refunds (tenant, order_id, amount_minor, currency) VALUES (:tenant, :note, 1, :note)\n"
        "      bind: {note: args.note}\n"
        "  watch: {shop.refunds: {key: [order_id], columns: [currency]}}\n  limits: {shop.refunds: {inserted: 1}}\n"
    )
    files = with_tool("book", SCHEMA)
    book = files["tools/book.yaml"].replace("effect_class: read", "effect_class: write") + f"rules: {RULES}\n" + statement
    tenant = await stage.tenant({**files, "tools/book.yaml": book + "compensation: irreversible\n"})
    answer = await tenant.call("book", {"note": text})
    assert answer.said == ("denied", "sandbox_failed")
    assert text not in answer.text
    kept = await stage.get(f"/decisions/{answer['decision_id']}", await tenant.key("auditor"))
    assert kept["request"]["arguments"] == {"note": text}, "it has neither a secret's name nor form, so the record of the request has it"
    assert text not in logged(stage)

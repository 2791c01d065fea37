"""429 with the RateLimit fields on every route with a key, before the body is read (SPEC 12.2, TA-07)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from app.api.rate_limit_fields import fields_of
from app.domain.limits import CONCURRENT_MAX, REQUESTS_PER_MINUTE_MAX, Standing
from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.engine.shop import Shop, Tenant

ITEM = re.compile(r'"(?P<name>[ !#-\[\]-~]*)"(?P<parameters>(?:;\x20*[a-z*][a-z0-9_.*-]*(?:=(?:-?[0-9]{1,15}|"[ !#-\[\]-~]*"))?)*)')
"""An item of RFC 9651 that is a string, with parameters that are integers or strings."""


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


def structured(value: str) -> dict[str, dict[str, int | str]]:
    """Read a list of a structured field (RFC 9651, 3.1) as strictly as its grammar is."""
    found: dict[str, dict[str, int | str]] = {}
    for member in re.split(r"[ \t]*,[ \t]*", value):
        item = ITEM.fullmatch(member)
        assert item is not None, member
        pairs = [pair.strip().partition("=") for pair in item["parameters"].split(";")[1:]]
        found[item["name"]] = {name: text.strip('"') if text.startswith('"') else int(text) for name, _, text in pairs}
    return found


async def key(client: Client, tenant: Tenant, role: str = "agent", **limits: int) -> tuple[str, str]:
    """Make a key with limits of its own; give its secret and its id."""
    asked = {"subject": f"limited-{role}", "roles": [role], "segments": ["standard"] if role == "agent" else [], "limits": limits}
    made = await client.ask("POST", "/keys", tenant.tokens["operator"], asked)
    assert made.status_code == 201, made.text
    return made.json()["secret"], made.json()["key_id"]


def codes(answers: list[httpx.Response]) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for answer in answers:
        what = code(answer) if answer.status_code >= 400 else (answer.status_code, "")
        found[what] = found.get(what, 0) + 1
    return found


async def test_s12_2_exactly_the_limit_passes_over_two_services(settings: Settings, shop: Shop) -> None:
    """Two services on one database, 200 requests at once, 50 a minute: 50 pass, and each other one is told when to come again."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(serving(settings, shop)) for _ in range(2)]
        limited, _ = await key(clients[0], shop.acme, requests_per_minute=50, concurrent=1_000)
        await past_a_minutes_end(shop)
        answers = await asyncio.gather(*(clients[number % 2].check(limited, f"c-{number}") for number in range(200)))
        assert codes(list(answers)) == {(200, ""): 50, (429, "rate_limited"): 150}
        assert await shop.value("SELECT count(*) FROM placet.decisions WHERE subject = 'limited-agent'") == 50


async def past_a_minutes_end(shop: Shop) -> None:
    """Wait where the minute ends within seconds; what follows is within one minute then."""
    left = float(await shop.value("SELECT 60 - extract(second FROM clock_timestamp())::float8"))
    if left < 8:
        await asyncio.sleep(left + 0.1)


async def test_a_refusal_on_the_check_route_permits_nothing(client: Client, shop: Shop) -> None:
    limited, _ = await key(client, shop.acme, requests_per_minute=1)
    await past_a_minutes_end(shop)
    assert (await client.check(limited, "c1")).status_code == 200
    answer = await client.check(limited, "c2")
    assert code(answer) == (429, "rate_limited")
    document = answer.json()
    wait_s = document.pop("retry_after_s")
    assert 1 <= wait_s <= 60
    assert answer.headers["retry-after"] == str(wait_s)
    assert document["execution_permitted"] is False
    assert document["retryable"] == "after_delay"
    assert document["detail"] == "this key's 1 requests a minute are spent; wait for the next minute"
    assert document["fix_hint"] == {
        "denial_class": "transient",
        "retryable": "after_delay",
        "retry_after_ms": wait_s * 1000,
        "message": document["detail"],
        "next_action": {"kind": "wait"},
    }
    assert document["tool_result"]["is_error"] is True
    limit = structured(answer.headers["ratelimit"])
    assert limit == {"requests": {"r": 0, "t": wait_s}}


async def test_the_fields_are_structured_and_count_down(client: Client, shop: Shop) -> None:
    """On what was decided, on what was refused for another reason, and on the ordinary routes."""
    limited, _ = await key(client, shop.acme, requests_per_minute=1_000, concurrent=9)
    await past_a_minutes_end(shop)
    answers = [await client.check(limited, "c1"), await client.ask("POST", "/tool-calls/check", limited, b"[")]
    answers += [await client.ask("GET", "/keys", limited), await client.ask("GET", "/nowhere", limited)]
    assert [answer.status_code for answer in answers] == [200, 400, 403, 404]
    for number, answer in enumerate(answers):
        policy, limit = structured(answer.headers["ratelimit-policy"]), structured(answer.headers["ratelimit"])
        assert policy == {"requests": {"q": 1_000, "w": 60}, "concurrent": {"q": 9, "qu": "concurrent-requests"}}
        assert limit["requests"].keys() == {"r", "t"}
        assert limit["requests"]["r"] == 999 - number
        assert 1 <= int(limit["requests"]["t"]) <= 60
        assert len(answer.headers.get_list("ratelimit")) == 1


def test_the_fields_of_the_largest_limits_are_structured() -> None:
    standing = Standing(REQUESTS_PER_MINUTE_MAX, CONCURRENT_MAX, REQUESTS_PER_MINUTE_MAX, 60)
    assert fields_of(standing, none_at_once=True) == (
        (b"ratelimit-policy", b'"requests";q=10000000;w=60, "concurrent";q=10000;qu="concurrent-requests"'),
        (b"ratelimit", b'"requests";r=10000000;t=60, "concurrent";r=0'),
    )


ROUTES = [("GET", "/keys"), ("GET", "/audit/verification"), ("POST", "/policies"), ("GET", "/approvals"), ("GET", "/decisions")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_with_a_key_has_limits(client: Client, shop: Shop, method: str, path: str) -> None:
    """Also for a role that may not use it: the limits come before the role. None without a key has any."""
    limited, _ = await key(client, shop.acme, "user", requests_per_minute=0)
    body = {"files": {}} if method == "POST" else ...
    for _ in range(2):  # as the worker learns the key, and as it remembers it
        answer = await client.ask(method, path, limited, body)
        assert code(answer) == (429, "rate_limited")
        assert "execution_permitted" not in answer.json()
    for open_path in ("/healthz", "/metrics", "/openapi.json"):
        answer = await client.ask("GET", open_path, limited)
        assert (answer.status_code, "ratelimit" in answer.headers) == (200, False)


@pytest.mark.parametrize("limit", ["requests_per_minute", "concurrent"])
async def test_zero_is_none_at_all(client: Client, shop: Shop, limit: str) -> None:
    """Waiting wouldn't help, and the answer says so."""
    limited, _ = await key(client, shop.acme, **{limit: 0})
    answer = await client.check(limited, "c1")
    assert code(answer) == (429, {"requests_per_minute": "rate_limited", "concurrent": "too_many_requests_under_way"}[limit])
    document = answer.json()
    assert (document["execution_permitted"], document["retryable"]) == (False, "never")
    assert document["fix_hint"]["next_action"] == {"kind": "stop"}
    assert "retry_after_s" not in document
    assert "retry-after" not in answer.headers
    assert await shop.value("SELECT count(*) FROM placet.claims WHERE call_id = 'c1'") == 0


@pytest.mark.parametrize("path", ["/tool-calls/check", "/policies"])
async def test_the_body_of_a_key_over_its_limit_is_not_read(client: Client, shop: Shop, path: str) -> None:
    limited, _ = await key(client, shop.acme, requests_per_minute=0)
    await client.check(limited, "c1")  # from here on the worker remembers the key
    read: list[str] = []
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        read.append("a piece")
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {limited}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("placet.test", 80), "client": ("127.0.0.1", 1), "root_path": ""}
    await client.app(scope, receive, send)
    assert (sent[0]["status"], read) == (429, [])


async def test_a_long_poll_is_under_way(client: Client, shop: Shop) -> None:
    """The second request of a key with one at once is refused while the first waits, and answered when that one has gone."""
    amount = {"amount": 129.90}
    asked = (await client.check(shop.acme.tokens["agent"], "c1", arguments=amount, task_id="t", state_version=1)).json()
    path = f"/approvals/{asked['approval']['approval_id']}"
    limited, _ = await key(client, shop.acme, "reviewer", concurrent=1)
    waiting = asyncio.create_task(client.ask("GET", f"{path}?wait_s=2", limited))
    await asyncio.sleep(0.3)
    refused = await client.ask("GET", path, limited)
    assert code(refused) == (429, "too_many_requests_under_way")
    assert refused.headers["retry-after"] == "1"
    assert structured(refused.headers["ratelimit"])["concurrent"] == {"r": 0}
    assert (await waiting).status_code == 200
    assert (await client.ask("GET", path, limited)).status_code == 200


async def test_a_client_that_leaves_is_not_under_way(client: Client, shop: Shop) -> None:
    limited, _ = await key(client, shop.acme, concurrent=1)
    for number in range(3):
        gone = asyncio.create_task(client.check(limited, f"gone-{number}"))
        await asyncio.sleep(0.002 * number)
        gone.cancel()
    await asyncio.sleep(0.1)
    assert (await client.check(limited, "c1")).status_code == 200


async def test_a_flood_is_one_audit_row_and_all_of_it_is_counted(client: Client, shop: Shop) -> None:
    """S10.1, S11.1: on the check route and the others alike; the row is the key's."""
    limited, _ = await key(client, shop.acme, requests_per_minute=0)
    await past_a_minutes_end(shop)
    for number in range(10):
        assert code(await client.check(limited, f"c{number}")) == (429, "rate_limited")
        assert code(await client.ask("GET", "/decisions", limited)) == (429, "rate_limited")
    rows = await shop.rows("SELECT body FROM placet.audit_rows WHERE event = 'request.refused'")
    assert len(rows) == 1
    body = json.loads(rows[0]["body"])
    assert (body["actor"]["subject"], body["code"], body["http_status"], body["requests"]) == ("limited-agent", "rate_limited", 429, 1)
    scraped = (await client.ask("GET", "/metrics")).text
    assert 'placet_refused_requests_total{code="rate_limited"} 20.0' in scraped


async def test_ta_07_a_noisy_key_disturbs_nobody(client: Client, shop: Shop) -> None:
    """Bad keys from many "addresses" and a key over its limit neither lock out the tenant's other keys nor another tenant's; nor does an
    address bring more."""
    noisy, _ = await key(client, shop.acme, requests_per_minute=5)
    await past_a_minutes_end(shop)

    async def from_address(number: int, token: str) -> httpx.Response:
        headers = {"x-forwarded-for": f"203.0.113.{number}", "forwarded": f"for=203.0.113.{number}", "x-real-ip": f"203.0.113.{number}"}
        return await client.ask("POST", "/tool-calls/check", token, {"tool": "x", "arguments": {}}, headers=headers)

    noise = asyncio.gather(*(from_address(number, noisy if number % 2 else f"bad-{number}") for number in range(200)))
    calls = [
        await client.check(token, f"c{number}")
        for number in range(5)
        for token in (shop.acme.tokens["agent"], shop.acme.tokens["other"], shop.globex.tokens["agent"])
    ]
    found = codes(list(await noise))
    assert (found[(422, "request_invalid")], found[(429, "rate_limited")], found[(401, "unauthenticated")]) == (5, 95, 100)
    assert {answer.status_code for answer in calls if answer.status_code != 200} == set()


async def test_limits_are_shown_and_kept_by_a_rotation(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    _, key_id = await key(client, shop.acme, requests_per_minute=77)
    rotated = (await client.ask("POST", f"/keys/{key_id}/rotation", operator, {})).json()
    shown = {item["key_id"]: item["limits"] for item in (await client.ask("GET", "/keys", operator)).json()["items"]}
    assert shown[key_id] == shown[rotated["key_id"]] == rotated["limits"] == {"requests_per_minute": 77, "concurrent": 128}
    assert shown[str(shop.acme.key_ids["agent"])] == {"requests_per_minute": 30_000, "concurrent": 128}
    made = await shop.value("SELECT body FROM placet.audit_rows WHERE event = 'authority.changed' ORDER BY sequence DESC OFFSET 1 LIMIT 1")
    assert json.loads(made)["limits"] == {"requests_per_minute": 77}
    used = [await client.check(rotated["secret"], "c1"), await client.check(rotated["secret"], "c2")]
    assert [structured(answer.headers["ratelimit-policy"])["requests"]["q"] for answer in used] == [77, 77]


@pytest.mark.parametrize(
    ("limits", "pointer"),
    [
        ({"requests_per_minute": -1}, "/limits/requests_per_minute"),
        ({"requests_per_minute": REQUESTS_PER_MINUTE_MAX + 1}, "/limits/requests_per_minute"),
        ({"requests_per_minute": "5"}, "/limits/requests_per_minute"),
        ({"requests_per_minute": 1.5}, "/limits/requests_per_minute"),
        ({"concurrent": True}, "/limits/concurrent"),
        ({"concurrent": CONCURRENT_MAX + 1}, "/limits/concurrent"),
        ({"per_hour": 5}, "/limits/per_hour"),
        ([], "/limits"),
    ],
)
async def test_limits_out_of_bounds_are_named(client: Client, shop: Shop, limits: object, pointer: str) -> None:
    asked = {"subject": "x", "roles": ["agent"], "limits": limits}
    answer = await client.ask("POST", "/keys", shop.acme.tokens["operator"], asked)
    assert code(answer) == (422, "request_invalid")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]

"""`/tenants` and `/keys`: shown once, revoked and rotated at once in every worker; an operator acts in the own tenant (SPEC S12.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from app.domain.tool_call import Role
from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.engine.shop import SHOP_FILES, Shop

NEW_KEY = {"subject": "new-agent", "roles": ["agent"], "segments": ["standard"]}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def changes(shop: Shop, tenant_id: UUID) -> list[dict[str, Any]]:
    rows = await shop.rows("SELECT body FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence", tenant_id)
    return [json.loads(row["body"]) for row in rows]


ROUTES: list[tuple[str, str, object, set[str]]] = [
    ("POST", "/tenants", {"tenant": "new"}, set()),  # the platform's operator only
    ("POST", "/keys", NEW_KEY, {"operator"}),
    ("GET", "/keys", ..., {"operator"}),
    ("DELETE", "/keys/01a230d5-2298-72d9-87ec-9ded623eae90", ..., {"operator"}),
    ("POST", "/keys/01a230d5-2298-72d9-87ec-9ded623eae90/rotation", {}, {"operator"}),
    ("POST", "/policies", {"files": dict(SHOP_FILES)}, {"author"}),
    ("GET", "/policies", ..., {"author", "operator"}),
    ("POST", "/policies/1/activation", ..., {"author", "operator"}),
    ("GET", "/audit/verification", ..., {"auditor"}),
    ("GET", "/decisions", ..., {"auditor"}),
    ("POST", "/freezes", {"target": "tool:refund", "reason": "r"}, {"operator"}),
    ("GET", "/freezes", ..., {"operator", "auditor"}),
    ("DELETE", "/freezes/01a230d5-2298-72d9-87ec-9ded623eae90", ..., {"operator"}),
    ("GET", "/decisions/01a230d5-2298-72d9-87ec-9ded623eae90", ..., {"agent", "executor", "auditor"}),
]


@pytest.mark.parametrize(("method", "path", "body", "allowed"), ROUTES, ids=[f"{route[0]} {route[1][:12]}" for route in ROUTES])
async def test_every_route_names_its_roles(client: Client, shop: Shop, method: str, path: str, body: object, allowed: set[str]) -> None:
    """S12.1: 401 without a key, 403 with another role; whoever may gets neither. Each 403 is a row with the body's digest."""
    assert code(await client.ask(method, path, body=body)) == (401, "unauthenticated")
    assert code(await client.ask(method, path, "placet_" + "a" * 26 + "_" + "A" * 43, body)) == (401, "unauthenticated")
    before = len(await changes(shop, shop.acme.tenant_id))
    refused = [role.value for role in Role if role.value not in allowed]
    for role in refused:
        assert code(await client.ask(method, path, shop.acme.tokens[role], body)) == (403, "not_permitted")
    rows = (await changes(shop, shop.acme.tenant_id))[before:]
    assert [(row["event"], row["code"], row["http_status"]) for row in rows] == [("request.refused", "not_permitted", 403)] * len(refused)
    if body is not ...:
        digest = f"sha256:{hashlib.sha256(json.dumps(body).encode()).hexdigest()}"
        assert {row.get("body_digest") for row in rows} == {digest}
    for role in allowed:
        assert (await client.ask(method, path, shop.acme.tokens[role], body)).status_code not in (401, 403, 500)


async def test_a_keys_secret_is_shown_once_and_stored_as_a_hash(client: Client, shop: Shop) -> None:
    """S12.1"""
    operator = shop.acme.tokens["operator"]
    answer = await client.ask("POST", "/keys", operator, NEW_KEY)
    made = answer.json()
    assert answer.status_code == 201
    secret = made["secret"]
    assert (made["subject"], made["owner"], made["roles"], made["segments"]) == ("new-agent", "new-agent", ["agent"], ["standard"])
    assert (made["created_by"], "revoked_at" in made) == ("the-operator", False)
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime == timedelta(days=90)
    listed = (await client.ask("GET", "/keys", operator)).json()
    assert [key for key in listed["items"] if key["key_id"] == made["key_id"]] == [{k: v for k, v in made.items() if k != "secret"}]
    stored = await shop.value("SELECT secret_sha256 FROM placet.api_keys WHERE key_id = $1::uuid", made["key_id"])
    assert stored == hashlib.sha256(secret.encode()).digest()
    for table in ("api_keys", "audit_rows", "audit_payloads", "idempotency_keys"):
        assert await shop.value(f"SELECT count(*) FROM placet.{table} t WHERE t::text LIKE $1", f"%{secret[-43:]}%") == 0
    assert (await client.check(secret, "c1")).json()["decision"] == "accepted"
    last = [row for row in await changes(shop, shop.acme.tenant_id) if row["event"] == "authority.changed"][-1]
    assert (last["change"], last["key_id"], last["actor"]) == (
        "key.created",
        made["key_id"],
        {"subject": "the-operator", "roles": ["operator"]},
    )


async def test_a_list_of_keys_comes_in_pages(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    seen: list[str] = []
    query = "limit=3"
    while True:
        page = (await client.ask("GET", f"/keys?{query}", operator)).json()
        seen += [key["key_id"] for key in page["items"]]
        if "next_cursor" not in page:
            break
        assert len(page["items"]) == 3
        query = f"limit=3&cursor={page['next_cursor']}"
    assert sorted(seen) == sorted(str(key_id) for key_id in shop.acme.key_ids.values())
    assert len(set(seen)) == len(seen)
    for bad in ("limit=0", "limit=201", "limit=x", "cursor=x"):
        assert code(await client.ask("GET", f"/keys?{bad}", operator)) == (422, "request_invalid")


async def test_a_revoked_key_ends_everywhere_at_once(settings: Settings, shop: Shop) -> None:
    """TA-04: on the worker that revoked it, on the other, for decisions and for ordinary routes; revoking twice is one change."""
    operator, key_id = shop.acme.tokens["operator"], shop.acme.key_ids["auditor"]
    token = shop.acme.tokens["auditor"]
    async with serving(settings, shop) as one, serving(settings, shop) as two:
        for worker in (one, two):
            assert (await worker.ask("GET", "/audit/verification", token)).status_code == 200
        first = await one.ask("DELETE", f"/keys/{key_id}", operator)
        assert (first.status_code, "revoked_at" in first.json()) == (200, True)
        for worker in (one, two):
            assert code(await worker.ask("GET", "/audit/verification", token)) == (401, "unauthenticated")
        again = await two.ask("DELETE", f"/keys/{key_id}", operator)
        assert again.json() == first.json()
    revoked = [row for row in await changes(shop, shop.acme.tenant_id) if row.get("change") == "key.revoked"]
    assert [(row["key_id"], row["subject"]) for row in revoked] == [(str(key_id), "the-auditor")]


async def test_an_operator_that_revokes_itself_is_out(client: Client, shop: Shop) -> None:
    operator, key_id = shop.acme.tokens["operator"], shop.acme.key_ids["operator"]
    assert (await client.ask("DELETE", f"/keys/{key_id}", operator)).status_code == 200
    assert code(await client.ask("GET", "/keys", operator)) == (401, "unauthenticated")


async def test_a_rotated_key_overlaps_as_long_as_asked(settings: Settings, shop: Shop) -> None:
    """S12.1, TA-04: without an overlap the old secret ends at once, in another worker too; rights and segments stay."""
    operator, key_id, token = shop.acme.tokens["operator"], shop.acme.key_ids["agent"], shop.acme.tokens["agent"]
    async with serving(settings, shop) as one, serving(settings, shop) as two:
        assert (await two.check(token, "c1")).status_code == 200
        overlapping = (await one.ask("POST", f"/keys/{key_id}/rotation", operator, {"overlap_s": 3600})).json()
        assert (await two.check(token, "c2", arguments={"order_id": "A-1002"})).status_code == 200
        assert (overlapping["subject"], overlapping["roles"], overlapping["segments"]) == (
            "support-agent",
            ["agent"],
            ["standard", "trusted_buyer"],
        )
        replay = (await two.check(overlapping["secret"], "c1")).json()
        assert replay["replayed"] is True
        second = await one.ask("POST", f"/keys/{overlapping['key_id']}/rotation", operator, {})
        assert second.status_code == 201
        assert code(await two.check(overlapping["secret"], "c3")) == (401, "unauthenticated")
        assert (await two.check(second.json()["secret"], "c1")).json()["replayed"] is True
        gone = await one.ask("POST", f"/keys/{overlapping['key_id']}/rotation", operator, {})
        assert code(gone) == (409, "key_not_active")


async def test_an_expired_key_is_none(client: Client, shop: Shop) -> None:
    """S12.1: its end is shown when it is made, and is the end of it."""
    made = (await client.ask("POST", "/keys", shop.acme.tokens["operator"], {**NEW_KEY, "expires_in_s": 60})).json()
    assert datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"]) == timedelta(seconds=60)
    assert code(await client.ask("GET", "/decisions/x", made["secret"])) == (404, "not_found")
    await shop.execute(f"UPDATE placet.api_keys SET expires_at = created_at WHERE key_id = '{made['key_id']}'")
    assert code(await client.ask("GET", "/decisions/x", made["secret"])) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**NEW_KEY, "roles": []},
        {**NEW_KEY, "roles": ["admin"]},
        {**NEW_KEY, "roles": "agent"},
        {**NEW_KEY, "subject": ""},
        {**NEW_KEY, "subject": "a\u202eb"},
        {**NEW_KEY, "expires_in_s": 0},
        {**NEW_KEY, "expires_in_s": 10**9},
        {**NEW_KEY, "key_id": "x"},
        {**NEW_KEY, "tenant": "No Name"},
        [],
        "x",
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(client: Client, shop: Shop, body: object) -> None:
    before = len(await changes(shop, shop.acme.tenant_id))
    answer = await client.ask("POST", "/keys", shop.acme.tokens["operator"], body)
    assert code(answer) == (422, "request_invalid")
    assert answer.json()["errors"]
    rows = (await changes(shop, shop.acme.tenant_id))[before:]
    assert [row["event"] for row in rows] == ["request.refused"]
    assert rows[0]["body_digest"] == f"sha256:{hashlib.sha256(json.dumps(body).encode()).hexdigest()}"


async def test_ta_06_another_tenants_key_is_not_there(client: Client, shop: Shop) -> None:
    """TA-06: neither seen, nor revoked, nor rotated; the attempt is in the trier's chain, and nothing in the other's."""
    theirs, operator = shop.acme.key_ids["agent"], shop.globex.tokens["operator"]
    before = await changes(shop, shop.acme.tenant_id)
    assert code(await client.ask("DELETE", f"/keys/{theirs}", operator)) == (404, "not_found")
    assert code(await client.ask("POST", f"/keys/{theirs}/rotation", operator, {})) == (404, "not_found")
    listed = (await client.ask("GET", "/keys?limit=200", operator)).json()["items"]
    assert str(theirs) not in {key["key_id"] for key in listed}
    assert code(await client.ask("POST", "/keys", operator, {**NEW_KEY, "tenant": "acme"})) == (403, "not_permitted")
    assert await changes(shop, shop.acme.tenant_id) == before
    assert (await client.check(shop.acme.tokens["agent"], "c1")).status_code == 200
    tried = [row for row in await changes(shop, shop.globex.tenant_id) if row["event"] == "request.refused"]
    assert [(row["http_status"], row["route"]) for row in tried] == [
        (404, "/keys/{key_id}"),
        (404, "/keys/{key_id}/rotation"),
        (403, "/keys"),
    ]


async def test_the_platforms_operator_makes_a_tenant_and_its_first_key(client: Client, shop: Shop) -> None:
    """S12.1: it starts with the served bundle, and its chain with the row that says so."""
    platform = shop.platform_token
    made = await client.ask("POST", "/tenants", platform, {"tenant": "initech"})
    assert (made.status_code, made.json()["tenant"], made.json()["policy_version"]) == (201, "initech", 1)
    key = (await client.ask("POST", "/keys", platform, {"subject": "boss", "roles": ["operator", "auditor"], "tenant": "initech"})).json()
    listed = (await client.ask("GET", "/keys", key["secret"])).json()["items"]
    assert [each["subject"] for each in listed] == ["boss"]
    agent = (await client.ask("POST", "/keys", key["secret"], NEW_KEY)).json()["secret"]
    found = (await client.check(agent, "c1")).json()
    assert (found["reason"], found["audit"]["chain"]) == ("order_not_found", "initech")
    rows = await changes(shop, UUID(made.json()["tenant_id"]))
    assert (rows[0]["change"], rows[0]["sequence"], rows[0]["actor"]["subject"]) == ("tenant.created", 1, "platform")
    assert (await client.ask("GET", "/audit/verification", key["secret"])).json()["verified"] is True
    assert code(await client.ask("POST", "/tenants", platform, {"tenant": "initech"})) == (409, "tenant_exists")
    assert code(await client.ask("POST", "/keys", platform, {**NEW_KEY, "tenant": "unheard-of"})) == (404, "not_found")
    for bad in (
        {"tenant": "No"},
        {"tenant": ""},
        {"tenant": "a" * 64},
        {"tenant": "x", "policy": "mine"},
        {"tenant": "x", "policy_version": 2},
    ):
        assert code(await client.ask("POST", "/tenants", platform, bad)) == (422, "request_invalid")


async def test_a_tenant_without_a_policy_refuses_everything(client: Client, shop: Shop) -> None:
    """S5.3: the default is deny."""
    made = (await client.ask("POST", "/tenants", shop.platform_token, {"tenant": "empty", "policy": "none"})).json()
    assert "policy_version" not in made
    agent = (await client.ask("POST", "/keys", shop.platform_token, {**NEW_KEY, "tenant": "empty"})).json()["secret"]
    for tool in ("refund", "search_order", "unheard_of"):
        found = (await client.check(agent, f"of-{tool}", tool=tool)).json()
        assert (found["decision"], found["reason"], found["execution_permitted"]) == ("denied", "no_policy", False)

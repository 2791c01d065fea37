"""`Idempotency-Key` on the ordinary POSTs (API.md 0.1): one effect, the first answer again, and no secret kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest

from app.settings import Settings
from app.storage.database import driver_url
from tests.api.serving import Client, code, serving
from tests.engine.shop import SHOP_FILES, Shop, Tenant

KEY = {"subject": "new-agent", "roles": ["agent"]}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def post(client: Client, token: str, path: str, body: object = ..., key: str | bytes = "k-1") -> httpx.Response:
    return await client.ask("POST", path, token, body, headers={"idempotency-key": key})


async def keys_of(shop: Shop, tenant: Tenant, subject: str = "new-agent") -> int:
    return int(await shop.value("SELECT count(*) FROM placet.api_keys WHERE tenant_id = $1 AND subject = $2", tenant.tenant_id, subject))


async def test_a_key_is_made_once_and_its_secret_is_shown_once(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    first = await post(client, operator, "/keys", KEY)
    again = await post(client, operator, "/keys", {"roles": ["agent"], "subject": "new-agent"})  # the same document
    assert (first.status_code, again.status_code) == (201, 201)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    made = first.json()
    secret = made.pop("secret")
    assert again.json() == {**made, "secret_shown_once": True}
    assert await keys_of(shop, shop.acme) == 1
    kept = await shop.rows("SELECT * FROM placet.idempotency_keys")
    assert len(kept) == 1
    assert secret not in repr(kept)
    assert secret[-20:] not in repr(kept)
    assert (kept[0]["subject"], kept[0]["route"], kept[0]["answer_status"]) == ("the-operator", "POST /keys", 201)


async def test_an_answer_is_kept_for_good(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    made = (await post(client, operator, "/keys", KEY)).json()
    await shop.execute("UPDATE placet.idempotency_keys SET created_at = now() - interval '2 days'")
    assert (await post(client, operator, "/keys", KEY)).json()["key_id"] == made["key_id"]
    assert code(await post(client, operator, "/keys", {**KEY, "roles": ["user"]})) == (422, "idempotency_key_reused")
    assert await keys_of(shop, shop.acme) == 1


async def test_without_a_key_each_request_counts(client: Client, shop: Shop) -> None:
    for _ in range(2):
        assert (await client.ask("POST", "/keys", shop.acme.tokens["operator"], KEY)).status_code == 201
    assert await keys_of(shop, shop.acme) == 2
    assert await shop.value("SELECT count(*) FROM placet.idempotency_keys") == 0


async def test_another_body_or_route_is_refused_and_does_nothing(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    made = (await post(client, operator, "/keys", KEY)).json()
    reused = (422, "idempotency_key_reused")
    assert code(await post(client, operator, "/keys", {**KEY, "roles": ["auditor"]})) == reused
    assert code(await post(client, operator, f"/keys/{made['key_id']}/rotation", {})) == reused
    assert code(await post(client, operator, "/policies/1/activation")) == reused
    assert await keys_of(shop, shop.acme) == 1
    again = await post(client, operator, "/keys", KEY)
    assert (again.status_code, again.json()["key_id"]) == (201, made["key_id"])


async def test_the_path_counts_as_well_as_the_route(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    one = await post(client, operator, f"/keys/{shop.acme.key_ids['agent']}/rotation", {}, "r")
    assert one.status_code == 201
    other = await post(client, operator, f"/keys/{shop.acme.key_ids['other']}/rotation", {}, "r")
    assert code(other) == (422, "idempotency_key_reused")
    again = await post(client, operator, f"/keys/{shop.acme.key_ids['agent']}/rotation", {}, "r")
    made = one.json()
    del made["secret"]
    assert again.json() == {**made, "secret_shown_once": True}
    assert await keys_of(shop, shop.acme, "support-agent") == 2


async def test_tenants_policies_and_activations_take_a_key(client: Client, shop: Shop) -> None:
    author = shop.acme.tokens["author"]
    for token, path, body, status in (
        (shop.platform_token, "/tenants", {"tenant": "initech", "policy": "none"}, 201),
        (author, "/policies", {"files": dict(SHOP_FILES)}, 201),
        (author, "/policies/2/activation", ..., 200),
    ):
        first, again = await post(client, token, path, body, path), await post(client, token, path, body, path)
        assert (first.status_code, again.status_code, again.json()) == (status, status, first.json())
        assert ("idempotent-replayed" in first.headers, again.headers.get("idempotent-replayed")) == (False, "true")
    assert await shop.value("SELECT count(*) FROM placet.policy_versions WHERE tenant_id = $1", shop.acme.tenant_id) == 2
    activated = "SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'policy.activated'"
    assert await shop.value(activated, shop.acme.tenant_id) == 1


async def test_a_refusal_is_an_answer_like_another(client: Client, shop: Shop) -> None:
    first = await post(client, shop.platform_token, "/tenants", {"tenant": "acme"})
    again = await post(client, shop.platform_token, "/tenants", {"tenant": "acme"})
    assert code(first) == code(again) == (409, "tenant_exists")
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    invalid = await post(client, shop.acme.tokens["operator"], "/keys", {"subject": ""}, "k-2")
    assert code(invalid) == (422, "request_invalid")
    assert (await post(client, shop.acme.tokens["operator"], "/keys", {"subject": ""}, "k-2")).json() == invalid.json()


async def test_a_key_belongs_to_one_subject_of_one_tenant(client: Client, shop: Shop) -> None:
    made = [
        (await post(client, token, "/keys", KEY)).json()["key_id"]
        for token in (shop.acme.tokens["operator"], shop.globex.tokens["operator"])
    ]
    assert len(set(made)) == 2
    second = (await client.ask("POST", "/keys", shop.acme.tokens["operator"], {"subject": "omar", "roles": ["operator"]})).json()["secret"]
    third = await post(client, second, "/keys", KEY)
    assert (third.status_code, "idempotent-replayed" in third.headers) == (201, False)
    assert (await keys_of(shop, shop.acme), await keys_of(shop, shop.globex)) == (2, 1)


async def test_s12_1_who_may_not_make_the_request_gets_no_stored_answer(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    await post(client, operator, "/keys", KEY)
    # a key of the same subject that lacks the role
    weak = (await client.ask("POST", "/keys", operator, {"subject": "the-operator", "roles": ["auditor"]})).json()["secret"]
    assert code(await post(client, weak, "/keys", KEY)) == (403, "not_permitted")
    assert code(await post(client, weak + "x", "/keys", KEY)) == (401, "unauthenticated")
    await client.ask("DELETE", f"/keys/{shop.acme.key_ids['operator']}", operator)
    assert code(await post(client, operator, "/keys", KEY)) == (401, "unauthenticated")


@pytest.mark.parametrize("key", ["", "x" * 129, "a b", "a\tb", b"\xc3\xa9", b"a\x7f"], ids=repr)
async def test_what_is_no_key_is_refused_before_any_effect(client: Client, shop: Shop, key: str | bytes) -> None:
    answer = await post(client, shop.acme.tokens["operator"], "/keys", KEY, key)
    assert code(answer) == (422, "request_invalid")
    assert answer.json()["errors"] == [
        {"pointer": "/header/Idempotency-Key", "detail": "must be one header of 1 to 128 visible ASCII characters"}
    ]
    assert await keys_of(shop, shop.acme) == 0


async def test_two_keys_in_one_request_are_refused(client: Client, shop: Shop) -> None:
    headers = [("authorization", f"Bearer {shop.acme.tokens['operator']}"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = await client.post("/keys", json=KEY, headers=headers)
    assert code(answer) == (422, "request_invalid")
    assert await keys_of(shop, shop.acme) == 0


@pytest.mark.parametrize("key", ["!", "~" * 128, '"quoted"', "'OR'1'='1", "\\u0000%00"])
async def test_any_visible_ascii_is_a_key(client: Client, shop: Shop, key: str) -> None:
    first, again = [await post(client, shop.acme.tokens["operator"], "/keys", KEY, key) for _ in range(2)]
    assert (first.status_code, again.json()["key_id"]) == (201, first.json()["key_id"])
    assert await keys_of(shop, shop.acme) == 1


async def test_concurrent_duplicates_have_exactly_one_effect(client: Client, shop: Shop) -> None:
    operator = shop.acme.tokens["operator"]
    answers = await asyncio.gather(*(post(client, operator, "/keys", KEY) for _ in range(6)))
    assert await keys_of(shop, shop.acme) == 1
    made = [answer for answer in answers if answer.status_code == 201]
    assert sum("secret" in answer.json() for answer in made) == 1
    assert {answer.json()["key_id"] for answer in made} == {made[0].json()["key_id"]}
    for answer in answers:
        if answer.status_code != 201:
            assert code(answer) == (409, "idempotency_in_progress")
            assert answer.json()["retryable"] == "after_delay"


async def unanswered(client: Client, shop: Shop, age_s: int) -> None:
    """Leave a key as a request leaves it that died before its answer."""
    await post(client, shop.acme.tokens["operator"], "/keys", KEY)
    await shop.execute(
        "UPDATE placet.idempotency_keys SET answer_status = NULL, answer = NULL,"
        f" created_at = date_trunc('milliseconds', now()) - interval '{age_s} s'"
    )


async def test_a_request_that_still_runs_is_not_run_again(client: Client, shop: Shop) -> None:
    await unanswered(client, shop, 50)
    operator = shop.acme.tokens["operator"]
    assert code(await post(client, operator, "/keys", KEY)) == (409, "idempotency_in_progress")
    assert code(await post(client, operator, "/keys", {**KEY, "roles": ["user"]})) == (422, "idempotency_key_reused")
    assert await keys_of(shop, shop.acme) == 1


async def test_a_request_that_died_is_taken_over_after_a_minute_by_the_same_request_only(client: Client, shop: Shop) -> None:
    await unanswered(client, shop, 61)
    operator = shop.acme.tokens["operator"]
    assert code(await post(client, operator, "/keys", {**KEY, "roles": ["user"]})) == (422, "idempotency_key_reused")
    taken = await asyncio.gather(*(post(client, operator, "/keys", KEY) for _ in range(6)))
    assert sum("secret" in answer.json() for answer in taken) == 1
    assert await keys_of(shop, shop.acme) == 2
    again = await post(client, operator, "/keys", KEY)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")


@pytest.fixture
async def failing(settings: Settings, own_shop: Shop) -> AsyncIterator[Client]:
    """A service that can't store keys: a bug as far as the route is concerned."""
    await own_shop.execute("ALTER TABLE placet.api_keys ADD CONSTRAINT no_new_agents CHECK (subject <> 'new-agent')")
    async with serving(settings, own_shop) as client:
        yield client


async def test_a_failure_of_ours_frees_the_key(failing: Client, own_shop: Shop) -> None:
    operator = own_shop.acme.tokens["operator"]
    assert code(await post(failing, operator, "/keys", KEY)) == (500, "internal_error")
    assert code(await post(failing, operator, "/keys", KEY)) == (500, "internal_error")
    await own_shop.execute("ALTER TABLE placet.api_keys DROP CONSTRAINT no_new_agents")
    made = await post(failing, operator, "/keys", {**KEY, "roles": ["auditor"]})  # a free key is anybody's
    assert (made.status_code, made.json()["roles"]) == (201, ["auditor"])
    assert code(await post(failing, operator, "/keys", KEY)) == (422, "idempotency_key_reused")
    assert await keys_of(own_shop, own_shop.acme) == 1


async def test_s12_1_stored_answers_of_other_tenants_are_hidden_by_the_database(client: Client, shop: Shop) -> None:
    await post(client, shop.acme.tokens["operator"], "/keys", KEY)
    connection = await asyncpg.connect(driver_url(shop.url))
    try:
        assert await connection.fetchval("SELECT count(*) FROM placet.idempotency_keys") == 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("DELETE FROM placet.idempotency_keys")
    finally:
        await connection.close()


async def refusals(shop: Shop, tenant: Tenant) -> list[tuple[str, str]]:
    """Give the subject and code of a tenant's recorded refusals, in order."""
    rows = await shop.rows(
        "SELECT subject, body FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'request.refused' ORDER BY sequence", tenant.tenant_id
    )
    return [(row["subject"], json.loads(row["body"])["code"]) for row in rows]


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b'{"a":1,"a":2}', {}, (400, "body_malformed")),
        (b"", {}, (400, "body_malformed")),
        (b"{}" + b" " * 1_048_576, {}, (413, "body_too_large")),
        (b"{}", {"content-type": "text/plain"}, (415, "unsupported_media_type")),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_s10_1_a_refused_body_is_told_and_recorded_as_its_keys(
    client: Client, shop: Shop, body: bytes, headers: dict[str, str], said: tuple[int, str]
) -> None:
    operator, agent = shop.acme.tokens["operator"], shop.acme.tokens["agent"]
    for more in ({}, {"idempotency-key": "k"}):
        assert code(await client.ask("POST", "/keys", operator, body, headers={**headers, **more})) == said
    assert code(await client.ask("POST", "/keys", None, body, headers=headers)) == (401, "unauthenticated")
    assert code(await client.ask("POST", "/keys", agent, body, headers=headers)) == (403, "not_permitted")
    assert await refusals(shop, shop.acme) == [("the-operator", said[1])] * 2 + [("support-agent", "not_permitted")]
    assert await shop.value("SELECT count(*) FROM placet.idempotency_keys") == 0

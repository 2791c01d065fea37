"""What waits for a person, read (S7.4, API.md 1.3): reviewers whole, the asking agent without what reviewers see, nobody else at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import pytest

from app.domain.canonical import digest
from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.engine.shop import Shop, Tenant

REVIEWED = {"binding", "review", "seen_digest"}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def waiting(client: Client, tenant: Tenant, call_id: str = "call_02", **more: Any) -> dict[str, Any]:
    """Check a refund that needs a person and give the answer."""
    more = {"task_id": "task-17", "state_version": 4, **more}
    answer = (await client.check(tenant.tokens["agent"], call_id, arguments={"amount": 129.90}, **more)).json()
    assert answer["decision"] == "needs_user"
    return dict(answer)


async def test_s7_2_a_reviewer_sees_the_approval_whole(client: Client, shop: Shop) -> None:
    asked = await waiting(client, shop.acme)
    approval_id = asked["approval"]["approval_id"]
    answer = await client.ask("GET", f"/approvals/{approval_id}", shop.acme.tokens["reviewer"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    shown = answer.json()
    review, binding = shown.pop("review"), shown.pop("binding")
    assert shown.pop("seen_digest") == digest(review)
    assert shown == {
        "approval_id": approval_id,
        "kind": "tool_call",
        "status": "pending",
        "decision_id": asked["decision_id"],
        "requested_by": "support-agent",
        "on_behalf_of": {"id": "cust-77", "segment": "standard"},
        "session_id": "chat-1",
        "task_id": "task-17",
        "call_id": "call_02",
        "tool": "refund",
        "created_at": asked["decided_at"],
        "expires_at": asked["approval"]["expires_at"],
        "on_expiry": "refused",
        "quorum": {"required": 1, "received": 0, "roles": ["reviewer"]},
        "scope": [
            {"action": "refund", "resource": "order:A-1001", "constraints": {"amount": {"max": {"amount": "129.90", "currency": "EUR"}}}}
        ],
        "answers": [],
    }
    assert review["call"] == {"tool": "refund", "arguments": {"order_id": "A-1001", "amount": 129.9, "currency": "EUR", "cause": "damaged"}}
    assert review["why"] == [{"layer": "risk", "reason": "needs_human_review"}]
    assert review["side_effects"] == asked["side_effects"]
    assert review["risk"] == asked["risk"]
    assert set(binding) == {"bound_digest", "effects_digest", "policy_digest", "state_version"}
    assert (binding["effects_digest"], binding["state_version"]) == (asked["side_effects"]["digest"], 4)


async def test_s7_2_the_agent_that_asked_sees_it_without_what_reviewers_see(client: Client, shop: Shop) -> None:
    path = (await waiting(client, shop.acme))["approval"]["wait_url"].partition("?")[0]
    whole = (await client.ask("GET", path, shop.acme.tokens["reviewer"])).json()
    shown = (await client.ask("GET", path, shop.acme.tokens["agent"])).json()
    assert shown == {name: value for name, value in whole.items() if name not in REVIEWED}
    assert set(whole) >= REVIEWED


async def test_s12_1_an_approval_of_somebody_else_is_not_there(client: Client, shop: Shop) -> None:
    path = f"/approvals/{(await waiting(client, shop.acme))['approval']['approval_id']}"
    for token in (shop.acme.tokens["other"], shop.globex.tokens["reviewer"], shop.globex.tokens["agent"]):
        assert code(await client.ask("GET", path, token)) == (404, "not_found")
        assert code(await client.ask("GET", f"{path}?wait_s=60", token)) == (404, "not_found")
    for role in ("auditor", "author", "operator", "executor", "user"):
        assert code(await client.ask("GET", path, shop.acme.tokens[role])) == (403, "not_permitted")
    assert code(await client.ask("GET", path)) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "approval_id", ["nonsense", "0" * 36, "%00", "1" * 400, "be574e9f-f692-4788-9460-dbd666d020d1", "01a230d5-2fd8-7907-9af2-55e55f2a898g"]
)
async def test_what_is_no_approvals_id_is_not_there(client: Client, shop: Shop, approval_id: str) -> None:
    assert code(await client.ask("GET", f"/approvals/{approval_id}", shop.acme.tokens["reviewer"])) == (404, "not_found")


async def test_s7_3_a_pending_one_past_its_expiry_shows_expired(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    other_id = (await waiting(client, shop.acme, "call_03"))["approval"]["approval_id"]
    await shop.execute(f"UPDATE placet.approvals SET expires_at = now() WHERE approval_id = '{approval_id}'")
    reviewer = shop.acme.tokens["reviewer"]
    started = perf_counter()
    assert (await client.ask("GET", f"/approvals/{approval_id}?wait_s=30", reviewer)).json()["status"] == "expired"
    assert perf_counter() - started < 5

    async def listed(status: str) -> list[tuple[str, str]]:
        items = (await client.ask("GET", f"/approvals?status={status}", reviewer)).json()["items"]
        return [(item["approval_id"], item["status"]) for item in items]

    assert await listed("pending") == [(other_id, "pending")]
    assert await listed("expired") == [(approval_id, "expired")]
    assert await listed("approved") == []
    assert await shop.value(f"SELECT status FROM placet.approvals WHERE approval_id = '{approval_id}'") == "pending"


async def test_s7_4_a_long_poll_returns_as_soon_as_the_status_changes(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    started = perf_counter()
    poll = asyncio.create_task(client.ask("GET", f"/approvals/{approval_id}?wait_s=60", shop.acme.tokens["agent"]))
    await asyncio.sleep(0.3)
    assert not poll.done()
    transactions = await shop.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    assert transactions == 0
    await shop.execute(f"UPDATE placet.approvals SET status = 'cancelled' WHERE approval_id = '{approval_id}'")
    assert (await poll).json()["status"] == "cancelled"
    assert perf_counter() - started < 5


async def test_s7_4_a_long_poll_ends_when_its_time_is_over(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    started = perf_counter()
    assert (await client.ask("GET", f"/approvals/{approval_id}?wait_s=1", shop.acme.tokens["agent"])).json()["status"] == "pending"
    assert 1 <= perf_counter() - started < 5


async def test_a_service_that_stops_answers_whoever_waits(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    started = perf_counter()
    poll = asyncio.create_task(client.ask("GET", f"/approvals/{approval_id}?wait_s=60", shop.acme.tokens["agent"]))
    await asyncio.sleep(0.3)
    client.app.state.is_stopping = lambda: True
    assert (await poll).json()["status"] == "pending"
    assert perf_counter() - started < 5


async def test_s12_1_a_key_that_is_revoked_while_it_waits_reads_nothing(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    poll = asyncio.create_task(client.ask("GET", f"/approvals/{approval_id}?wait_s=2", shop.acme.tokens["agent"]))
    await asyncio.sleep(0.3)
    revoked = await client.ask("DELETE", f"/keys/{shop.acme.key_ids['agent']}", shop.acme.tokens["operator"])
    assert revoked.status_code == 200
    assert code(await poll) == (401, "unauthenticated")


@pytest.mark.parametrize("query", ["wait_s=61", "wait_s=-1", "wait_s=x", "wait_s=1e1", f"wait_s={'9' * 30}", f"wait_s={'9' * 5000}"])
async def test_a_wait_has_a_maximum(client: Client, shop: Shop, query: str) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    assert code(await client.ask("GET", f"/approvals/{approval_id}?{query}", shop.acme.tokens["agent"])) == (422, "request_invalid")


async def test_the_list_is_for_reviewers_in_pages_oldest_first_and_without_reviews(client: Client, shop: Shop) -> None:
    made = [(await waiting(client, shop.acme, f"call_{n}"))["approval"]["approval_id"] for n in range(5)]
    await waiting(client, shop.globex)
    reviewer = shop.acme.tokens["reviewer"]
    found: list[str] = []
    path = "/approvals?status=pending&limit=2"
    pages = 0
    while path:
        pages += 1
        page = (await client.ask("GET", path, reviewer)).json()
        assert all(not REVIEWED & set(item) for item in page["items"])
        found += [item["approval_id"] for item in page["items"]]
        path = f"/approvals?status=pending&limit=2&cursor={page['next_cursor']}" if "next_cursor" in page else ""
    assert (found, pages) == (made, 3)
    assert code(await client.ask("GET", "/approvals", shop.acme.tokens["agent"])) == (403, "not_permitted")


@pytest.mark.parametrize("query", ["status=waiting", "limit=0", "limit=201", "limit=x", "cursor=x", f"limit={'9' * 40}"])
async def test_a_list_that_makes_no_sense_is_refused(client: Client, shop: Shop, query: str) -> None:
    assert code(await client.ask("GET", f"/approvals?{query}", shop.acme.tokens["reviewer"])) == (422, "request_invalid")


async def test_answers_cannot_be_given_yet(client: Client, shop: Shop) -> None:
    approval_id = (await waiting(client, shop.acme))["approval"]["approval_id"]
    body = {"answer": "approved"}
    assert code(await client.ask("POST", f"/approvals/{approval_id}/answers", shop.acme.tokens["reviewer"], body)) == (404, "not_found")
    assert code(await client.ask("POST", f"/approvals/{approval_id}", shop.acme.tokens["reviewer"], body)) == (405, "method_not_allowed")
    assert await shop.value("SELECT status FROM placet.approvals") == "pending"

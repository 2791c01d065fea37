"""`/freezes`: operators stop a tenant, a principal, a session or a tool in the own tenant; the platform's in any (SPEC S12.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.api.test_openapi import as_the_contract_says
from tests.engine.shop import Shop

WORDS = "refund spike, looking into it"
TENANT = {"target": "tenant:acme", "reason": WORDS}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def test_a_tenant_is_frozen_and_goes_on_when_the_freeze_is_lifted(client: Client, shop: Shop) -> None:
    """API.md 3.4, over HTTP: the model is told to stop, and nobody but operators and auditors reads why."""
    operator, agent = shop.acme.tokens["operator"], shop.acme.tokens["agent"]
    made = await client.ask("POST", "/freezes", operator, TENANT)
    assert made.status_code == 201
    document = as_the_contract_says(made, "post", "/freezes")
    assert document == {
        "freeze_id": document["freeze_id"],
        "target": "tenant:acme",
        "stated_reason": WORDS,
        "by_platform": False,
        "created_by": "the-operator",
        "created_at": document["created_at"],
    }
    refused = await client.check(agent, "c1")
    assert (refused.status_code, refused.json()["reason"], refused.json()["refused_by"]) == (200, "tenant_frozen", "freeze")
    assert refused.json()["tool_result"]["content"] == {
        "guard_rejected": True,
        "reason": "tenant_frozen",
        "fix_hint": "an operator has stopped this service; tell the user and end here",
        "next_action": refused.json()["tool_result"]["content"]["next_action"],
    }
    assert WORDS not in refused.text
    stored = await client.ask("GET", f"/decisions/{refused.json()['decision_id']}", shop.acme.tokens["auditor"])
    assert (stored.json()["reason"], stored.json()["attempt"], WORDS in stored.text) == ("tenant_frozen", 0, False)
    path = f"/freezes/{document['freeze_id']}"
    lifted = await client.ask("DELETE", path, operator)
    assert lifted.status_code == 200
    assert as_the_contract_says(lifted, "delete", "/freezes/{freeze_id}") == {
        **document,
        "lifted_at": lifted.json()["lifted_at"],
        "lifted_by": "the-operator",
    }
    assert (await client.ask("DELETE", path, operator)).json() == lifted.json(), "lifting it again changes nothing"
    assert (await client.check(agent, "c1")).json()["decision"] == "accepted"
    assert (await client.ask("GET", "/audit/verification", shop.acme.tokens["auditor"])).json()["verified"] is True


async def test_freezes_are_listed_newest_first_in_pages(client: Client, shop: Shop) -> None:
    operator, auditor = shop.acme.tokens["operator"], shop.acme.tokens["auditor"]
    made = [(await client.ask("POST", "/freezes", operator, {"target": f"tool:t{n}", "reason": "r"})).json() for n in range(3)]
    lifted = (await client.ask("DELETE", f"/freezes/{made[1]['freeze_id']}", operator)).json()
    first = as_the_contract_says(await client.ask("GET", "/freezes?limit=2", auditor), "get", "/freezes")
    assert first["items"] == [made[2], lifted]
    rest = (await client.ask("GET", f"/freezes?limit=2&cursor={first['next_cursor']}", auditor)).json()
    assert rest == {"items": [made[0]]}
    assert (await client.ask("GET", "/freezes?in_force=true", operator)).json() == {"items": [made[2], made[0]]}
    assert (await client.ask("GET", "/freezes", shop.globex.tokens["operator"])).json() == {"items": []}
    assert code(await client.ask("DELETE", f"/freezes/{made[0]['freeze_id']}", shop.globex.tokens["operator"])) == (404, "not_found")
    assert code(await client.ask("DELETE", "/freezes/x", operator)) == (404, "not_found")


async def test_an_operator_freezes_in_the_own_tenant_only_and_the_platforms_anywhere(client: Client, shop: Shop) -> None:
    """S12.1: and what the platform froze, the tenant's own operator can't lift."""
    operator, platform = shop.acme.tokens["operator"], shop.platform_token
    other = await client.ask("POST", "/freezes", operator, {**TENANT, "tenant": "globex"})
    assert code(other) == (403, "not_permitted")
    named = await client.ask("POST", "/freezes", operator, {"target": "tenant:globex", "reason": "r"})
    assert code(named) == (422, "request_invalid")
    assert named.json()["errors"] == [{"pointer": "/target", "detail": "is another tenant; here it can only be `tenant:acme`"}]
    assert code(await client.ask("GET", "/freezes?tenant=globex", operator)) == (403, "not_permitted")
    made = await client.ask("POST", "/freezes", platform, {**TENANT, "tenant": "acme"})
    assert (made.status_code, made.json()["by_platform"]) == (201, True)
    assert (await client.check(shop.acme.tokens["agent"], "c1")).json()["reason"] == "tenant_frozen"
    assert (await client.check(shop.globex.tokens["agent"], "c1")).json()["decision"] == "accepted"
    path = f"/freezes/{made.json()['freeze_id']}"
    assert code(await client.ask("DELETE", path, operator)) == (403, "not_permitted")
    assert (await client.ask("GET", "/freezes?tenant=acme", platform)).json()["items"] == [made.json()]
    assert (await client.ask("DELETE", f"{path}?tenant=acme", platform)).status_code == 200
    assert (await client.check(shop.acme.tokens["agent"], "c1")).json()["decision"] == "accepted"
    unknown = await client.ask("POST", "/freezes", platform, {"target": "tool:refund", "reason": "r", "tenant": "nobody"})
    assert code(unknown) == (404, "not_found")


@pytest.mark.parametrize(
    "target", ["acme", "tenant:", "order:A-1001", "tool:", "tool:a b", "session:", "session:a\u200bb", "principal:" + "p" * 129, ":x", ""]
)
async def test_a_target_that_no_call_could_have_is_refused(client: Client, shop: Shop, target: str) -> None:
    answer = await client.ask("POST", "/freezes", shop.acme.tokens["operator"], {"target": target, "reason": "r"})
    assert code(answer) == (422, "request_invalid")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/target"]
    assert await shop.value("SELECT count(*) FROM placet.freezes") == 0


@pytest.mark.parametrize("target", ["principal:" + "p" * 128, "session:a:b/c é", "tool:search_order"])
async def test_a_target_may_have_any_id_that_a_call_can(client: Client, shop: Shop, target: str) -> None:
    answer = await client.ask("POST", "/freezes", shop.acme.tokens["operator"], {"target": target, "reason": "r"})
    assert (answer.status_code, answer.json()["target"]) == (201, target)


@pytest.mark.parametrize("reason", ["", "x" * 501, None, 1])
async def test_a_freeze_says_why(client: Client, shop: Shop, reason: object) -> None:
    answer = await client.ask("POST", "/freezes", shop.acme.tokens["operator"], {"target": "tool:refund", "reason": reason})
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/reason"]


async def test_the_same_request_freezes_once(client: Client, shop: Shop) -> None:
    """API.md 0.1: Idempotency-Key, as on other POSTs."""
    headers = {"idempotency-key": "freeze-1"}
    answers = [await client.ask("POST", "/freezes", shop.acme.tokens["operator"], TENANT, headers=headers) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert await shop.value("SELECT count(*) FROM placet.freezes") == 1

"""Faults of freezing and revoking that others shipped: a right that is gone, and is still served from a memory elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.cases.stage import CUSTOMER, Stage, Tenant, call, changed, written

CONNECTIONS = 16
"""Each a connection of its own, so that both workers have some."""


@pytest.fixture
async def clients(stage: Stage) -> AsyncIterator[list[httpx.AsyncClient]]:
    made = [httpx.AsyncClient(base_url=stage.service.url, timeout=20, trust_env=False) for _ in range(CONNECTIONS)]
    yield made
    for client in made:
        await client.aclose()


async def _everywhere(tenant: Tenant, clients: list[httpx.AsyncClient], session: str = "chat-1") -> set[tuple[str, str, bool]]:
    """Ask for a refund of one cent on every connection, each under an order and a call id of its own."""
    key = await tenant.key()

    async def ask(number: int, client: httpx.AsyncClient) -> tuple[str, str, bool]:
        arguments = {"order_id": f"A-1{number:03}", "amount": 1, "currency": "EUR", "cause": "damaged"}
        document = call("refund", arguments, session_id=session, on_behalf_of=CUSTOMER)
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        answer = await client.post("/tool-calls/check", content=written(document), headers=headers)
        found = json.loads(answer.text)
        return found["decision"], found["reason"], found["execution_permitted"]

    return set(await asyncio.gather(*(ask(number, client) for number, client in enumerate(clients))))


async def _warm(stage: Stage, clients: list[httpx.AsyncClient]) -> Tenant:
    """Give a tenant whose right to refund every worker knows by heart."""
    tenant = await stage.tenant(
        changed("tools/refund.yaml", ("require: history.same_refund.count == 0", "require: history.same_refund.count >= 0"))
    )
    for number in range(CONNECTIONS):
        await tenant.order(f"A-1{number:03}", 129_90)
    for _ in range(2):
        assert await _everywhere(tenant, clients) == {("accepted", "within_policy", True)}
    return tenant


@pytest.mark.parametrize("kind", ["tenant", "principal", "session", "tool"])
async def test_ps_13_what_is_frozen_is_denied_at_once_on_every_worker(stage: Stage, clients: list[httpx.AsyncClient], kind: str) -> None:
    """S12.3: the very next call on every connection; and when it is lifted, the next one is decided again."""
    tenant = await _warm(stage, clients)
    target = {"tenant": tenant.name, "principal": "the-agent", "session": "chat-1", "tool": "refund"}[kind]
    for _ in range(3):
        frozen = await stage.post("/freezes", await tenant.key("operator"), {"target": f"{kind}:{target}", "reason": "looking into it"})
        assert frozen.status == 201, frozen.text
        assert await _everywhere(tenant, clients) == {("denied", f"{kind}_frozen", False)}
        if kind == "session":
            assert await _everywhere(tenant, clients, "chat-2") == {("accepted", "within_policy", True)}
        lifted = await stage.send("DELETE", f"/freezes/{frozen['freeze_id']}", await tenant.key("operator"), None)
        assert lifted.status == 200
        assert await _everywhere(tenant, clients) == {("accepted", "within_policy", True)}
    await tenant.is_sound()


async def test_ps_13_what_a_policy_no_longer_grants_is_denied_at_once_on_every_worker(
    stage: Stage, clients: list[httpx.AsyncClient]
) -> None:
    tenant = await _warm(stage, clients)
    await tenant.activate(changed("grants.yaml", ('amount: "15000.00"', 'amount: "0.50"')))
    assert await _everywhere(tenant, clients) == {("denied", "not_granted", False)}


async def test_ps_13_a_freeze_while_calls_are_on_their_way_leaves_no_permit_behind_it(
    stage: Stage, clients: list[httpx.AsyncClient]
) -> None:
    """Whatever was in flight: in the chain no accepted call stands behind the freeze, on whichever worker it was."""
    tenant = await _warm(stage, clients)
    for number in range(4):
        flight = asyncio.create_task(_everywhere(tenant, clients))
        await asyncio.sleep(0.003 * number)
        frozen = await stage.post(
            "/freezes", await tenant.key("operator"), {"target": f"tenant:{tenant.name}", "reason": "looking into it"}
        )
        assert await _everywhere(tenant, clients) == {("denied", "tenant_frozen", False)}
        assert await flight <= {("denied", "tenant_frozen", False), ("accepted", "within_policy", True)}
        behind = await tenant.rows(
            "SELECT r.sequence FROM placet.audit_rows r WHERE r.tenant_id = $1 AND r.decision = 'accepted' AND r.sequence >"
            " (SELECT max(sequence) FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'freeze.set')"
        )
        assert behind == []
        assert (await stage.send("DELETE", f"/freezes/{frozen['freeze_id']}", await tenant.key("operator"), None)).status == 200
    await tenant.is_sound()

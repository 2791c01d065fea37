"""`/healthz`, `/readyz`, `/metrics`: no key, no tenant's data, and true numbers (SPEC S11.1, S11.4)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.engine.shop import Shop

CHECKS = {"database", "migrations", "role", "partitions", "policy", "functions"}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def metric(client: Client, name: str) -> float:
    answer = await client.ask("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = re.search(rf"^{re.escape(name)} (\S+)$", answer.text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_a_whole_service_is_ready(client: Client) -> None:
    assert (await client.ask("GET", "/healthz")).json() == {"status": "ok"}
    ready = await client.ask("GET", "/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "checks": dict.fromkeys(CHECKS, "ok")})


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ("UPDATE placet.schema_version SET version_num = '0000'", "migrations", "run `placet migrate`"),
        ("ALTER ROLE placet_app BYPASSRLS", "role", "bypasses row level security"),
        ("UPDATE placet.tenants SET active_policy_version = NULL WHERE name = 'platform'", "policy", "no policy is active"),
    ],
)
async def test_what_is_not_as_it_should_be_is_named(own_shop: Shop, settings: Settings, change: str, check: str, says: str) -> None:
    """S11.4: 503 with Retry-After, and the process is still alive."""
    async with serving(settings, own_shop) as client:
        try:
            await own_shop.execute(change)
            ready = await client.ask("GET", "/readyz")
        finally:
            await own_shop.execute("ALTER ROLE placet_app NOBYPASSRLS")
        assert (ready.status_code, ready.json()["status"], ready.headers["retry-after"]) == (503, "not_ready", "2")
        wrong = {name: text for name, text in ready.json()["checks"].items() if text != "ok"}
        assert set(wrong) == {check}
        assert says in wrong[check]
        assert (await client.ask("GET", "/healthz")).status_code == 200


async def test_next_months_partitions_are_part_of_being_ready(own_shop: Shop, settings: Settings) -> None:
    """S10.5: there is no default partition, so a month that begins without one would refuse everything."""
    name = await own_shop.value("SELECT to_char((now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM')")
    async with serving(settings, own_shop) as client:
        await own_shop.execute(f"DROP TABLE placet.audit_payloads_{name}")
        assert "partitions are missing" in (await client.ask("GET", "/readyz")).json()["checks"]["partitions"]
        await own_shop.execute("SELECT placet.ensure_partitions()")
        assert (await client.ask("GET", "/readyz")).status_code == 200


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ("DROP FUNCTION placet.dry_run", {"functions"}),
        ("DROP SCHEMA placet CASCADE", CHECKS - {"database"}),
    ],
)
async def test_what_is_gone_is_part_of_being_ready(own_shop: Shop, settings: Settings, change: str, wrong: set[str]) -> None:
    """S11.4: the rest of the database may answer while the decision's functions don't; that is 503, and no failure of ours."""
    async with serving(settings, own_shop) as client:
        await own_shop.execute(change)
        ready = await client.ask("GET", "/readyz")
        assert ready.status_code == 503
        assert {name for name, text in ready.json()["checks"].items() if text != "ok"} == wrong


async def test_decisions_are_counted_by_tool_decision_reason_and_layer(client: Client, shop: Shop) -> None:
    """S11.1: a replay is no decision; a tool that the policy doesn't have is `unknown`."""
    token = shop.acme.tokens["agent"]
    for call_id, more in (("c1", {}), ("c1", {}), ("c2", {"arguments": {"amount": 12990}}), ("c3", {"tool": "transfer_everything"})):
        await client.check(token, call_id, **more)
    labels = 'placet_decisions_total{{decision="{}",layer="{}",reason="{}",tool="{}"}}'
    assert await metric(client, labels.format("accepted", "holds", "within_policy", "refund")) == 1
    assert await metric(client, labels.format("denied", "semantic", "amount_exceeds_refundable", "refund")) == 1
    assert await metric(client, labels.format("denied", "static", "tool_unknown", "unknown")) == 1
    assert "transfer_everything" not in (await client.ask("GET", "/metrics")).text
    assert await metric(client, 'placet_layer_seconds_count{layer="semantic"}') == 2


async def test_the_databases_numbers_are_those_of_now(client: Client, shop: Shop) -> None:
    await client.check(shop.acme.tokens["agent"], "c1")
    await client.check(shop.acme.tokens["agent"], "c2", arguments={"order_id": "A-1007", "amount": 145.05})
    assert await metric(client, "placet_holds_open") == 2
    assert await metric(client, "placet_approvals_waiting") == 1
    assert await metric(client, "placet_policy_version") == 1
    assert await metric(client, "placet_database_up") == 1
    assert await metric(client, "placet_chain_rows") == await shop.value("SELECT count(*) FROM placet.audit_rows")


async def test_nothing_that_is_sent_becomes_a_label(client: Client, shop: Shop) -> None:
    """S11.1: paths, methods, reasons and ids of callers stay out."""
    marks = ["mark-in-session", "mark-in-path", "mark-in-argument", "MARKMETHOD", "cust-77", "A-1001", "support-agent", "acme"]
    await client.check(shop.acme.tokens["agent"], "c1", session_id="mark-in-session", arguments={"note": "mark-in-argument"})
    await client.ask("GET", "/mark-in-path", shop.acme.tokens["agent"])
    await client.ask("MARKMETHOD", "/healthz")
    text = (await client.ask("GET", "/metrics")).text
    assert [mark for mark in marks if mark in text] == []
    assert 'route="unmatched"' in text
    assert 'route="/tool-calls/check"' in text


async def test_refused_and_unauthenticated_requests_are_counted(client: Client, shop: Shop) -> None:
    """S10.1: of those without a key one row in ten seconds says how many there were."""
    for _ in range(3):
        await client.ask("POST", "/tool-calls/check", "nobody", {})
    await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], b"{")
    assert await metric(client, "placet_unauthenticated_total") == 3
    assert await metric(client, 'placet_refused_requests_total{code="body_malformed"}') == 1
    sampled = await shop.rows(
        "SELECT body FROM placet.audit_rows WHERE event = 'request.refused' AND tenant_id = '00000000-0000-0000-0000-000000000000'"
    )
    assert len(sampled) == 1
    assert '"code":"unauthenticated"' in sampled[0]["body"]


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/healthz", 405, "method_not_allowed"),
        ("GET", "/tool-calls/check", 405, "method_not_allowed"),
    ],
)
async def test_what_is_no_route_is_a_problem(client: Client, method: str, path: str, status: int, problem: str) -> None:
    assert code(await client.ask(method, path)) == (status, problem)

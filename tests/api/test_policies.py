"""`/policies`: immutable versions, activation and rollback at once in every worker, a broken bundle refused whole (SPEC S6.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.settings import Settings
from tests.api.serving import Client, code, serving
from tests.engine.shop import SHOP_FILES, Shop, Tenant, changed

NARROW = changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00"', 'amount: "10.00"'))


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def store(client: Client, tenant: Tenant, files: dict[str, str]) -> dict[str, Any]:
    answer = await client.ask("POST", "/policies", tenant.tokens["author"], {"files": files})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def events(shop: Shop, tenant: Tenant) -> list[dict[str, Any]]:
    rows = await shop.rows("SELECT body FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence", tenant.tenant_id)
    return [json.loads(row["body"]) for row in rows]


async def test_activation_and_rollback_take_effect_at_once_in_another_worker(settings: Settings, shop: Shop) -> None:
    """S6.3: storing changes nothing yet; the very next call in any worker is decided by the activated version."""
    acme = shop.acme
    async with serving(settings, shop) as one, serving(settings, shop) as two:
        assert (await two.check(acme.tokens["agent"], "c1")).json()["policy_version"] == 1
        stored = await store(one, acme, NARROW)
        assert (stored["version"], stored["active"]) == (2, False)
        assert (await two.check(acme.tokens["agent"], "c2", arguments={"order_id": "A-1002"})).json()["decision"] == "accepted"
        activated = await one.ask("POST", "/policies/2/activation", acme.tokens["operator"])
        assert activated.json() == {"version": 2, "digest": stored["digest"], "active": True}
        for worker, call_id in ((two, "c3"), (one, "c4")):
            found = (await worker.check(acme.tokens["agent"], call_id, arguments={"order_id": "A-1007"})).json()
            assert (found["reason"], found["policy_version"]) == ("not_granted", 2)
            assert found["cuts"][0]["constraint"] == "amount"
        assert (await two.ask("POST", "/policies/1/activation", acme.tokens["author"])).status_code == 200
        found = (await one.check(acme.tokens["agent"], "c5", arguments={"order_id": "A-1007"})).json()
        assert (found["decision"], found["policy_version"]) == ("accepted", 1)
        assert (await one.check(shop.globex.tokens["agent"], "c1")).json()["policy_version"] == 1
    activations = [
        (row["policy_version"], row["actor"]["subject"]) for row in await events(shop, acme) if row["event"] == "policy.activated"
    ]
    assert activations == [(2, "the-operator"), (1, "the-author")]


async def test_versions_are_listed_newest_first(client: Client, shop: Shop) -> None:
    await store(client, shop.acme, NARROW)
    await store(client, shop.acme, dict(SHOP_FILES))
    first = (await client.ask("GET", "/policies?limit=2", shop.acme.tokens["author"])).json()
    assert [(item["version"], item["active"], item["name"]) for item in first["items"]] == [(3, False, "shop"), (2, False, "shop")]
    rest = (await client.ask("GET", f"/policies?limit=2&cursor={first['next_cursor']}", shop.acme.tokens["operator"])).json()
    assert [(item["version"], item["active"], item["created_by"]) for item in rest["items"]] == [(1, True, "placet")]
    assert "next_cursor" not in rest
    assert first["items"][0]["digest"] == rest["items"][0]["digest"], "the same files have the same digest"
    theirs = (await client.ask("GET", "/policies", shop.globex.tokens["author"])).json()
    assert [item["version"] for item in theirs["items"]] == [1]


BROKEN: list[tuple[str, dict[str, str], str]] = [
    ("not yaml", {**SHOP_FILES, "grants.yaml": "grants: [\n"}, "grants.yaml:"),
    (
        "a misspelt fact",
        changed(SHOP_FILES, "tools/refund.yaml", ("require: order.status in", "require: order.state in")),
        "tools/refund.yaml:",
    ),
    ("an unknown key", {**SHOP_FILES, "bundle.yaml": SHOP_FILES["bundle.yaml"] + "\nsurprise: 1\n"}, "bundle.yaml:"),
    (
        "fewer layers",
        changed(SHOP_FILES, "tools/refund.yaml", ("effect_class: money ", "effect_class: money\nlayers: [static, scope] ")),
        "tools/refund.yaml:",
    ),
    ("no tool", {name: text for name, text in SHOP_FILES.items() if not name.startswith("tools/")}, "tools/"),
    ("a path out of the bundle", {**SHOP_FILES, "../../etc/passwd.yaml": "x: 1"}, "passwd"),
]


@pytest.mark.parametrize(("_name", "files", "place"), BROKEN, ids=[broken[0] for broken in BROKEN])
async def test_a_broken_bundle_is_refused_whole(client: Client, shop: Shop, _name: str, files: dict[str, str], place: str) -> None:
    """S6.3: 422 that names file and line and what was expected; nothing is stored, and the active one stays."""
    answer = await client.ask("POST", "/policies", shop.acme.tokens["author"], {"files": files})
    assert code(answer) == (422, "policy_invalid")
    details = [error["detail"] for error in answer.json()["errors"]]
    assert any(place in detail and "; expected " in detail for detail in details), details
    listed = (await client.ask("GET", "/policies", shop.acme.tokens["author"])).json()["items"]
    assert [(item["version"], item["active"]) for item in listed] == [(1, True)]
    assert (await client.check(shop.acme.tokens["agent"], "c1")).json()["policy_version"] == 1
    assert [row["code"] for row in await events(shop, shop.acme) if row["event"] == "request.refused"] == ["policy_invalid"]


async def test_a_faults_line_is_the_line(client: Client, shop: Shop) -> None:
    text = SHOP_FILES["tools/refund.yaml"]
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "require: history.same_refund.count == 0" in row)
    files = changed(
        SHOP_FILES, "tools/refund.yaml", ("require: history.same_refund.count == 0", "require: history.same_refund.counts == 0")
    )
    answer = await client.ask("POST", "/policies", shop.acme.tokens["author"], {"files": files})
    assert answer.json()["errors"][0]["detail"].startswith(f"tools/refund.yaml:{line}:")


async def test_a_version_that_is_not_there_cannot_be_activated(client: Client, shop: Shop) -> None:
    """TA-06: nor another tenant's."""
    await store(client, shop.globex, NARROW)
    for version in (2, 99, 2**31 - 1):
        assert code(await client.ask("POST", f"/policies/{version}/activation", shop.acme.tokens["author"])) == (404, "not_found")
    for version in ("0", "-1", "x", str(2**31)):
        assert code(await client.ask("POST", f"/policies/{version}/activation", shop.acme.tokens["author"])) == (422, "request_invalid")
    assert (await client.check(shop.acme.tokens["agent"], "c1")).json()["policy_version"] == 1


@pytest.mark.parametrize(
    "body", [{}, {"files": {}}, {"files": []}, {"files": {"a.yaml": 1}}, {"files": dict(SHOP_FILES), "activate": True}, []]
)
async def test_a_request_that_is_no_bundle_is_refused(client: Client, shop: Shop, body: object) -> None:
    assert code(await client.ask("POST", "/policies", shop.acme.tokens["author"], body)) == (422, "request_invalid")


async def test_a_version_never_changes(client: Client, shop: Shop) -> None:
    """S6.3: the same files again are a new version beside the old one."""
    first, second = await store(client, shop.acme, NARROW), await store(client, shop.acme, NARROW)
    assert (first["version"], second["version"], first["digest"] == second["digest"]) == (2, 3, True)


async def test_history_counts_across_versions(client: Client, shop: Shop) -> None:
    """S3.5: a version whose first history rule is new sees the calls that were decided before it."""
    files = changed(SHOP_FILES, "tools/refund.yaml", ("match: [/order_id, /amount, /currency]", "match: [/order_id, /cause]"))
    assert (await client.check(shop.acme.tokens["agent"], "c1")).json()["decision"] == "accepted"
    version = (await store(client, shop.acme, files))["version"]
    await client.ask("POST", f"/policies/{version}/activation", shop.acme.tokens["author"])
    found = (await client.check(shop.acme.tokens["agent"], "c2", arguments={"amount": 5})).json()
    assert (found["reason"], found["policy_version"]) == ("already_refunded", 2)

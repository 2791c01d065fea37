"""Faults of tenancy and authentication that others shipped: one tenant in another's data, keys that outlive their revocation."""

from __future__ import annotations

import asyncio
import time
import uuid

import httpx
import pytest

from tests.cases.stage import BOOTSTRAP_KEY, CUSTOMER, SHOP, Answer, Stage, Tenant, Text, call, changed, said, together, with_tool

ACCEPTED = ("accepted", "within_policy")
NOT_FOUND = ("404", "not_found")
INVALID = ("422", "request_invalid")
UNAUTHENTICATED = ("401", "unauthenticated")
ROLES = ("agent", "executor", "reviewer", "user", "auditor", "author", "operator")


async def _two(stage: Stage) -> tuple[Tenant, Tenant]:
    """Give two tenants whose orders have the same names; the first has made a decision that holds and one that waits for a person."""
    first, second = await stage.tenant(), await stage.tenant()
    for tenant in (first, second):
        await tenant.order("A-1001", 129_90)
    return first, second


async def _stored(tenant: Tenant) -> list[list[dict[str, object]]]:
    """Give all that is stored of a tenant but its audit of reads."""
    tables = (
        "tenants",
        "api_keys",
        "policy_versions",
        "decisions",
        "claims",
        "accounts",
        "holds",
        "approvals",
        "audit_rows",
        "chain_heads",
    )
    return [await tenant.rows(f"SELECT * FROM placet.{table} WHERE tenant_id = $1 ORDER BY 1, 2, 3") for table in tables]


async def test_ta_01_no_role_of_another_tenant_sees_or_changes_anything(stage: Stage) -> None:
    """404 for every id of another tenant, empty lists, the row unchanged, and the attempt is a row of the one who tried."""
    first, second = await _two(stage)
    decision = await first.refund("A-1001", "20.00")
    waiting = await first.refund("A-1001", "109.90")
    assert waiting.said == ("needs_user", "needs_human_review")
    approval = waiting["approval"]["approval_id"]
    for role in ROLES:
        await second.key(role)
        await first.key(role)
    before = await _stored(first)
    own = {str(row["key_id"]) for row in await second.rows("SELECT key_id FROM placet.api_keys WHERE tenant_id = $1")}
    for role in ROLES:
        key = second.keys[f"the-{role}"]
        for path in (f"/decisions/{decision['decision_id']}", f"/decisions/{waiting['decision_id']}", f"/approvals/{approval}"):
            rows = len(await second.events("request.refused"))
            answer = await stage.get(path, key)
            assert answer.status in (403, 404), (role, path)
            assert decision["decision_id"] not in answer.text
            assert len(await second.events("request.refused")) == rows + 1
        for path in ("/approvals", "/keys", "/policies"):
            answer = await stage.get(path, key)
            assert answer.status in (200, 403), (role, path)
            if answer.status == 200:
                assert path != "/approvals" or answer["items"] == []
                assert path != "/keys" or {item["key_id"] for item in answer["items"]} <= own
                assert path != "/policies" or [item["version"] for item in answer["items"]] == [1]
        answer = await stage.get("/audit/verification", key)
        assert answer.status == (200 if role == "auditor" else 403)
        assert answer.status != 200 or answer["chain"] == second.name
        metrics = await stage.send("GET", "/metrics", key, None)
        assert metrics.status == 200
        assert first.name not in metrics.text
        assert str(first.tenant_id) not in metrics.text
    exact = {
        ("executor", f"/decisions/{decision['decision_id']}"),
        ("auditor", f"/decisions/{decision['decision_id']}"),
        ("agent", f"/decisions/{decision['decision_id']}"),
        ("reviewer", f"/approvals/{approval}"),
        ("agent", f"/approvals/{approval}"),
    }
    for role, path in exact:
        assert (await stage.get(path, second.keys[f"the-{role}"])).said == NOT_FOUND, (role, path)
        assert (await stage.get(path, first.keys[f"the-{role}"])).status == 200, (role, path)
    assert await _stored(first) == before


async def test_ta_01_the_same_ids_in_two_tenants_are_two_things(stage: Stage) -> None:
    """Sessions, call ids, orders, accounts and policy versions have the same names; each tenant has its own, in one batch too."""
    first, second = await _two(stage)
    answers = await together(tenant.refund("A-1001", "60.00", "c1", session_id="s1") for tenant in (first, second) for _ in range(10))
    for tenant, own in ((first, answers[:10]), (second, answers[10:])):
        assert said(own) == {ACCEPTED: 10}
        assert len({answer["decision_id"] for answer in own}) == 1
        assert {answer["audit"]["chain"] for answer in own} == {tenant.name}
        assert await tenant.held("resource:order:A-1001") == 60_00
        await tenant.is_sound()
    assert answers[0]["decision_id"] != answers[10]["decision_id"]


@pytest.mark.parametrize("place", ["body", "query", "on_behalf_of"])
async def test_ta_03_nothing_that_is_sent_names_the_tenant_or_the_role(stage: Stage, place: str) -> None:
    """S12.4: an unknown field is refused, not ignored; the first tenant's agent stays that."""
    first, second = await _two(stage)
    before = await _stored(second)
    for field in ("tenant", "tenant_id", "role", "roles", "principal", "subject", "permissions", "approved", "is_admin"):
        document, query = call("search_order", {"order_id": "A-1001"}, on_behalf_of=dict(CUSTOMER)), ""
        match place:
            case "body":
                document[field] = second.name
            case "query":
                query = f"?{field}={second.name}"
            case "on_behalf_of":
                document["on_behalf_of"][field] = second.name
        answer = await stage.post(f"/tool-calls/check{query}", await first.key(), document)
        assert answer.said == INVALID, field
        pointer = {"body": f"/{field}", "query": "/query", "on_behalf_of": f"/on_behalf_of/{field}"}[place]
        assert answer["errors"][0]["pointer"] == pointer
        assert answer["execution_permitted"] is False
        if place == "body" and field.startswith("tenant"):
            assert answer["errors"][0]["detail"] == "this field is unknown; the key names the tenant"
    assert await _stored(second) == before
    assert await first.decisions() == 0


async def test_ta_03_headers_and_arguments_are_ignored_or_just_arguments(stage: Stage) -> None:
    """A header that names a tenant, a user or a role has no meaning; in a free tool's arguments it is data."""
    first, second = await stage.tenant(with_tool("note", "{type: object}")), await stage.tenant()
    before = await _stored(second)
    headers = {
        "x-tenant-id": second.name,
        "x-tenant": str(second.tenant_id),
        "x-user": "admin",
        "x-role": "operator",
        "x-forwarded-user": "root",
    }
    document = call("note", {"tenant_id": second.name, "context": {"tenant": second.name, "roles": ["operator"]}})
    answer = await stage.post("/tool-calls/check", await first.key(), document, **headers)
    assert answer.said == ACCEPTED
    assert answer["audit"]["chain"] == first.name
    refused = await first.call(
        "refund", {"order_id": "A-1001", "amount": 1, "currency": "EUR", "cause": "damaged", "tenant_id": second.name}
    )
    assert refused.said == ("denied", "schema_invalid")
    assert refused["fix_hint"]["field"] == "/tenant_id"
    (row,) = [row for row in await first.events("tool_call.decided") if row["tool"] == "note"]
    assert row["actor"] == {"subject": "the-agent", "roles": ["agent"]}
    assert await _stored(second) == before


async def test_ta_03_an_operator_makes_keys_of_the_own_tenant_only(stage: Stage) -> None:
    first, second = await _two(stage)
    before = await _stored(second)
    for name in (second.name, "platform", str(second.tenant_id), ""):
        answer = await stage.post("/keys", await first.key("operator"), {"subject": "x", "roles": ["operator"], "tenant": name})
        assert answer.status in (403, 422), name
    assert (await stage.post("/tenants", await first.key("operator"), {"tenant": "mine"})).said == ("403", "not_permitted")
    assert await _stored(second) == before
    assert await first.value("SELECT count(*) FROM placet.api_keys WHERE tenant_id = $1 AND subject = 'x'") == 0


async def _everywhere(stage: Stage, clients: list[httpx.AsyncClient], key: str) -> list[int]:
    """Ask on connections that are spread over the workers and stay open."""

    async def ask(client: httpx.AsyncClient, number: int) -> int:
        headers = {"authorization": f"Bearer {key}"}
        if number % 3:
            document = call("search_order", {"order_id": "A-1001"})
            return (await client.post("/tool-calls/check", json=document, headers=headers)).status_code
        return (await client.get(f"/decisions/{uuid.uuid4()}", headers=headers)).status_code

    return list(await asyncio.gather(*(ask(client, number) for number, client in enumerate(clients))))


@pytest.fixture
async def clients(stage: Stage) -> list[httpx.AsyncClient]:
    """Give 24 connections: that all of them lead to one of two workers happens once in eight million runs."""
    return [httpx.AsyncClient(base_url=stage.service.url, verify=False, timeout=20, trust_env=False) for _ in range(24)]


@pytest.mark.parametrize("how", ["revoked", "rotated", "expired"])
async def test_ta_04_a_key_that_ended_opens_nothing_anywhere_at_once(stage: Stage, clients: list[httpx.AsyncClient], how: str) -> None:
    """S12.1: every worker knows the key by heart; the very next request on every connection is 401. No bound, no delay."""
    tenant = await stage.tenant()
    operator = await tenant.key("operator")
    try:
        for number in range(3):
            subject = f"agent-{number}"
            key = await tenant.key("agent", subject, **({"expires_in_s": 2} if how == "expired" else {}))
            used = await _everywhere(stage, clients, key)
            assert {status for index, status in enumerate(used) if index % 3} == {200}
            match how:
                case "revoked":
                    ended = await stage.send("DELETE", f"/keys/{tenant.key_ids[subject]}", operator, None)
                    assert (ended.status, ended["revoked_at"] is not None) == (200, True)
                case "rotated":
                    ended = await stage.post(f"/keys/{tenant.key_ids[subject]}/rotation", operator, {"overlap_s": 0})
                    assert ended.status == 201
                    assert set(await _everywhere(stage, clients, ended["secret"])) == {200, 404}
                case "expired":
                    await asyncio.sleep(2.01)
            assert set(await _everywhere(stage, clients, key)) == {401}
            if how == "expired":
                break
    finally:
        for client in clients:
            await client.aclose()


async def test_ta_04_revoked_while_calls_are_on_their_way(stage: Stage, clients: list[httpx.AsyncClient]) -> None:
    """Whatever was in flight: after the revocation's answer nothing new is decided, and nothing that came before is half done."""
    tenant = await stage.tenant()
    operator = await tenant.key("operator")
    try:
        for number in range(8):
            subject = f"agent-{number}"
            key = await tenant.key("agent", subject)
            flight = asyncio.create_task(_everywhere(stage, clients, key))
            await asyncio.sleep(0.002 * number)
            assert (await stage.send("DELETE", f"/keys/{tenant.key_ids[subject]}", operator, None)).status == 200
            at = await tenant.value("SELECT sequence FROM placet.chain_heads WHERE tenant_id = $1")
            late, statuses = await _everywhere(stage, clients, key), await flight
            assert set(late) == {401}
            assert set(statuses) <= {200, 401, 404}
            after = await tenant.rows(
                "SELECT sequence FROM placet.audit_rows WHERE tenant_id = $1 AND sequence > $2 AND subject = $3"
                " AND event = 'tool_call.decided'",
                at,
                subject,
            )
            assert after == []
        await tenant.is_sound()
    finally:
        for client in clients:
            await client.aclose()


async def test_ta_04_the_old_secret_of_a_rotated_key_ends_with_its_overlap(stage: Stage) -> None:
    tenant = await stage.tenant()
    key = await tenant.key()
    rotated = await stage.post(f"/keys/{tenant.key_ids['the-agent']}/rotation", await tenant.key("operator"), {"overlap_s": 2})
    assert rotated.status == 201
    started = time.monotonic()
    document = call("search_order", {"order_id": "A-1001"})
    assert (await stage.check(key, document)).said == ACCEPTED
    assert (await stage.check(rotated["secret"], document))["replayed"] is True  # the same principal
    await asyncio.sleep(2.05 - (time.monotonic() - started))
    assert (await stage.check(key, document)).said == UNAUTHENTICATED
    assert (await stage.check(rotated["secret"], document)).status == 200


async def test_ta_06_another_tenants_ids_are_not_there(stage: Stage) -> None:
    """Revoking, rotating and activating by id or number stay inside the tenant; the platform's operator has no back door either."""
    first, second = await _two(stage)
    for role in ROLES:
        await first.key(role)
    await first.activate({**with_tool("note", "{type: object}")})
    before = await _stored(first)
    for operator in (await second.key("operator"), BOOTSTRAP_KEY):
        for key_id in first.key_ids.values():
            assert (await stage.send("DELETE", f"/keys/{key_id}", operator, None)).said == NOT_FOUND
            assert (await stage.post(f"/keys/{key_id}/rotation", operator, {})).said == NOT_FOUND
            assert (await stage.get(f"/keys/{key_id}", operator)).status in (404, 405)
        assert (await stage.post("/policies/2/activation", operator, None)).said == NOT_FOUND  # its own tenant has no version 2
    assert await _stored(first) == before
    for role in ROLES:
        assert (await stage.get("/keys", first.keys[f"the-{role}"])).status == (200 if role == "operator" else 403)


async def test_ta_06_a_page_of_another_tenants_cursor_shows_nothing_of_it(stage: Stage) -> None:
    first, second = await _two(stage)
    for role in ROLES:
        await first.key(role)
    operator = await second.key("operator")
    for key_id in first.key_ids.values():
        page = await stage.get(f"/keys?cursor={key_id}", operator)
        assert page.status == 200
        assert not {item["key_id"] for item in page["items"]} & set(first.key_ids.values())


FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip", "cf-connecting-ip")


async def test_ta_07_forwarded_addresses_mean_nothing(stage: Stage) -> None:
    """200 bad keys from "200 addresses": all 401, nobody is locked out, no other tenant waits."""
    tenant, other = await stage.tenant(), await stage.tenant()

    async def bad(number: int) -> Answer:
        address = f"203.0.113.{number}"
        headers = {FORWARDED[number % 5]: f"for={address}" if number % 5 == 1 else address}
        return await stage.post("/tool-calls/check", f"bad-key-{number}", call("search_order", {"order_id": "A-1001"}), **headers)

    async def good(number: int) -> tuple[Answer, float]:
        started = time.monotonic()
        return await other.call("search_order", {"order_id": "A-1001"}), time.monotonic() - started

    noise = asyncio.gather(*(bad(number) for number in range(200)))
    calls = [await good(number) for number in range(20)]
    assert said(await noise) == {UNAUTHENTICATED: 200}
    assert said(answer for answer, _ in calls) == {ACCEPTED: 20}
    assert sorted(took for _, took in calls)[18] < 1
    assert (await tenant.call("search_order", {"order_id": "A-1001"})).said == ACCEPTED


async def test_ta_07_a_limit_is_the_keys_whatever_address_is_named(stage: Stage) -> None:
    """One key over its limit, from 100 "addresses", among bad keys: exactly its limit passes two workers, and nobody else is refused."""
    tenant, other = await stage.tenant(), await stage.tenant()
    noisy = await tenant.key("agent", "noisy", limits={"requests_per_minute": 20})
    quiet = await other.key()
    left = float(await stage.superuser.fetchval("SELECT 60 - extract(second FROM clock_timestamp())::float8"))
    if left < 10:
        await asyncio.sleep(left + 0.1)  # so that what follows is within one minute

    def search(session: str) -> dict[str, object]:
        return call("search_order", {"order_id": "A-1001"}, session_id=session, on_behalf_of=CUSTOMER)

    async def one(number: int) -> Answer:
        key = noisy if number % 2 else f"bad-key-{number}"
        headers = {FORWARDED[number % 5]: f"for=203.0.113.{number}" if number % 5 == 1 else f"203.0.113.{number}"}
        return await stage.post("/tool-calls/check", key, search("noise"), **headers)

    noise = asyncio.gather(*(one(number) for number in range(200)))
    calls = [await stage.check(key, search("quiet")) for _ in range(10) for key in (quiet, await tenant.key())]
    answers = await noise
    assert said(answers) == {UNAUTHENTICATED: 100, ACCEPTED: 20, ("429", "rate_limited"): 80}
    refused = [answer for answer in answers if answer.status == 429]
    assert all(answer["execution_permitted"] is False and 1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert said(calls) == {ACCEPTED: 20}
    rows = [row for row in await tenant.events("request.refused") if row["code"] == "rate_limited"]
    assert [row["actor"]["subject"] for row in rows] == ["noisy"]


async def test_ta_07_one_key_from_many_addresses_is_one_principal(stage: Stage) -> None:
    tenant = await stage.tenant()
    key = await tenant.key()
    answers = await together(
        stage.post("/tool-calls/check", key, call("search_order", {"order_id": "A-1001"}), **{"x-forwarded-for": f"198.51.100.{number}"})
        for number in range(200)
    )
    assert said(answers) == {ACCEPTED: 200}
    assert {row["actor"]["subject"] for row in await tenant.events("tool_call.decided")} == {"the-agent"}
    assert all("198.51.100" not in str(row) for row in await tenant.events())


BYPASSES: tuple[tuple[str, object], ...] = (
    ("auto_approve", True),
    ("auto_approve", "true"),
    ("approved", True),
    ("skip_layers", ["semantic", "sandbox", "risk"]),
    ("layers", ["static"]),
    ("dry_run", True),
    ("dry_run", False),
    ("execute", True),
    ("force", True),
    ("override", True),
    ("admin", True),
    ("mode", "bypass"),
    ("mode", "execute"),
    ("mode", "dry_run"),
    ("mode", "explain"),  # in the contract, and not in this version: not a quiet `enforce` either
    ("mode", "ENFORCE"),
    ("mode", ""),
    ("mode", None),
    ("mode", ["enforce"]),
    ("mode", True),
)
HEADERS = (
    ("x-admin-override", "true"),
    ("x-auto-approve", "1"),
    ("x-skip-layers", "semantic,sandbox,risk"),
    ("x-dry-run", "true"),
    ("x-mode", "bypass"),
    ("x-http-method-override", "DELETE"),
    ("x-placet-bypass", "all"),
    ("prefer", "handling=lenient"),
)
WAITS = ("needs_user", "needs_human_review")


def _large(call_id: str, **more: object) -> dict[str, object]:
    """Give a refund that wants a person."""
    arguments = {"order_id": "A-1001", "amount": Text("129.90"), "currency": "EUR", "cause": "damaged"}
    return call("refund", arguments, call_id, on_behalf_of=CUSTOMER, **more)


async def test_mr_09_a_field_that_would_skip_something_is_refused_whatever_the_key(stage: Stage) -> None:
    """S12.4: 422 at the field, alone or together with `mode: enforce`; nothing is decided, held or opened. A role that isn't the agent's
    gets no further: there is no key that may skip a layer."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    for name, value in BYPASSES:
        document = _large("c1") | {name: value}
        answer = await stage.check(await tenant.key(), document)
        assert answer.said == INVALID, (name, value)
        assert [error["pointer"] for error in answer["errors"]] == [f"/{name}"]
        assert answer["execution_permitted"] is False
        both = await stage.check(await tenant.key(), {"mode": "enforce"} | document)
        assert both.said == INVALID, (name, value)
        for role in ("operator", "reviewer", "author"):
            assert (await stage.check(await tenant.key(role), document)).said == INVALID
    for query in ("auto_approve=true", "mode=bypass", "skip_layers=risk", "dry_run=true", "mode=enforce"):
        answer = await stage.post(f"/tool-calls/check?{query}", await tenant.key(), _large("c1"))
        assert (answer.said, answer["errors"][0]["pointer"]) == (INVALID, "/query"), query
    for role in ("operator", "reviewer", "author"):
        assert (await stage.check(await tenant.key(role), _large("c1"))).said == ("403", "not_permitted")
    assert await tenant.decisions() == 0
    for table in ("claims", "holds", "approvals"):
        assert await tenant.value(f"SELECT count(*) FROM placet.{table} WHERE tenant_id = $1") == 0
    assert {row["code"] for row in await tenant.events("request.refused")} == {"request_invalid", "not_permitted"}
    plain = await stage.check(await tenant.key(), _large("c1", mode="enforce"))
    assert plain.said == WAITS
    await tenant.is_sound()


async def test_mr_09_a_header_changes_nothing(stage: Stage) -> None:
    """What waits for a person still does, what is forbidden still is, and neither a hold nor an answer of the approval comes of it."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    await tenant.order("T-9001", 129_90)
    forbidden = call("refund", {"order_id": "T-9001", "amount": 1, "currency": "EUR", "cause": "damaged"}, "c2", on_behalf_of=CUSTOMER)
    for name, value in HEADERS:
        for key in (await tenant.key(), await tenant.key("agent", "second-agent")):
            session = {"session_id": "chat-1" if key == await tenant.key() else "chat-2"}
            answer = await stage.post("/tool-calls/check", key, _large("c1") | session, **{name: value})
            assert answer.said == WAITS, name
            assert (answer["execution_permitted"], answer.holds) == (False, {})
            denied = await stage.post("/tool-calls/check", key, forbidden | session, **{name: value})
            assert denied.said == ("denied", "forbidden"), name
            assert denied["refused_by"] == "scope"
    approvals = await tenant.rows("SELECT status FROM placet.approvals WHERE tenant_id = $1")
    assert [row["status"] for row in approvals] == ["pending", "pending"]  # one of each agent
    assert await tenant.value("SELECT count(*) FROM placet.holds WHERE tenant_id = $1") == 0
    await tenant.is_sound()


async def test_mr_09_in_arguments_it_is_an_unknown_argument_or_data(stage: Stage) -> None:
    tenant = await stage.tenant(with_tool("note", "{type: object}"))
    await tenant.order("A-1001", 129_90)
    for number, (name, value) in enumerate(BYPASSES):
        document = _large(f"c{number}", session_id=f"chat-{number}")
        document["arguments"] = dict(document["arguments"]) | {name: value}  # type: ignore[call-overload]  # it is a mapping
        refused = await stage.check(await tenant.key(), document)
        assert refused.said == ("denied", "schema_invalid"), name
        assert refused["fix_hint"]["field"] == f"/{name}"
    noted = await tenant.call("note", dict(BYPASSES[:12]))
    assert noted.said == ACCEPTED
    assert [layer["name"] for layer in noted["layers"]] == ["static", "scope"]
    waiting = await stage.check(await tenant.key(), _large("c-last"))
    assert waiting.said == WAITS
    assert await tenant.value("SELECT count(*) FROM placet.holds WHERE tenant_id = $1") == 0


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("bundle.yaml", "approvals:", "auto_approve: true\napprovals:"),
        ("bundle.yaml", "quorum: 2,", "quorum: 0,"),
        ("bundle.yaml", "quorum: 2,", "auto_approve: true, quorum: 2,"),
        ("bundle.yaml", "on_expiry: refused}", "on_expiry: approved}"),
        ("bundle.yaml", "roles: [reviewer]", "roles: [agent]"),
        ("tools/refund.yaml", "effect_class: money", "mode: bypass\neffect_class: money"),
        ("tools/refund.yaml", "effect_class: money", "skip_layers: [risk]\neffect_class: money"),
        ("tools/refund.yaml", "effect_class: money", "layers: [static, scope]\neffect_class: money"),
        ("grants.yaml", "needs_approval: true", "needs_approval: true\n    auto_approve: true"),
        ("thresholds.yaml", "review_at: 0.60", "auto_approve: true, review_at: 0.60"),
    ],
)
async def test_mr_09_no_policy_has_a_way_around_its_own_layers(stage: Stage, file: str, old: str, new: str) -> None:
    """S3.3, S6.3: an author can't write one either; the bundle is refused and nothing of it is stored."""
    tenant = await stage.tenant()
    refused = await stage.post("/policies", await tenant.key("author"), {"files": changed(file, (old, new), files=SHOP)})
    assert refused.said == ("422", "policy_invalid")
    assert refused["errors"][0]["detail"].startswith(f"{file}:")
    assert await tenant.value("SELECT count(*) FROM placet.policy_versions WHERE tenant_id = $1") == 1


async def test_mr_09_a_key_has_no_such_right(stage: Stage) -> None:
    tenant = await stage.tenant()
    operator = await tenant.key("operator")
    for more in ({"auto_approve": True}, {"skip_layers": ["risk"]}, {"mode": "bypass"}, {"admin": True}, {"roles": ["admin"]}):
        answer = await stage.post("/keys", operator, {"subject": "x", "roles": ["agent"]} | more)
        assert answer.said == INVALID, more
    assert await tenant.value("SELECT count(*) FROM placet.api_keys WHERE tenant_id = $1 AND subject = 'x'") == 0

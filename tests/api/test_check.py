"""`POST /tool-calls/check` over HTTP: the worked examples, bad requests, roles, tenants apart, and what answers leave in the chain."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from app.api import tool_calls
from app.domain.tool_call import Role
from app.settings import Settings
from tests.api.serving import REFUND, Client, code, serving, take_away
from tests.engine.shop import Shop, Tenant

BODY: dict[str, Any] = {
    "tool": "refund",
    "arguments": dict(REFUND),
    "session_id": "chat-1",
    "call_id": "call_01",
    "on_behalf_of": {"id": "cust-77", "segment": "standard"},
}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


async def verified(client: Client, shop: Shop) -> dict[str, Any]:
    answer = await client.ask("GET", "/audit/verification", shop.acme.tokens["auditor"])
    assert answer.status_code == 200
    return dict(answer.json())


async def last_row(shop: Shop) -> dict[str, Any]:
    body = await shop.value("SELECT body FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence DESC LIMIT 1", shop.acme.tenant_id)
    return dict(json.loads(body))


async def rows(shop: Shop) -> int:
    return int(await shop.value("SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1", shop.acme.tenant_id))


async def test_api_1_1_a_refund_a_hundred_times_too_large(client: Client, shop: Shop) -> None:
    """API.md 1.1: the hint, the verified suggestion and what it would get, and the message for the model."""
    answer = await client.check(
        shop.acme.tokens["agent"], "call_01", arguments={"amount": 12990.00}, task_id="task-17", turn=3, state_version=4
    )
    found = answer.json()
    assert answer.status_code == 200
    message = "amount is 12990.00 EUR; at most 129.90 EUR can still be refunded on order A-1001"
    expected = {"exclusiveMinimum": 0, "maximum": 129.9}
    assert (found["decision"], found["execution_permitted"], found["replayed"]) == ("denied", False, False)
    assert (found["reason"], found["refused_by"]) == ("amount_exceeds_refundable", "semantic")
    assert [layer["name"] for layer in found["layers"]] == ["static", "scope", "semantic"]
    assert {"name": "customer_service", "outcome": "accepted"} in found["layers"][1]["checks"]
    assert found["layers"][2]["checks"][-1] == {
        "name": "within_refundable", "outcome": "denied", "reason": "amount_exceeds_refundable", "field": "/amount", "actual": 12990,
        "expected": expected, "message": message,
    }  # fmt: skip
    assert found["fix_hint"] == {
        "denial_class": "state", "retryable": "after_change", "field": "/amount", "actual": 12990, "expected": expected, "message": message,
        "next_action": {"kind": "call_again"}, "suggested_arguments": {**REFUND, "amount": 129.9}, "suggestion_verified": True,
        "suggestion_decision": "needs_user", "attempts_left": 2,
    }  # fmt: skip
    assert found["tool_result"] == {
        "role": "tool", "tool_call_id": "call_01", "tool_name": "refund", "is_error": True,
        "content": {
            "guard_rejected": True, "reason": "amount_exceeds_refundable", "fix_hint": message, "field": "/amount", "actual": 12990,
            "expected": expected, "suggested_arguments": {**REFUND, "amount": 129.9},
            "next_action": "call refund again with the arguments changed as suggested",
        },
    }  # fmt: skip
    budget, attempts = found["limits"]
    assert (budget["name"], budget["level"], budget["remaining"]) == (
        "budget:refunds_per_agent_day",
        "principal",
        {"amount": "1000.00", "currency": "EUR"},
    )
    assert budget["resets_at"].endswith("T23:00:00.000Z") or budget["resets_at"].endswith("T22:00:00.000Z")
    assert (attempts["name"], attempts["spent"], attempts["remaining"]) == (
        "loop:refusals_of_a_rule", {"amount": "1", "unit": "refusals"}, {"amount": "2", "unit": "refusals"},
    )  # fmt: skip
    assert (found["holds"], found["obligations"], found["policy_version"]) == ([], [], 1)
    assert found["audit"]["chain"] == "acme"
    assert not {"effective_arguments", "effective_scope", "approval", "risk", "side_effects"} & set(found)


async def test_api_1_2_the_right_refund_asks_a_person(client: Client, shop: Shop) -> None:
    """API.md 1.2: 129.90 EUR has the risk 0.7196; nothing is held, and the model sees neither score nor threshold."""
    found = (await client.check(shop.acme.tokens["agent"], "call_02", arguments={"amount": 129.90}, task_id="task-17", turn=4)).json()
    assert (found["decision"], found["execution_permitted"], found["reason"]) == ("needs_user", False, "needs_human_review")
    assert found["layers"][-1]["name"] == "risk"
    assert found["layers"][-1]["checks"] == [
        {
            "name": "review_at",
            "outcome": "needs_user",
            "reason": "needs_human_review",
            "fact": "risk.score",
            "actual": 0.7196,
            "expected": {"exclusiveMaximum": 0.6},
        }
    ]
    assert found["side_effects"]["rows"] == [
        {
            "table": "shop.orders",
            "operation": "update",
            "key": {"order_id": "A-1001"},
            "before": {"refunded_minor": 0},
            "after": {"refunded_minor": 12990},
        },
        {
            "table": "shop.refunds",
            "operation": "insert",
            "key": {"order_id": "A-1001"},
            "before": None,
            "after": {"amount_minor": 12990, "currency": "EUR"},
        },
    ]
    assert found["side_effects"]["counts"] == {
        "shop.orders": {"inserted": 0, "updated": 1, "deleted": 0}, "shop.refunds": {"inserted": 1, "updated": 0, "deleted": 0},
    }  # fmt: skip
    assert found["side_effects"]["digest"] == "sha256:0cb1694836ae938e3b45234a314f9794bdddd527b2f2edcc9a4fb27daf5d3a22"
    assert (found["risk"]["score"], found["risk"]["review_at"], found["risk"]["deny_at"], found["risk"]["thresholds_for"]) == (
        0.7196,
        0.6,
        0.95,
        {},
    )
    assert found["risk"]["factors"][:3] == [
        {"name": "amount", "value": 0.6495, "weight": 0.8, "contribution": 0.5196},
        {"name": "share_of_order", "value": 1, "weight": 0.2, "contribution": 0.2},
        {"name": "goodwill", "value": 0, "weight": 0.15, "contribution": 0},
    ]
    approval_id = found["approval"]["approval_id"]
    assert found["approval"]["status"] == "pending"
    assert found["approval"]["wait_url"] == f"/approvals/{approval_id}?wait_s=60"
    hint = found["fix_hint"]
    assert (hint["denial_class"], hint["retryable"], hint["fact"], hint["actual"]) == ("risk", "after_approval", "risk.score", 0.7196)
    assert hint["next_action"] == {"kind": "wait_for_approval", "approval_id": approval_id}
    assert hint["attempts_left"] == 3
    assert "0.7196" not in json.dumps(found["tool_result"])
    assert "0.6" not in json.dumps(found["tool_result"])
    assert found["holds"] == []
    assert "refused_by" not in found


async def test_s3_1_the_call_digest_of_an_approval_is_the_examples(client: Client, shop: Shop) -> None:
    """API.md 1.3: bound_digest is a test vector."""
    await client.check(shop.acme.tokens["agent"], "call_02", arguments={"amount": 129.90, "note": "not bound"})
    bound = await shop.value("SELECT bound_digest FROM placet.approvals")
    assert bound == "sha256:0f153ce642f530feff24bdf20897b691a371227095c960d1401ce54507a7710b"


async def test_an_accepted_call_says_what_may_run(client: Client, shop: Shop) -> None:
    """S3.2: effective arguments, the scope with the grants that it rests on, the holds."""
    answer = await client.check(shop.acme.tokens["agent"], "c1")
    found = answer.json()
    assert (found["decision"], found["execution_permitted"], found["reason"], found["risk"]["score"]) == (
        "accepted",
        True,
        "within_policy",
        0.1108,
    )
    assert found["effective_arguments"] == dict(REFUND)
    ceiling = {"amount": {"max": {"amount": "20.00", "currency": "EUR"}}}
    assert found["effective_scope"] == [
        {"action": "refund", "resource": "order:A-1001", "constraints": ceiling, "rests_on": ["grant:customer_service"]}
    ]
    assert [hold["account"] for hold in found["holds"]] == ["order:A-1001", "budget:refunds_per_agent_day"]
    assert "fix_hint" not in found
    assert "tool_result" not in found
    assert answer.headers["cache-control"] == "no-store"
    again = await client.check(shop.acme.tokens["agent"], "c1")
    assert again.headers["idempotent-replayed"] == "true"
    volatile = {"execution_permitted", "replayed"}
    assert {k: v for k, v in again.json().items() if k not in volatile} == {k: v for k, v in found.items() if k not in volatile}
    assert (again.json()["execution_permitted"], again.json()["replayed"]) == (False, True)


@pytest.mark.parametrize("number", ["20", "20.0", "2e1", "20.000", "200E-1"])
async def test_s3_9_numbers_of_one_value_are_one_call(client: Client, shop: Shop, number: str) -> None:
    """However they are written, in whatever order and with whatever blanks."""
    token = shop.acme.tokens["agent"]
    first = (await client.check(token, "c1")).json()
    arguments = f'{{"cause":"damaged","currency" : "EUR", "amount":{number},"order_id":"A-1001"}}'
    body = f'{{"call_id":"c1","session_id":"chat-1","on_behalf_of":{{"id":"cust-77"}},"arguments":{arguments},"tool":"refund"}}'
    again = (await client.ask("POST", "/tool-calls/check", token, body.encode())).json()
    assert (again["replayed"], again["decision_id"]) == (True, first["decision_id"])


async def test_the_audit_row_says_what_the_answer_says(client: Client, shop: Shop) -> None:
    """S10.1, API.md 4: without the arguments, which are in the erasable payload."""
    found = (await client.check(shop.acme.tokens["agent"], "c1", task_id="task-17", arguments={"note": "very private"})).json()
    row = await last_row(shop)
    assert row["hash" if "hash" in row else "sequence"] == found["audit"]["sequence"]
    expected = {
        "chain": "acme", "event": "tool_call.decided", "actor": {"subject": "support-agent", "roles": ["agent"]}, "session_id": "chat-1",
        "task_id": "task-17", "tool": "refund", "resources": ["order:A-1001"], "decision_id": found["decision_id"], "decision": "accepted",
        "reason": "within_policy", "risk_score": 0.1108, "policy_version": 1, "occurred_at": found["decided_at"],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert "very private" not in json.dumps(row)
    assert "arguments" not in row
    assert found["audit"]["hash"] == await shop.value(
        "SELECT hash FROM placet.audit_rows WHERE decision_id = $1::uuid", found["decision_id"]
    )


@pytest.mark.parametrize("role", [role.value for role in Role if role is not Role.AGENT])
async def test_only_an_agent_may_check(client: Client, shop: Shop, role: str) -> None:
    """S12.1: 403, and a problem of a check route says that nothing may run."""
    answer = await client.check(shop.acme.tokens[role], "c1")
    assert code(answer) == (403, "not_permitted")
    assert answer.json()["execution_permitted"] is False
    assert answer.json()["tool_result"]["tool_call_id"] == "c1"
    assert (await last_row(shop))["event"] == "request.refused"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "Bearer nobody",
        "Bearer placet_aaaaaaaaaaaaaaaaaaaaaaaaaa_" + "A" * 43,
        "Bearer " + "x" * 600,
    ],
)
async def test_without_a_valid_key_there_is_nothing(client: Client, shop: Shop, header: str | None) -> None:
    """S12.1, S10.1: 401; no row in the tenant's chain."""
    before = await rows(shop)
    headers = {} if header is None else {"authorization": header}
    answer = await client.ask("POST", "/tool-calls/check", body=BODY, headers=headers)
    assert code(answer) == (401, "unauthenticated")
    assert answer.json()["execution_permitted"] is False
    assert await rows(shop) == before


BAD_REQUESTS: list[tuple[str, bytes, dict[str, str], int, str]] = [
    ("not json", b"{", {}, 400, "body_malformed"),
    ("duplicate key", b'{"tool": "refund", "tool": "search_order"}', {}, 400, "body_malformed"),
    ("NaN", json.dumps(BODY).replace("20", "NaN", 1).encode(), {}, 400, "body_malformed"),
    ("1e400", json.dumps(BODY).replace(": 20", ": 1e400", 1).encode(), {}, 400, "body_malformed"),
    ("NUL", json.dumps({**BODY, "call_id": "a\x00b"}).encode(), {}, 400, "body_malformed"),
    ("lone surrogate", json.dumps({**BODY, "call_id": "\ud800"}).encode(), {}, 400, "body_malformed"),
    ("too deep", b'{"a":' * 70 + b"1" + b"}" * 70, {}, 400, "body_malformed"),
    ("too large", b'{"a": "' + b"x" * 1_100_000 + b'"}', {}, 413, "body_too_large"),
    ("another media type", json.dumps(BODY).encode(), {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ("unknown field", json.dumps({**BODY, "tenant_id": "globex"}).encode(), {}, 422, "request_invalid"),
    ("mistyped field", json.dumps({**BODY, "turn": "3"}).encode(), {}, 422, "request_invalid"),
    ("arguments as text", json.dumps({**BODY, "arguments": "{}"}).encode(), {}, 422, "request_invalid"),
    ("bad scope", json.dumps({**BODY, "requested_scope": [{"action": "refund"}]}).encode(), {}, 422, "request_invalid"),
    ("missing field", json.dumps({"tool": "refund"}).encode(), {}, 422, "request_invalid"),
]


@pytest.mark.parametrize(("_name", "body", "headers", "status", "problem"), BAD_REQUESTS, ids=[bad[0] for bad in BAD_REQUESTS])
async def test_a_refused_request_is_one_row_with_its_bodys_digest(
    client: Client, shop: Shop, _name: str, body: bytes, headers: dict[str, str], status: int, problem: str
) -> None:
    """S3.4, S10.1: nothing may run, nothing of the body is kept but its digest, and there is no decision."""
    before = await rows(shop)
    answer = await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], body, headers=headers)
    assert code(answer) == (status, problem)
    document = answer.json()
    assert document["execution_permitted"] is False
    assert (document["fix_hint"]["denial_class"], document["tool_result"]["is_error"]) == ("structural", True)
    assert await rows(shop) == before + 1
    row = await last_row(shop)
    assert (row["event"], row["code"], row["http_status"], row["route"]) == ("request.refused", problem, status, "/tool-calls/check")
    if status not in (413, 415):
        assert row["body_digest"] == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert await shop.value("SELECT count(*) FROM placet.decisions") == 0
    assert await shop.value("SELECT count(*) FROM placet.audit_payloads WHERE body LIKE '%refund%'") == 0
    assert (await verified(client, shop))["verified"] is True


async def test_the_schemas_fault_is_a_decision(client: Client, shop: Shop) -> None:
    """S3.4: every fault of the arguments is named, by pointer."""
    found = (await client.check(shop.acme.tokens["agent"], "c1", arguments={"amount": -1, "cause": "because", "extra": 1})).json()
    assert (found["decision"], found["reason"], found["refused_by"]) == ("denied", "schema_invalid", "static")
    assert {check.get("field") for check in found["layers"][0]["checks"]} >= {"/amount", "/cause"}
    assert [layer["name"] for layer in found["layers"]] == ["static"]


async def test_an_unknown_tool_is_refused(client: Client, shop: Shop) -> None:
    found = (await client.check(shop.acme.tokens["agent"], "c1", tool="transfer")).json()
    assert (found["decision"], found["reason"], found["refused_by"], found["execution_permitted"]) == (
        "denied",
        "tool_unknown",
        "static",
        False,
    )


@pytest.mark.parametrize(
    ("query", "status"), [("format=generic", 200), ("format=openai", 200), ("mode=explain", 422), ("tenant_id=globex", 422)]
)
async def test_the_query_has_a_format_only(client: Client, shop: Shop, query: str, status: int) -> None:
    answer = await client.ask("POST", f"/tool-calls/check?{query}", shop.acme.tokens["agent"], BODY)
    assert answer.status_code == status


async def test_ta_03_nothing_that_is_sent_chooses_the_tenant(client: Client, shop: Shop) -> None:
    """TA-03, S12.4: in the body it is refused, in a header ignored, in the arguments a schema fault; acme alone is acted on."""
    token = shop.acme.tokens["agent"]
    for place in ({"tenant_id": str(shop.globex.tenant_id)}, {"tenant": "globex"}):
        assert code(await client.check(token, "c0", **place)) == (422, "request_invalid")
    headers = {"x-tenant-id": "globex", "x-forwarded-user": "globex"}
    found = (await client.ask("POST", "/tool-calls/check", token, BODY, headers=headers)).json()
    assert found["audit"]["chain"] == "acme"
    nested = (await client.check(token, "c2", arguments={"tenant": "globex"})).json()
    assert nested["reason"] == "schema_invalid"
    assert await shop.value("SELECT count(*) FROM placet.decisions WHERE tenant_id = $1", shop.globex.tenant_id) == 0


async def test_another_customers_order_is_not_found(client: Client, shop: Shop) -> None:
    """S3.12: neither its existence nor its amount leaks."""
    theirs = (await client.check(shop.acme.tokens["agent"], "c1", arguments={"order_id": "A-2001"})).json()
    nobodys = (await client.check(shop.acme.tokens["agent"], "c2", arguments={"order_id": "A-9999"})).json()
    for found in (theirs, nobodys):
        assert (found["reason"], found["fix_hint"]["next_action"]) == ("order_not_found", {"kind": "call_first", "tool": "search_order"})
    assert theirs["fix_hint"]["message"].replace("A-2001", "X") == nobodys["fix_hint"]["message"].replace("A-9999", "X")


async def test_ta_01_a_decision_is_read_by_its_tenant_alone(client: Client, shop: Shop) -> None:
    """TA-01, TA-06: another tenant's id is 404; an agent reads its own, an executor and an auditor all."""
    decision_id = (await client.check(shop.acme.tokens["agent"], "c1")).json()["decision_id"]
    path = f"/decisions/{decision_id}"
    for role in ("agent", "auditor", "executor"):
        assert code(await client.ask("GET", path, shop.globex.tokens[role])) == (404, "not_found")
    assert code(await client.ask("GET", path, shop.acme.tokens["other"])) == (404, "not_found")
    for role in ("agent", "auditor", "executor"):
        answer = await client.ask("GET", path, shop.acme.tokens[role])
        found = answer.json()
        assert (answer.status_code, found["decision"], found["execution_permitted"], found["status"]) == (
            200,
            "accepted",
            False,
            "permitted",
        )
        assert found["request"] == {**BODY, "call_id": "c1"}
    for role in ("reviewer", "author", "operator", "user"):
        assert code(await client.ask("GET", path, shop.acme.tokens[role])) == (403, "not_permitted")
    for unknown in ("01a230d5-2298-72d9-87ec-9ded623eae90", "x", "00000000000000000000000000000000"):
        assert code(await client.ask("GET", f"/decisions/{unknown}", shop.acme.tokens["agent"])) == (404, "not_found")


async def test_ta_04_a_revoked_key_ends_at_once_in_another_worker(settings: Settings, shop: Shop) -> None:
    """TA-04: that worker has the key in its memory."""
    token, key_id = shop.acme.tokens["agent"], shop.acme.key_ids["agent"]
    async with serving(settings, shop) as one, serving(settings, shop) as two:
        assert (await two.check(token, "c1")).status_code == 200
        assert (await one.ask("DELETE", f"/keys/{key_id}", shop.acme.tokens["operator"])).status_code == 200
        answer = await two.check(token, "c2", arguments={"order_id": "A-1002"})
        assert code(answer) == (401, "unauthenticated")
        assert answer.json()["execution_permitted"] is False
    assert await shop.value("SELECT count(*) FROM placet.decisions") == 1


async def test_s3_8_forty_refunds_at_once_in_two_workers(settings: Settings, shop: Shop) -> None:
    """Issue, Show: exactly one of 60.00 on an order of 100.00 in each tenant, sums agree, both chains verify.

    A machine that is busy with something else may answer 503 (S3.10), and then the same call asks again, as a client does.
    """
    async with serving(settings, shop) as one, serving(settings, shop) as two:

        async def decided(number: int, tenant: Tenant) -> dict[str, Any]:
            arguments = {"order_id": "A-1002", "amount": 60}
            for _ in range(10):
                answer = await (one, two)[number % 2].check(
                    tenant.tokens["agent"], f"c{number}", arguments=arguments, session_id=f"s{number}"
                )
                if answer.status_code != 503:
                    break
            assert answer.status_code == 200
            return dict(answer.json())

        answers = await asyncio.gather(*(decided(number, tenant) for number in range(40) for tenant in (shop.acme, shop.globex)))
        for chain, tenant in (("acme", shop.acme), ("globex", shop.globex)):
            mine = [found for found in answers if found["audit"]["chain"] == chain]
            assert [found["decision"] for found in mine].count("accepted") == 1
            assert {found["reason"] for found in mine} == {"within_policy", "already_refunded"}
            sequences = sorted(found["audit"]["sequence"] for found in mine)
            assert sequences == list(range(sequences[0], sequences[0] + 40))
            report = (await one.ask("GET", "/audit/verification", tenant.tokens["auditor"])).json()
            assert report["verified"] is True
    sums = await shop.rows("SELECT tenant_id, account, held FROM placet.accounts WHERE held > 0")
    assert len(sums) == 4
    assert {row["held"] for row in sums} == {6_000}


async def test_a_database_that_is_away_is_503_and_recovers(settings: Settings, shop: Shop) -> None:
    """S3.10: in time, with Retry-After, never an accept; the worker mends by itself."""
    token = shop.acme.tokens["agent"]
    async with serving(settings, shop) as client:
        assert (await client.check(token, "c1")).json()["decision"] == "accepted"
        async with shop.superuser() as superuser:
            name = await superuser.fetchval("SELECT current_database()")
            administrator = await asyncpg.connect(shop.superuser_url.replace(name, "postgres"))
        try:
            await administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            await administrator.execute(
                "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE datname = $1".replace("$1", f"'{name}'")
            )
            started = asyncio.get_running_loop().time()
            answer = await client.check(token, "c2", arguments={"order_id": "A-1002"})
            assert asyncio.get_running_loop().time() - started < 2
            assert code(answer) == (503, "decision_unavailable")
            assert answer.json()["execution_permitted"] is False
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["fix_hint"]["retryable"] == "after_delay"
            ready = await client.ask("GET", "/readyz")
            assert (ready.status_code, ready.json()["checks"]) == (503, {"database": "can't be reached"})
            assert (await client.ask("GET", "/healthz")).status_code == 200
            assert "placet_database_up 0.0" in (await client.ask("GET", "/metrics")).text
            assert (await client.ask("GET", "/keys", shop.acme.tokens["operator"])).status_code == 503
        finally:
            await administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            await administrator.close()
        found = await client.check(token, "c2", arguments={"order_id": "A-1002"})
        assert (found.status_code, found.json()["decision"], found.json()["replayed"]) == (200, "accepted", False)
        assert (await client.ask("GET", "/readyz")).status_code == 200
        assert (await verified(client, shop))["verified"] is True


async def test_a_full_queue_is_503_with_retry_after(settings: Settings, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.engine import lane

    monkeypatch.setattr(lane, "QUEUE_MAX", 0)
    async with serving(settings, shop) as client:
        answer = await client.check(shop.acme.tokens["agent"], "c1")
        assert code(answer) == (503, "decision_unavailable")
        assert (answer.headers["retry-after"], answer.json()["execution_permitted"]) == ("1", False)
        assert 'placet_unavailable_total{cause="queue_full"}' in (await client.ask("GET", "/metrics")).text


async def test_a_bug_is_500_without_its_message_and_permits_nothing(client: Client, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_answer: object) -> bytes:
        raise ValueError("secret 4711")

    monkeypatch.setattr(tool_calls, "render", broken)
    answer = await client.check(shop.acme.tokens["agent"], "c1")
    assert code(answer) == (500, "internal_error")
    assert answer.json()["execution_permitted"] is False
    assert "4711" not in answer.text


async def test_the_chain_verifies_until_somebody_tampers(client: Client, shop: Shop) -> None:
    """S10.2: a changed text, a changed payload, a removed row and a shortened chain are each named."""
    for number in range(3):
        await client.check(shop.acme.tokens["agent"], f"c{number}", arguments={"order_id": "A-1001", "amount": 20 + number})
    await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], b"{")
    good = await verified(client, shop)
    assert (good["verified"], good["rows"]) == (True, await rows(shop))
    assert good["head"]["sequence"] == good["rows"]
    last = good["rows"] - 2
    for change, undo in (
        (
            "UPDATE placet.audit_rows SET body = replace(body, 'within_policy', 'was_allowed') WHERE sequence = {}",
            "UPDATE placet.audit_rows SET body = replace(body, 'was_allowed', 'within_policy') WHERE sequence = {}",
        ),
        (
            "UPDATE placet.audit_payloads SET body = replace(body, 'A-1001', 'A-1002') WHERE sequence = {}",
            "UPDATE placet.audit_payloads SET body = replace(body, 'A-1002', 'A-1001') WHERE sequence = {}",
        ),
        (
            "UPDATE placet.audit_rows SET previous_hash = 'sha256:' || translate(substr(previous_hash, 8, 1), '0123456789abcdef', "
            "'123456789abcdef0') || substr(previous_hash, 9) WHERE sequence = {}",
            None,
        ),
    ):
        where = f"{last} AND tenant_id = '{shop.acme.tenant_id}'"
        await shop.execute(change.format(where))
        bad = await verified(client, shop)
        assert bad["verified"] is False, change
        assert bad["first_broken"]["sequence"] == last
        if undo is not None:
            await shop.execute(undo.format(where))
            assert (await verified(client, shop))["verified"] is True
    await shop.execute(f"DELETE FROM placet.audit_rows WHERE tenant_id = '{shop.acme.tenant_id}' AND sequence = {last}")
    assert (await verified(client, shop))["verified"] is False
    theirs = await client.ask("GET", "/audit/verification", shop.globex.tokens["auditor"])
    assert theirs.json()["verified"] is True


async def test_an_outage_that_refuses_a_check_is_logged_under_the_trace_id_that_its_answer_names(
    own_shop: Shop, settings: Settings
) -> None:
    """S3.10, S11.2"""
    async with serving(settings, own_shop) as client:
        await take_away(own_shop)
        with capture_logs() as logs:
            answer = await client.check(own_shop.acme.tokens["agent"], "c1")
    assert code(answer) == (503, "decision_unavailable")
    told = [line for line in logs if line["event"] == "unavailable"]
    assert [(line["trace_id"], line["route"], line["log_level"]) for line in told] == [
        (answer.json()["trace_id"], "/tool-calls/check", "warning")
    ]

"""`GET /decisions`: auditors find decisions by what they know of them, in pages that stay the same while rows come in (SPEC S10.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest

from app.settings import Settings
from app.storage import decision_history
from tests.api.serving import Client, code, serving
from tests.api.test_openapi import as_the_contract_says
from tests.engine.shop import Shop

# call id: what is asked for, so that each decision differs from each other in what the filters name
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("c1", {}),
    ("c2", {"arguments": {"amount": 12990}, "task_id": "t1"}),
    ("c3", {"arguments": {"order_id": "A-1002", "amount": 1}, "session_id": "chat-2"}),
    ("c4", {"arguments": {"cause": "because"}}),
    ("c5", {"tool": "search_order", "arguments": {"order_id": "A-1002"}, "task_id": "t1"}),
    ("c6", {"arguments": {"order_id": "A-1007", "amount": 145.05}}),
    ("c7", {"arguments": {"order_id": "A-1002", "amount": 3}, "task_id": "t1"}),
]


FOUND: list[tuple[str, list[str]]] = [
    ("subject=support-agent", ["c7", "c6", "c5", "c4", "c3", "c2", "c1"]),
    ("subject=second-agent", []),
    ("session_id=chat-2", ["c3"]),
    ("task_id=t1", ["c7", "c5", "c2"]),
    ("session_id=chat-1&call_id=c4", ["c4"]),
    ("session_id=chat-2&call_id=c4", []),
    ("tool=search_order", ["c5"]),
    ("decision=accepted", ["c7", "c5", "c3", "c1"]),
    ("decision=needs_user", ["c6"]),
    ("reason=within_policy", ["c7", "c5", "c3", "c1"]),
    ("reason=schema_invalid", ["c4"]),
    ("refused_by=semantic", ["c2"]),
    ("refused_by=static", ["c4"]),
    ("resource=order:A-1002", ["c7", "c3"]),
    ("order=A-1002", ["c7", "c3"]),
    ("order=A-1002&resource=order:A-1002", ["c7", "c3"]),
    ("order=A-1002&tool=refund&session_id=chat-2", ["c3"]),
    ("order=A-1002&tool=search_order", []),
    ("order=A-1002&tool=refund&task_id=t1", ["c7"]),
    ("session_id=chat-1&decision=accepted&tool=refund", ["c7", "c1"]),
    ("risk_from=0.6", ["c6"]),
    ("risk_until=0.6", ["c7", "c3", "c1"]),
    ("risk_from=0.1&risk_until=0.6&order=A-1001", ["c1"]),
    ("sort=sequence", ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]),
    ("sort=sequence&task_id=t1", ["c2", "c5", "c7"]),
    ("sort=-sequence&limit=2", ["c7", "c6"]),
    ("subject=%27%20OR%20true--", []),
]
"""Queries, and the call ids of what they find."""
REFUSED: list[tuple[str, list[str]]] = [
    ("limit=0", ["limit"]),
    ("limit=201", ["limit"]),
    ("limit=1&limit=2", ["limit"]),
    ("tool=refund&tool=refund", ["tool"]),
    ("colour=red", ["colour"]),
    ("colour=red&limit=1&limit=2", ["colour", "limit"]),
    ("from_=2026-12-01T00:00:00Z", ["from_"]),
    ("from=2026-12-01", ["from"]),
    ("from=2026-12-01T00:00:00", ["from"]),
    ("from=1700000000", ["from"]),
    ("from=2026-13-01T00:00:00Z", ["from"]),
    ("from=0001-01-01T00:00:00%2B14:00", ["from"]),
    ("until=yesterday", ["until"]),
    ("decision=maybe", ["decision"]),
    ("refused_by=nobody", ["refused_by"]),
    ("reason=Not%20A%20Reason", ["reason"]),
    ("sort=recorded_at", ["sort"]),
    ("resource=A-1001", ["resource"]),
    ("resource=order:*", ["resource"]),
    ("order=A-1001&resource=order:A-1002", ["order"]),
    ("subject=%00", ["subject"]),
    ("tool=a%20b", ["tool"]),
    ("call_id=c4", ["call_id"]),
    ("session_id=" + "x" * 129, ["session_id"]),
    ("risk_from=NaN", ["risk_from"]),
    ("risk_until=2", ["risk_until"]),
]
"""Queries, and the parameters that are named."""
PAIR = "order=A-1002&decision=accepted&task_id=t1"


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


@pytest.fixture
async def decided(client: Client, shop: Shop) -> list[dict[str, Any]]:
    """Seven decisions of acme in their order, and one of globex."""
    answers = []
    for call_id, more in ASKED:
        if more.get("tool") == "search_order":
            body = {"session_id": "chat-1", "call_id": call_id, "on_behalf_of": {"id": "cust-77", "segment": "standard"}, **more}
            answers.append(await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], body))
        else:
            answers.append(await client.check(shop.acme.tokens["agent"], call_id, **more))
    await client.check(shop.globex.tokens["agent"], "c1")
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json() for answer in answers]


async def search(client: Client, shop: Shop, query: str = "") -> dict[str, Any]:
    answer = await client.ask("GET", f"/decisions?{query}" if query else "/decisions", shop.acme.tokens["auditor"])
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def calls(page: dict[str, Any]) -> list[str]:
    return [item["call_id"] for item in page["items"]]


async def test_a_decision_is_listed_as_it_was_answered(client: Client, shop: Shop, decided: list[dict[str, Any]]) -> None:
    """Every field; what isn't there is absent. A list permits nothing."""
    answer = await client.ask("GET", "/decisions", shop.acme.tokens["auditor"])
    items = as_the_contract_says(answer, "get", "/decisions")["items"]
    assert [item["call_id"] for item in items] == ["c7", "c6", "c5", "c4", "c3", "c2", "c1"], "the newest first"
    for item, answer in zip(reversed(items), decided, strict=True):
        assert item["audit"] == answer["audit"]
        for name in ("decision_id", "decision", "reason", "policy_version", "decided_at"):
            assert item[name] == answer[name]
        assert item.get("refused_by") == answer.get("refused_by")
        assert item.get("risk_score") == answer.get("risk", {}).get("score")
        assert item["execution_permitted"] is False
    assert items[5] == {
        "decision_id": decided[1]["decision_id"],
        "decision": "denied",
        "execution_permitted": False,
        "status": "refused",
        "reason": "amount_exceeds_refundable",
        "refused_by": "semantic",
        "tool": "refund",
        "subject": "support-agent",
        "session_id": "chat-1",
        "task_id": "t1",
        "call_id": "c2",
        "attempt": 1,
        "resources": ["order:A-1001"],
        "policy_version": 1,
        "decided_at": decided[1]["decided_at"],
        "recorded_at": items[5]["recorded_at"],
        "audit": decided[1]["audit"],
    }
    resources = [item["resources"] for item in reversed(items)]
    assert [resources[n] for n in (0, 2, 3, 5, 6)] == [["order:A-1001"], ["order:A-1002"], [], ["order:A-1007"], ["order:A-1002"]]


async def test_filters_narrow_and_all_of_them_hold(client: Client, shop: Shop, decided: list[dict[str, Any]]) -> None:
    assert {query: calls(await search(client, shop, query)) for query, _ in FOUND} == dict(FOUND)


async def test_times_are_of_the_row_and_half_open(client: Client, shop: Shop, decided: list[dict[str, Any]]) -> None:
    """[from, until), in any zone."""
    items = (await search(client, shop, "sort=sequence"))["items"]
    moments = [item["recorded_at"] for item in items]
    assert moments == sorted(moments)
    at = moments[2]
    zoned = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
    for moment in (at, quote(zoned)):
        assert calls(await search(client, shop, f"sort=sequence&from={moment}")) == [i["call_id"] for i in items if i["recorded_at"] >= at]
        assert calls(await search(client, shop, f"sort=sequence&until={moment}")) == [i["call_id"] for i in items if i["recorded_at"] < at]
    assert calls(await search(client, shop, f"from={at}&until={at}")) == []
    assert calls(await search(client, shop, "from=2099-01-01T00:00:00Z")) == []
    assert len(calls(await search(client, shop, "from=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59.999Z"))) == 7


@pytest.mark.parametrize("scanned", [1, 2, 3, 20_000])
async def test_pages_stay_the_same_while_rows_come_in(
    client: Client, shop: Shop, decided: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    """However little a page may look at, and whatever is decided between two pages: each once, in order, none left out."""
    for query in ("sort=-sequence", "sort=sequence", "decision=accepted", "sort=sequence&decision=accepted&tool=refund", PAIR):
        whole = calls(await search(client, shop, f"{query}&limit=200"))
        monkeypatch.setattr(decision_history, "SCAN_ROWS_MAX", scanned)
        found, cursor, pages = [], "", 0
        while pages == 0 or cursor:
            page = await search(client, shop, f"{query}&limit=2{cursor}")
            assert len(page["items"]) <= 2
            found += calls(page)
            pages += 1
            if pages == 1:
                await client.check(shop.acme.tokens["agent"], f"late {query}", arguments={"order_id": "A-1002", "amount": 20})
            cursor = f"&cursor={page['next_cursor']}" if "next_cursor" in page else ""
            assert pages < 40
        behind = calls(await search(client, shop, "limit=1"))
        assert behind == [f"late {query}"]
        assert found[: len(whole)] == whole
        assert found[len(whole) :] in ([], behind if query.startswith("sort=sequence") else [])
        monkeypatch.undo()


async def test_a_cursor_is_of_one_query_of_one_tenant(client: Client, shop: Shop, decided: list[dict[str, Any]]) -> None:
    """422 in any other, so that no page is silently of something else; it shows nothing of the tenant that it came from."""
    auditor = shop.acme.tokens["auditor"]
    cursor = (await search(client, shop, "limit=2"))["next_cursor"]
    assert calls(await search(client, shop, f"limit=3&cursor={cursor}")) == ["c5", "c4", "c3"], "only the limit may change"
    told = [{"pointer": "/query/cursor", "detail": "is not the `next_cursor` of a page of this query; start again without it"}]
    asked = [("sort=sequence", cursor), ("tool=refund", cursor), ("", cursor[:-1] + ("A" if cursor[-1] != "A" else "B"))]
    for query, each in asked:
        answer = await client.ask("GET", f"/decisions?{query}&cursor={each}", auditor)
        assert code(answer) == (422, "request_invalid")
        assert answer.json()["errors"] == told
    for each in ("", "x", cursor + "A", "*" * 27, "%00" * 27):
        answer = await client.ask("GET", f"/decisions?cursor={each}", auditor)
        assert code(answer) == (422, "request_invalid")
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/cursor"]
    theirs = await client.ask("GET", f"/decisions?cursor={cursor}", shop.globex.tokens["auditor"])
    assert (code(theirs), theirs.json()["errors"]) == ((422, "request_invalid"), told)


async def test_another_tenants_auditor_sees_none(client: Client, shop: Shop, decided: list[dict[str, Any]]) -> None:
    """S12.1: not one of them, whatever is asked for."""
    own = (await search(client, shop))["items"]
    for query in ("", "session_id=chat-1", "order=A-1001", f"from={own[-1]['recorded_at']}", "sort=sequence", "subject=support-agent"):
        theirs = (await client.ask("GET", f"/decisions?{query}", shop.globex.tokens["auditor"])).json()["items"]
        assert len(theirs) == 1
        assert {item["audit"]["chain"] for item in theirs} == {"globex"}
        assert not {item["decision_id"] for item in theirs} & {item["decision_id"] for item in own}


async def test_a_query_that_is_not_one_is_refused_by_name(client: Client, shop: Shop) -> None:
    """Never a filter that is ignored, never one out of two, and never a 500."""
    for query, names in REFUSED:
        answer = await client.ask("GET", f"/decisions?{query}", shop.acme.tokens["auditor"])
        assert code(answer) == (422, "request_invalid"), query
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"/query/{name}" for name in names], query


async def test_every_ordinary_route_refuses_parameters_that_it_does_not_have(client: Client, shop: Shop) -> None:
    lists = {"/approvals": "reviewer", "/keys": "operator", "/policies": "author", "/freezes": "operator", "/decisions": "auditor"}
    others = {"/audit/verification": "auditor", "/decisions/x": "auditor", "/approvals/x": "reviewer"}
    for path, role in (lists | others).items():
        answer = await client.ask("GET", f"{path}?tenant_id=globex", shop.acme.tokens[role])
        assert code(answer) == (422, "request_invalid")
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/tenant_id"], path
    for path, role in lists.items():
        twice = await client.ask("GET", f"{path}?limit=1&limit=2", shop.acme.tokens[role])
        assert code(twice) == (422, "request_invalid")
        assert twice.json()["errors"] == [{"pointer": "/query/limit", "detail": "must be sent once"}], path

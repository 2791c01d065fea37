"""Faults of idempotency that others shipped. The key of a check is (session_id, call_id) of one principal (S3.9)."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Any

import pytest

from tests.cases.stage import CUSTOMER, Answer, Stage, Text, call, calm, together, written

ACCEPTED = ("accepted", "within_policy")
REUSED = ("denied", "call_id_reused")
LINGER_RESET = struct.pack("ii", 1, 0)


def _refund(call_id: str, amount: str = "10.00", order: str = "A-1001", **more: Any) -> dict[str, Any]:
    arguments = {"order_id": order, "amount": Text(amount), "currency": "EUR", "cause": "damaged"}
    return call("refund", arguments, call_id, **{"on_behalf_of": CUSTOMER, **more})


async def test_id_01_a_call_id_with_another_body_is_refused_and_holds_nothing(stage: Stage) -> None:
    """S3.9: other arguments are `call_id_reused` (a decision, where the case expects 409 or 422); what was stored stays."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 100_00)
    await tenant.order("A-1002", 100_00)
    first = await stage.check(key, _refund("k1"))
    assert first.said == ACCEPTED
    others = [
        _refund("k1", "90.00"),
        _refund("k1", "10.01"),
        _refund("k1", order="A-1002"),
        call("search_order", {"order_id": "A-1001"}, "k1"),
        call("no_such_tool", {}, "k1"),
        _refund("k1") | {"arguments": _refund("k1")["arguments"] | {"note": "now with a note"}},
    ]
    for other in others:
        refused = await stage.check(key, other)
        assert refused.said == REUSED
        assert (refused["execution_permitted"], refused["replayed"], refused["refused_by"]) == (False, False, "idempotency")
        assert refused["decision_id"] != first["decision_id"]
        assert refused["fix_hint"]["retryable"] == "after_change"
        assert "effective_arguments" not in refused.body
    assert await tenant.held("resource:order:A-1001") == 10_00
    assert await tenant.held("resource:order:A-1002") == 0
    again = await stage.check(key, _refund("k1"))
    assert (again["decision_id"], again["replayed"], again["execution_permitted"]) == (first["decision_id"], True, False)
    await tenant.is_sound()


@pytest.mark.parametrize(
    "same",
    [
        '{"order_id":"A-1001","amount":10,"currency":"EUR","cause":"damaged"}',
        '{ "cause" : "damaged", "currency":"EUR", "amount":1e1,"order_id":"\\u0041-1001"}',
    ],
)
async def test_id_01_another_spelling_of_the_same_body_is_the_same(stage: Stage, same: str) -> None:
    """API.md 0.4: numbers count by value, keys in any order."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    first = await stage.check(await tenant.key(), _refund("k1"))
    again = await stage.check(await tenant.key(), _refund("k1") | {"arguments": Text(same)})
    assert (again["decision_id"], again["replayed"]) == (first["decision_id"], True)
    assert again.headers["idempotent-replayed"] == "true"
    assert await tenant.held("resource:order:A-1001") == 10_00


async def test_id_01_a_call_id_is_its_sessions_and_its_principals_own(stage: Stage) -> None:
    """The same id in another session is another call; another agent can't read a decision by guessing its ids."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    first = await stage.check(await tenant.key(), _refund("k1"))
    elsewhere = await stage.check(await tenant.key(), _refund("k1", "10.02", session_id="chat-2"))
    assert elsewhere.said == ACCEPTED
    assert elsewhere["decision_id"] != first["decision_id"]
    foreign = await stage.check(await tenant.key("agent", "second-agent"), _refund("k1"))
    assert foreign.said == ("denied", "session_not_yours")
    assert first["decision_id"] not in foreign.text
    assert foreign.holds == {}
    await tenant.is_sound()


async def test_id_03_twenty_at_once_are_one_decision(stage: Stage) -> None:
    """One decision id, one hold an account, one audit row; exactly one answer permits; no 5xx."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 100_00)
    for number in range(5):
        answers = await together(stage.check(key, _refund(f"k{number}", f"10.0{number}")) for _ in range(20))
        assert {answer.status for answer in answers} == {200}
        assert len({answer["decision_id"] for answer in answers}) == 1
        assert sorted(answer["replayed"] for answer in answers) == [False] + [True] * 19
        assert [answer["replayed"] for answer in answers if answer["execution_permitted"]] == [False]
        assert len({answer["audit"]["hash"] for answer in answers}) == 1
        assert await tenant.decisions() == number + 1
        assert await tenant.value("SELECT count(*) FROM placet.holds WHERE tenant_id = $1") == 2 * (number + 1)
    await tenant.is_sound()


@pytest.mark.parametrize(("amount", "said"), [("0", ("denied", "schema_invalid")), ("90.01", ("denied", "amount_exceeds_refundable"))])
async def test_id_03_a_refusal_is_decided_once_too(stage: Stage, amount: str, said: tuple[str, str]) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1001", 90_00)
    key = await tenant.key()
    answers = await together(stage.check(key, _refund("k1", amount)) for _ in range(20))
    assert {answer.said for answer in answers} == {said}
    assert len({answer["decision_id"] for answer in answers}) == 1
    assert await tenant.decisions() == 1
    await tenant.is_sound()


async def test_id_03_twenty_at_once_open_one_approval(stage: Stage) -> None:
    """S3.9: what waits for a person isn't settled, so each try is an attempt; while it is pending, all get the same approval."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    key = await tenant.key()
    answers = await together(stage.check(key, _refund("k1", "129.90")) for _ in range(20))
    assert {answer.said for answer in answers} == {("needs_user", "needs_human_review")}
    assert len({answer["approval"]["approval_id"] for answer in answers}) == 1
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == 1
    assert await tenant.value("SELECT count(*) FROM placet.holds WHERE tenant_id = $1") == 0
    await tenant.is_sound()


async def test_id_04_two_bodies_at_once_fifty_rounds(stage: Stage) -> None:
    """One wins, the other is `call_id_reused` and leaves nothing: the sums are the winners'."""
    tenant = await stage.tenant(calm())
    key = await tenant.key()
    rounds = range(50)
    for number in rounds:
        await tenant.order(f"A-{1000 + number}", 100_00)

    async def play(number: int) -> list[Answer]:
        bodies = [_refund(f"k{number}", amount, f"A-{1000 + number}") for amount in ("10.00", "90.00")]
        random.shuffle(bodies)
        return await together(stage.check(key, body) for body in bodies)

    played = [await play(number) for number in rounds[:25]] + list(await asyncio.gather(*(play(number) for number in rounds[25:])))
    for number, answers in enumerate(played):
        assert sorted(answer.said for answer in answers) == [ACCEPTED, REUSED]
        (winner,) = (answer for answer in answers if answer.said == ACCEPTED)
        ((amount, _),) = winner.holds.values()
        assert await tenant.held(f"resource:order:A-{1000 + number}") == int(amount.replace(".", ""))
    assert await tenant.value("SELECT count(*) FROM placet.holds WHERE tenant_id = $1") == 50
    assert await tenant.value("SELECT count(*) FROM placet.claims WHERE tenant_id = $1 AND settled") == 50
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == 0
    await tenant.is_sound()


async def _leave(stage: Stage, sent: bytes, after_s: float, how: str) -> None:
    async with stage.socket() as (_, writer):
        writer.write(sent)
        await writer.drain()
        await asyncio.sleep(after_s)
        if how == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_id_06_a_lost_answer_is_replayed(stage: Stage, how: str) -> None:
    """The client leaves before it reads; its retry gets one decision with one hold, whenever it left."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 100_00)
    replayed = 0
    for number in range(12):
        body = _refund(f"k{number}", f"1.{number:02}")
        await _leave(stage, stage.request(key, written(body)), number * 0.002, how)
        if number % 2:
            await asyncio.sleep(0.05)
        retry = await stage.check(key, body)
        assert retry.said == ACCEPTED
        stored = await tenant.rows("SELECT decision_id FROM placet.decisions WHERE tenant_id = $1 AND call_id = $2", f"k{number}")
        assert [str(row["decision_id"]) for row in stored] == [retry["decision_id"]]
        replayed += retry["replayed"]
    assert replayed > 0
    assert await tenant.held("resource:order:A-1001") == sum(100 + number for number in range(12))
    await tenant.is_sound()


async def test_id_06_a_body_that_never_came_whole_decides_nothing(stage: Stage) -> None:
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 100_00)
    whole = stage.request(key, written(_refund("k1")))
    for cut in (40, len(whole) - 200, len(whole) - 1):
        await _leave(stage, whole[:cut], 0.02, "close")
    await asyncio.sleep(0.1)
    assert await tenant.decisions() == 0
    retry = await stage.check(key, _refund("k1"))
    assert (retry.said, retry["replayed"], retry["execution_permitted"]) == (ACCEPTED, False, True)


async def test_id_07_a_replayed_turn_sends_both_calls_again(stage: Stage) -> None:
    """c1 comes back with its recorded decision and holds nothing new; c2, which waits, keeps its approval. Answering it is issue 4."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await tenant.order("A-1001", 129_90)
    await tenant.order("A-1002", 100_00)
    turn = [_refund("c1", "20.00", "A-1002", turn=3), _refund("c2", "129.90", turn=3)]
    c1, c2 = await together(stage.check(key, document) for document in turn)
    assert (c1.said, c2.said) == (ACCEPTED, ("needs_user", "needs_human_review"))
    for _ in range(2):
        again1, again2 = await together(stage.check(key, document) for document in turn)
        assert (again1["decision_id"], again1["replayed"], again1["execution_permitted"]) == (c1["decision_id"], True, False)
        assert again1["holds"] == c1["holds"]
        assert (again2.said, again2["execution_permitted"], again2.holds) == (c2.said, False, {})
        assert again2["approval"]["approval_id"] == c2["approval"]["approval_id"]
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == 1
    assert await tenant.held("resource:order:A-1002") == 20_00
    assert await tenant.held("resource:order:A-1001") == 0
    await tenant.is_sound()

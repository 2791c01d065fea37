"""Freezes: what an operator has stopped is refused at once, in every worker, before anything else is looked at (SPEC S3.3, S12.3)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.domain.errors import Conflict, NotFound, NotPermitted
from app.engine import change_authority
from app.engine.change_authority import SYSTEM, FreezeSpec
from tests.engine.conftest import STEPS, Gates
from tests.engine.shop import Shop, Worker, holds_agree, refund, search_order, working
from tests.engine.test_interleaving import start_meanwhile

WORDS = "refund spike, looking into it"
TARGETS = [
    ("tenant", "acme", "tenant_frozen", "an operator has stopped this service; tell the user and end here"),
    ("principal", "support-agent", "principal_frozen", "an operator has stopped this agent; tell the user and end here"),
    ("session", "chat-1", "session_frozen", "an operator has stopped this conversation; tell the user and end here"),
    ("tool", "refund", "tool_frozen", "an operator has stopped this tool; tell the user and end here"),
]


async def freeze(worker: Worker, shop: Shop, kind: str = "tenant", target: str = "acme", *, by_platform: bool = False) -> Any:
    return await worker.writer.set_freeze(SYSTEM, shop.acme.tenant_id, FreezeSpec(kind, target, WORDS, by_platform))


async def lift(worker: Worker, shop: Shop, freeze_id: Any) -> Any:
    return await worker.writer.lift_freeze(SYSTEM, shop.acme.tenant_id, freeze_id, by_platform=False)


@pytest.mark.parametrize(("kind", "target", "reason", "message"), TARGETS, ids=[each[0] for each in TARGETS])
async def test_each_kind_of_freeze_refuses_its_calls_and_no_others(shop: Shop, kind: str, target: str, reason: str, message: str) -> None:
    """API.md 3.4, its answer whole; the nearest call that the freeze isn't for is decided as ever."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        await freeze(worker, shop, kind, target)
        found = await worker.check(token, refund("c1"))
        if kind == "tenant":
            other = await worker.check(shop.globex.tokens["agent"], refund("c2"))
        elif kind == "principal":
            other = await worker.check(shop.acme.tokens["other"], refund("c2", session_id="chat-2"))
        elif kind == "session":
            other = await worker.check(token, refund("c2", session_id="chat-2"))
        else:
            other = await worker.check(token, search_order("c2"))
    check = {"name": f"{kind}:{target}", "outcome": "denied", "reason": reason, "message": message}
    expected: dict[str, Any] = {
        "decision": "denied",
        "execution_permitted": False,
        "replayed": False,
        "reason": reason,
        "refused_by": "freeze",
        "layers": [{"name": "freeze", "outcome": "denied", "checks": [check], "duration_us": 0}],
        "cuts": [],
        "holds": [],
        "obligations": [],
        "limits": [],
        "fix_hint": {
            "denial_class": "permission",
            "retryable": "never",
            "message": message,
            "next_action": {"kind": "stop"},
            "attempts_left": 0,
        },
        "policy_version": 1,
    }
    assert {name: value for name, value in found.items() if name not in ("decision_id", "decided_at", "audit")} == expected
    assert (other["decision"], other["reason"]) == ("accepted", "within_policy")


async def test_every_freeze_of_a_call_is_named_and_the_widest_gives_the_reason(shop: Shop) -> None:
    """S3.2: a refusal reports every check of the refusing layer."""
    async with working(shop.url) as worker:
        for kind, target, *_ in reversed(TARGETS):
            await freeze(worker, shop, kind, target)
        found = await worker.check(shop.acme.tokens["agent"], refund("c1"))
    assert found["reason"] == "tenant_frozen"
    assert [check["name"] for check in found["layers"][0]["checks"]] == [f"{kind}:{target}" for kind, target, *_ in TARGETS]


async def test_a_call_is_told_in_its_locale(shop: Shop) -> None:
    """S3.12."""
    async with working(shop.url) as worker:
        await freeze(worker, shop)
        found = await worker.check(shop.acme.tokens["agent"], refund("c1", locales=("zh", "en")))
    assert found["fix_hint"]["message"] == "管理员已停用此服务；请告知用户并在此结束"


async def test_a_frozen_call_neither_claims_nor_settles_nor_replays(shop: Shop) -> None:
    """S3.3: the freeze comes before idempotency, so that a call id means after it what it meant before."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first = await worker.check(token, refund("c1"))
        made = await freeze(worker, shop)
        again = await worker.check(token, refund("c1"))
        reused = await worker.check(token, refund("c1", "20.01"))
        new = await worker.check(token, refund("c2", "5.00", session_id="chat-new"))
        foreign = await worker.check(shop.acme.tokens["other"], refund("c3"))
        for found in (again, reused, new, foreign):
            assert (found["reason"], found["replayed"], found["execution_permitted"]) == ("tenant_frozen", False, False)
        assert await shop.value("SELECT count(*) FROM placet.claims") == 1
        assert await shop.value("SELECT array_agg(session_id) FROM placet.sessions") == ["chat-1"]
        assert await shop.value("SELECT count(*) FROM placet.holds") == 2
        assert await shop.value("SELECT count(*) FROM placet.rule_refusals") == 0
        attempts = await shop.rows("SELECT call_id, attempt FROM placet.decisions WHERE reason = 'tenant_frozen' ORDER BY sequence")
        assert [(row["call_id"], row["attempt"]) for row in attempts] == [("c1", 0), ("c1", 0), ("c2", 0), ("c3", 0)]
        await lift(worker, shop, made.freeze_id)
        replayed = await worker.check(token, refund("c1"))
        decided = await worker.check(token, refund("c2", "5.00", session_id="chat-new"))
        reused = await worker.check(token, refund("c1", "20.01"))
    assert (replayed["replayed"], replayed["decision_id"], replayed["execution_permitted"]) == (True, first["decision_id"], False)
    assert (decided["decision"], decided["replayed"], decided["execution_permitted"]) == ("accepted", False, True)
    assert reused["reason"] == "call_id_reused"
    assert await shop.value("SELECT attempt FROM placet.claims WHERE call_id = 'c2'") == 1
    await holds_agree(shop)


async def test_a_frozen_call_leaves_its_approval_pending(shop: Shop) -> None:
    """S3.9: the same approval waits when the freeze is over."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        waits = await worker.check(token, refund("c1", "129.90"))
        made = await freeze(worker, shop, "tool", "refund")
        assert (await worker.check(token, refund("c1", "129.90")))["reason"] == "tool_frozen"
        await lift(worker, shop, made.freeze_id)
        again = await worker.check(token, refund("c1", "129.90"))
    assert (waits["decision"], again["decision"]) == ("needs_user", "needs_user")
    assert again["approval"]["approval_id"] == waits["approval"]["approval_id"]


@pytest.mark.parametrize("step", STEPS)
async def test_no_decision_commits_behind_a_freeze_that_it_does_not_obey(shop: Shop, gates: Gates, step: str) -> None:
    """S12.3: set by one worker while another's decision is under way, before each of its round trips. Whichever commits first, the chain
    says the same: behind the freeze there is no permit."""
    token = shop.acme.tokens["agent"]
    started: list[asyncio.Task[Any]] = []
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        await a.check(token, search_order("c0"))
        gates.before("a", step, start_meanwhile(shop, started, lambda: freeze(b, shop)))
        answer = await a.check(token, refund("c1"))
        await started[0]
        later = [await worker.check(token, refund(f"c{n}")) for n, worker in enumerate((a, b), 2)]
    assert [each["reason"] for each in later] == ["tenant_frozen", "tenant_frozen"]
    set_at = await shop.value("SELECT sequence FROM placet.audit_rows WHERE event = 'freeze.set'")
    if step == "commit":  # the decision holds the chain's head, the freeze waits for it
        assert (answer["decision"], answer["audit"]["sequence"]) == ("accepted", set_at - 1)
    else:
        assert (answer["reason"], answer["audit"]["sequence"]) == ("tenant_frozen", set_at + 1)
        assert await shop.value("SELECT count(*) FROM placet.holds") == 0
        assert await shop.value("SELECT count(*) FROM placet.claims WHERE call_id = 'c1'") == 0


async def test_a_call_that_waits_while_the_freeze_is_lifted_is_decided(shop: Shop, gates: Gates) -> None:
    """The authority is confirmed for a frozen call as well, at the write."""
    token = shop.acme.tokens["agent"]
    started: list[asyncio.Task[Any]] = []
    async with gates.worker("a", shop) as a, gates.worker("b", shop) as b:
        made = await freeze(b, shop)
        gates.before("a", "record_batch", start_meanwhile(shop, started, lambda: lift(b, shop, made.freeze_id)))
        found = await a.check(token, refund("c1"))
        await started[0]
    assert (found["decision"], found["execution_permitted"]) == ("accepted", True)


async def test_a_frozen_call_and_others_are_decided_in_one_batch(shop: Shop, gates: Gates) -> None:
    """A batch may hold a frozen tenant's calls beside another's."""
    async with gates.worker("a", shop) as worker:
        await freeze(worker, shop)
        ours, theirs = await asyncio.gather(
            worker.check(shop.acme.tokens["agent"], refund("c1")), worker.check(shop.globex.tokens["agent"], refund("c1"))
        )
    assert (ours["reason"], theirs["decision"]) == ("tenant_frozen", "accepted")


async def test_a_freeze_and_its_end_are_rows_and_the_words_are_in_the_payload(shop: Shop) -> None:
    """S10.1, S10.3: the operator's words can be erased, and no decision has them."""
    async with working(shop.url) as worker:
        made = await freeze(worker, shop, "session", "chat-1")
        await worker.check(shop.acme.tokens["agent"], refund("c1"))
        lifted = await lift(worker, shop, made.freeze_id)
        assert await lift(worker, shop, made.freeze_id) == lifted
    rows = await shop.rows("SELECT * FROM placet.audit_rows WHERE event LIKE 'freeze.%' ORDER BY sequence")
    assert [(row["event"], row["session_id"]) for row in rows] == [("freeze.set", "chat-1"), ("freeze.lifted", "chat-1")]
    for row in rows:
        body = json.loads(row["body"])
        assert (body["freeze_id"], body["target"], WORDS in row["body"]) == (str(made.freeze_id), "session:chat-1", False)
    payloads = await shop.rows("SELECT sequence, body FROM placet.audit_payloads WHERE body LIKE $1", f"%{WORDS}%")
    assert [(row["sequence"], json.loads(row["body"])) for row in payloads] == [(rows[0]["sequence"], {"stated_reason": WORDS})]


async def test_two_freezes_of_one_thing_are_lifted_one_by_one(shop: Shop) -> None:
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        first, second = await freeze(worker, shop), await freeze(worker, shop)
        await lift(worker, shop, first.freeze_id)
        assert (await worker.check(token, refund("c1")))["reason"] == "tenant_frozen"
        await lift(worker, shop, second.freeze_id)
        assert (await worker.check(token, refund("c1")))["decision"] == "accepted"


async def test_what_the_platform_froze_only_the_platform_lifts(shop: Shop) -> None:
    async with working(shop.url) as worker:
        made = await freeze(worker, shop, by_platform=True)
        with pytest.raises(NotPermitted):
            await lift(worker, shop, made.freeze_id)
        assert (await worker.check(shop.acme.tokens["agent"], refund("c1")))["reason"] == "tenant_frozen"
        await worker.writer.lift_freeze(SYSTEM, shop.acme.tenant_id, made.freeze_id, by_platform=True)
        assert (await worker.check(shop.acme.tokens["agent"], refund("c1")))["decision"] == "accepted"


async def test_freezes_are_bounded_and_of_one_tenant(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker remembers each that is in force; another tenant's is no such thing."""
    monkeypatch.setattr(change_authority, "FREEZES_MAX", 2)
    async with working(shop.url) as worker:
        made = [await freeze(worker, shop, "tool", name) for name in ("one", "two")]
        with pytest.raises(Conflict) as full:
            await freeze(worker, shop, "tool", "three")
        assert full.value.code == "too_many_freezes"
        await lift(worker, shop, made[0].freeze_id)
        await freeze(worker, shop, "tool", "three")
        with pytest.raises(NotFound):
            await worker.writer.lift_freeze(SYSTEM, shop.globex.tenant_id, made[1].freeze_id, by_platform=True)

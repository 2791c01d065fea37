"""The story: what is asked, what has to be answered, act by act, each on an order of its own (policies/shop/demo/data.sql).

An act says in its sentence what its code checks; whoever changes one changes the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.demo.stage import Answer, Stage, checks_that_refused

ACCEPTED = {"decision": "accepted", "execution_permitted": True, "reason": "within_policy"}
TOOLS = frozenset({"refund", "cancel_order", "delete_customer_data", "search_order", "send_message"})
OWN = frozenset({"decision_id", "decided_at", "audit"})
"""What differs between any two answers, whatever they say."""


@dataclass(frozen=True, slots=True)
class Act:
    """`title` and `expected` are sentences for the reader; `play` raises WentOtherwise where an answer is another."""

    name: str
    title: str
    expected: str
    play: Callable[[Stage], Awaitable[None]]


async def _hundredfold(stage: Stage) -> None:
    answer = await stage.refund("A-5001", 12990.00, "call_01")
    stage.expect(
        answer,
        {
            "decision": "denied",
            "refused_by": "semantic",
            "reason": "amount_exceeds_refundable",
            "execution_permitted": False,
            "fix_hint.field": "/amount",
            "fix_hint.actual": 12990,
            "fix_hint.expected": {"exclusiveMinimum": 0, "maximum": 129.9},
            "fix_hint.suggested_arguments.amount": 129.9,
            "fix_hint.suggestion_verified": True,
            "fix_hint.suggestion_decision": "needs_user",
        },
    )


async def _whole(stage: Stage) -> None:
    answer = await stage.refund("A-5002", 129.90, "call_01")
    stage.expect(
        answer, {"decision": "needs_user", "reason": "needs_human_review", "execution_permitted": False, "approval.status": "pending"}
    )
    stage.require(answer["risk"]["score"] >= answer["risk"]["review_at"], "the risk isn't over the threshold")


async def _complaints(stage: Stage) -> None:
    answer = await stage.refund("A-3001", 129.90, "call_01", customer="cust-79")
    stage.expect(answer, ACCEPTED)
    factors = {each["name"]: each["contribution"] for each in answer["risk"]["factors"]}
    stage.require(factors.get("many_complaints", 0) < 0, "the complaints didn't lower the score")


async def _small(stage: Stage) -> None:
    answer = await stage.refund("A-5003", 20.00, "call_01")
    stage.expect(
        answer,
        ACCEPTED
        | {
            "side_effects.rows.0.table": "shop.orders",
            "side_effects.rows.0.before": {"refunded_minor": 0},
            "side_effects.rows.0.after": {"refunded_minor": 2000},
            "side_effects.counts": {
                "shop.orders": {"inserted": 0, "updated": 1, "deleted": 0},
                "shop.refunds": {"inserted": 1, "updated": 0, "deleted": 0},
            },
            "holds.0.account": "order:A-5003",
            "holds.0.quantity": {"amount": "20.00", "currency": "EUR"},
            "compensation.tool": "reverse_refund",
            "compensation.arguments": {"order_id": "A-5003", "amount": 20, "currency": "EUR"},
            "compensation.unresolved": ["/refund_id"],
        },
    )
    again = await stage.refund("A-5003", 20.00, "call_01")
    stage.expect(again, {"replayed": True, "execution_permitted": False, "decision": "accepted", "decision_id": answer["decision_id"]})
    other = await stage.refund("A-5003", 25.00, "call_01")
    stage.expect(other, {"decision": "denied", "reason": "call_id_reused", "execution_permitted": False})


async def _twice_at_once(stage: Stage) -> None:
    both = await asyncio.gather(stage.refund("A-5004", 100.00, "call_01"), stage.refund("A-5004", 100.00, "call_02"))
    loser = _one_won(stage, both)
    stage.require("amount_exceeds_refundable" in checks_that_refused(loser), "the other wasn't told that the amount is held")


async def _indistinguishable(stage: Stage) -> None:
    nobodys = await stage.refund("A-9999", 10.00, "call_01")
    anothers = await stage.refund("A-2001", 10.00, "call_02")
    for answer in (nobodys, anothers):
        stage.expect(answer, {"decision": "denied", "refused_by": "semantic", "reason": "order_not_found"})
    alike = _without_ids(nobodys, "A-9999", "call_01") == _without_ids(anothers, "A-2001", "call_02")
    stage.require(alike, "the two answers can be told apart")
    stage.remarks.append("but for ids and times, the two answers are the same, byte for byte")


async def _again(stage: Stage) -> None:
    stage.expect(await stage.refund("A-5005", 20.00, "call_01"), ACCEPTED)
    answer = await stage.refund("A-5005", 20.00, "call_02")
    stage.expect(answer, {"decision": "denied", "refused_by": "semantic", "reason": "already_refunded"})


async def _half_a_yen(stage: Stage) -> None:
    answer = await stage.refund("A-5006", 500.5, "call_01", currency="JPY")
    stage.expect(answer, {"decision": "denied", "refused_by": "static", "reason": "amount_not_exact", "fix_hint.field": "/amount"})


async def _beside(stage: Stage) -> None:
    both = await asyncio.gather(stage.refund("A-5007", 80.00, "call_01"), _cancel(stage, "A-5007", "call_02"))
    loser = _one_won(stage, both)
    stage.require(
        bool({"order_in_use", "amount_exceeds_refundable"} & set(checks_that_refused(loser))), "the other wasn't told what is in its way"
    )


async def _after(stage: Stage) -> None:
    stage.expect(await _cancel(stage, "A-5008", "call_01"), ACCEPTED | {"holds.0.quantity": {"amount": "80.00", "currency": "EUR"}})
    answer = await stage.refund("A-5008", 20.00, "call_02")
    stage.expect(answer, {"decision": "denied", "refused_by": "semantic", "reason": "amount_exceeds_refundable"})


async def _deletion(stage: Stage) -> None:
    arguments = {"customer_id": "cust-80", "cause": "customer_asked"}
    asked = "delete the data of customer cust-80, who has 5,000 events"
    answer = await stage.ask(asked, "delete_customer_data", arguments, "call_01", customer="cust-80")
    stage.expect(answer, {"decision": "denied", "refused_by": "sandbox", "reason": "blast_radius_exceeded", "execution_permitted": False})
    deleted = answer.get("side_effects", {}).get("counts", {}).get("shop.events", {}).get("deleted")
    stage.require(deleted == 5000, f"the dry run would have deleted {deleted} rows, not 5000")
    stage.remarks.append("the dry run would have deleted 5,000 rows, and was rolled back")


async def _read(stage: Stage) -> None:
    answer = await stage.ask("look up order A-5009", "search_order", {"order_id": "A-5009"}, "call_01")
    stage.expect(answer, ACCEPTED)
    walked = [layer["name"] for layer in answer["layers"]]
    stage.require(walked == ["static", "scope"], f"the layers are {', '.join(walked)}")
    stage.remarks.append("a read is judged by static and scope alone")


async def _message(stage: Stage) -> None:
    arguments = {"order_id": "A-5010", "subject": "Your order", "body": "Your order is on its way. See https://shop.example/orders/A-5010"}
    answer = await stage.ask("write to the customer about order A-5010", "send_message", arguments, "call_01")
    stage.expect(answer, ACCEPTED | {"side_effects.strategy": "mock", "side_effects.rows.0.operation": "insert"})
    arguments = {"order_id": "A-5010", "subject": "Your order", "body": "Click https://shop.example.evil.example/login"}
    answer = await stage.ask("write with a link to another house", "send_message", arguments, "call_02")
    stage.expect(answer, {"decision": "denied", "refused_by": "static", "reason": "link_not_allowed", "fix_hint.field": "/body"})


async def _chinese(stage: Stage) -> None:
    answer = await stage.refund("A-1002", 1000.00, "call_01", locale="zh")
    message = "金额为 1000.00 EUR，订单 A-1002 最多还可退 100.00 EUR"
    stage.expect(answer, {"decision": "denied", "reason": "amount_exceeds_refundable", "fix_hint.message": message})


STORY = (
    Act(
        "hundredfold",
        "A refund a hundred times too large: 12990.00 instead of 129.90 EUR",
        "denied in semantic, with field, actual, expected and a verified suggestion",
        _hundredfold,
    ),
    Act("whole", "All that was paid, 129.90 EUR", "needs_user: the risk is over the threshold, so a person decides", _whole),
    Act("complaints", "The same for a customer with more than three complaints", "accepted: who complains often is known", _complaints),
    Act(
        "small",
        "20.00 EUR, then the same call again, then its call id with 25.00 EUR",
        "accepted with the dry run's diff, the hold and what would take it back; replayed, which permits nothing; call_id_reused",
        _small,
    ),
    Act("at_once", "100.00 EUR twice at the same moment, of 129.90 EUR", "never both", _twice_at_once),
    Act(
        "not_found",
        "An order that isn't there, and one of another customer",
        "order_not_found, so that neither answer says which it was",
        _indistinguishable,
    ),
    Act("again", "The same refund under another call id", "already_refunded", _again),
    Act("half_a_yen", "500.5 JPY", "denied in static: yen have no half", _half_a_yen),
    Act("beside", "A refund and a cancellation of one order at the same moment", "one wins, the other is told why", _beside),
    Act("after", "A refund after a cancellation of the same order", "denied: the cancellation holds all of it", _after),
    Act("deletion", "A deletion that would touch 5,000 rows", "denied in sandbox: over the blast radius", _deletion),
    Act("read", "A look at an order", "accepted, in two layers", _read),
    Act(
        "message",
        "A message to the customer, and one with a link to another house",
        "accepted with a prediction of what it does; link_not_allowed",
        _message,
    ),
    Act("chinese", "1000.00 EUR of 100.00, asked in Chinese", "a hint in Chinese", _chinese),
)


async def _cancel(stage: Stage, order: str, call: str) -> Answer:
    return await stage.ask(f"cancel order {order}", "cancel_order", {"order_id": order, "cause": "changed_mind"}, call)


def _one_won(stage: Stage, both: tuple[Answer, ...] | list[Answer]) -> Answer:
    """Require one permission among two answers; give the other answer."""
    losers = [answer for answer in both if not answer["execution_permitted"]]
    decisions = " and ".join(str(answer["decision"]) for answer in both)
    stage.require(len(losers) == 1 and losers[0]["decision"] == "denied", f"the two answers are {decisions}")
    return losers[0]


def _without_ids(answer: Answer, order: str, call: str) -> str:
    """Give an answer as text without what any two answers differ in, nor the ids that were sent."""
    kept = {name: value for name, value in answer.items() if name not in OWN}
    kept["layers"] = [{name: value for name, value in layer.items() if name != "duration_us"} for layer in kept["layers"]]
    return json.dumps(kept).replace(order, "an order").replace(call, "a call")

"""What would make good, in the answers that permit and nowhere else (S8.3, API.md 1.6)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from app.domain.decision import Decision
from app.guards.compensation import plan_compensation
from app.policy.expressions import Bindings
from app.policy.model import Compensation
from tests.guards.judging import FILES, POLICY, judge, policy_with

WRITTEN = '{order_id: "{args.order_id}", refund_id: "{result.refund_id}", amount: "{args.amount}", currency: "{args.currency}"}'
FILE = "tools/refund.yaml"


def test_a_permitted_refund_says_what_would_take_it_back() -> None:
    """The refund's id is the result's to give, so it is named and not guessed; nothing claims to be an inverse."""
    verdict = judge(arguments={"amount": Decimal("20.00")})
    assert verdict.decision is Decision.ACCEPTED
    assert verdict.compensation == {
        "tool": "reverse_refund",
        "arguments": {"order_id": "A-1001", "amount": Decimal(20), "currency": "EUR"},
        "unresolved": ["/refund_id"],
        "status": "planned",
    }


@pytest.mark.parametrize("amount", [Decimal("12990.00"), Decimal("129.90")])
def test_what_is_refused_or_waits_for_a_person_plans_nothing(amount: Decimal) -> None:
    verdict = judge(arguments={"amount": amount})
    assert verdict.decision in (Decision.DENIED, Decision.NEEDS_USER)
    assert verdict.compensation is None


def test_an_irreversible_tool_plans_nothing() -> None:
    policy = policy_with((FILE, _section(), "compensation: irreversible\n"))
    assert policy.tools["refund"].compensation is None
    assert judge(policy).compensation is None


def test_what_was_not_sent_is_left_out_and_a_text_that_needs_it_is_unresolved() -> None:
    policy = policy_with((FILE, WRITTEN, '{order_id: "{args.order_id}", note: "{args.note}", why: "because {args.note}"}'))
    plan = judge(policy).compensation
    assert plan is not None
    assert (plan["arguments"], plan["unresolved"]) == ({"order_id": "A-1001"}, ["/why"])
    plan = judge(policy, arguments={"note": "late"}).compensation
    assert plan is not None
    assert plan["arguments"] == {"order_id": "A-1001", "note": "late", "why": "because late"}


def test_what_facts_said_may_be_put_back() -> None:
    policy = policy_with((FILE, WRITTEN, '{was: {status: "{order.status}", refunded: "{order.refunded}"}, fixed: 3}'))
    plan = judge(policy).compensation
    assert plan is not None
    assert plan["arguments"] == {"was": {"status": "delivered", "refunded": 0}, "fixed": 3}


def test_an_argument_that_holds_a_part_of_the_result_waits_as_a_whole() -> None:
    policy = policy_with((FILE, WRITTEN, '{"a/b~": [{id: "{result.id}"}, 1], text: "{{result.id}} stays"}'))
    compensation = policy.tools["refund"].compensation
    assert isinstance(compensation, Compensation)
    assert compensation.unresolved == ("/a~1b~0",)
    plan = judge(policy).compensation
    assert plan is not None
    assert plan["arguments"] == {"text": "{result.id} stays"}


def test_planning_leaves_the_compiled_plan_as_it_was() -> None:
    compensation = POLICY.tools["refund"].compensation
    assert compensation is not None
    nothing = Bindings(None, {})  # type: ignore[arg-type] # no expression is evaluated
    assert plan_compensation(compensation, nothing)["unresolved"] == ["/refund_id", "/order_id", "/amount", "/currency"]
    assert compensation.unresolved == ("/refund_id",)


def _section() -> str:
    text = FILES[FILE]
    return text[text.index("compensation:") :]

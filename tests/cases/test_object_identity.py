"""Faults of object identity that others shipped: an id that a model mistyped, and an object that isn't the customer's who is served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases.stage import CUSTOMER, Answer, Stage, Tenant, Text, with_tool

ACCEPTED = ("accepted", "within_policy")
MALFORMED = ("denied", "schema_invalid")
OTHER = "cust-78"
ADDRESS = {"name": "Ada", "street": "Lindenstr. 4", "postcode": "10969", "city": "Berlin", "country": "DE"}
NOT_FOUND = ("denied", "order_not_found")
TOOLS: Mapping[str, dict[str, Any]] = {
    "refund": {"amount": Text("5.00"), "currency": "EUR", "cause": "damaged"},
    "cancel_order": {"cause": "changed_mind"},
    "update_address": {"address": ADDRESS},
    "send_message": {"subject": "Your order", "body": "It is on its way"},
}
"""The tools that look an order up, with the rest of their arguments."""

OWN = ("decision_id", "decided_at", "duration_us", "audit", "tool_call_id")
"""What every answer has of its own."""


async def _tenant(stage: Stage) -> Tenant:
    """Give a shop in which the served customer has A-1001 and another customer has A-1002, both in a state that all tools allow."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 20_00, status="paid")
    await tenant.order("A-1002", 20_00, status="paid", customer=OTHER)
    return tenant


async def _ask(tenant: Tenant, tool: str, order_id: str, **more: Any) -> Answer:
    return await tenant.call(tool, {"order_id": order_id, **TOOLS.get(tool, {})}, **{"on_behalf_of": CUSTOMER, **more})


def _told(answer: Answer, order_id: str) -> Any:
    """Give all that an answer says, but for the ids and times; the order is called by one name."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in OWN}
        return [without(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(without(answer.body), default=str, sort_keys=True)
    assert order_id in text
    return json.loads(text.replace(order_id, "THE-ORDER"))


async def _nothing_but_refusals(tenant: Tenant, refusals: int) -> None:
    """Assert that what is stored of a tenant are so many refused decisions, and nothing that any of them would have led to."""
    rows = await tenant.events("tool_call.decided")
    assert [row["decision"] for row in rows] == ["denied"] * refusals
    for table in ("holds", "approvals"):
        assert await tenant.value(f"SELECT count(*) FROM placet.{table} WHERE tenant_id = $1") == 0
    assert await tenant.value("SELECT coalesce(sum(held), 0) FROM placet.accounts WHERE tenant_id = $1") == 0
    await tenant.is_sound()


@pytest.mark.parametrize("tool", TOOLS)
async def test_ob_01_an_id_of_nobody_and_an_id_of_somebody_else_are_the_same(stage: Stage, tool: str) -> None:
    """S3.12: word for word, in the answer and in the chain; the hint says to look the order up again, and names nobody else's."""
    tenant = await _tenant(stage)
    foreign, missing = [await _ask(tenant, tool, order, session_id=f"for-{order}") for order in ("A-1002", "A-1007")]
    assert foreign.said == missing.said == NOT_FOUND
    assert foreign["refused_by"] == "semantic"
    assert _told(foreign, "A-1002") == _told(missing, "A-1007")
    hint = foreign["fix_hint"]
    assert (hint["field"], hint["actual"]) == ("/order_id", "A-1002")
    assert hint["next_action"] == {"kind": "call_first", "tool": "search_order"}
    assert "suggested_arguments" not in hint
    for answer, asked in ((foreign, "A-1002"), (missing, "A-1007")):
        assert [other for other in ("A-1001", "A-1002", "A-1007", OTHER) if other in answer.text] == [asked]
    await _nothing_but_refusals(tenant, 2)
    own = await _ask(tenant, tool, "A-1001")
    assert own.said == ACCEPTED


async def test_ob_01_deleting_somebody_elses_data_is_as_deleting_nobodys(stage: Stage) -> None:
    """The one tool whose argument names a customer: it has to be the one who is served."""
    tenant = await _tenant(stage)

    async def ask(customer: str) -> Answer:
        arguments = {"customer_id": customer, "cause": "customer_asked"}
        return await tenant.call("delete_customer_data", arguments, on_behalf_of=CUSTOMER, session_id=f"for-{customer}")

    foreign, missing = await ask(OTHER), await ask("cust-99")
    assert foreign.said == missing.said == ("denied", "customer_not_found")
    assert _told(foreign, OTHER) == _told(missing, "cust-99")
    assert foreign["fix_hint"]["next_action"] == {"kind": "stop"}
    assert "approval" not in foreign.body
    await _nothing_but_refusals(tenant, 2)
    own = await ask("cust-77")
    assert own.said == ("denied", "orders_open")  # found, which the others weren't


SPELLINGS = (
    "a-1001", "A_1001", "A1001", "{A-1001}", " A-1001", "A-1001 ", "A-1001\n", "A-1001\u00a0", "A\u20111001", "\u0410-1001", "A-100\uff11",
    "A-\u0661\u0660\u0660\u0661", "A-1001-", "A--1001", "A-01001;", "A-1001' OR ''='", "A-1001/../A-1002", "A-*", "A-100%31", "",
)  # fmt: skip


@pytest.mark.parametrize("tool", [*TOOLS, "search_order"])
async def test_ob_01_another_spelling_of_an_id_is_no_id(stage: Stage, tool: str) -> None:
    """Nothing is folded, trimmed or guessed: the static layer refuses the form before anything is looked up."""
    tenant = await _tenant(stage)
    for spelling in SPELLINGS:
        answer = await _ask(tenant, tool, spelling)
        assert answer.said == MALFORMED, spelling
        assert (answer["refused_by"], answer["fix_hint"]["field"]) == ("static", "/order_id"), spelling
        assert [layer["name"] for layer in answer["layers"]] == ["static"]
        assert "suggested_arguments" not in answer["fix_hint"]
    await _nothing_but_refusals(tenant, len(SPELLINGS))


async def test_ob_01_leading_zeros_make_another_id(stage: Stage) -> None:
    tenant = await _tenant(stage)
    assert (await _ask(tenant, "refund", "A-01001")).said == NOT_FOUND


async def test_ob_01_the_id_of_an_approval_is_one_id_in_either_case_and_no_other_form(stage: Stage) -> None:
    """S3.1: an upper-case UUID is the same UUID; a braced or unhyphenated one is none; one character off is `approval_mismatch`."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    asked = await tenant.refund("A-1001", "129.90", "c1")
    approval = asked["approval"]["approval_id"]
    last = "0" if approval[-1] != "0" else "1"
    for spelling, said in (
        (approval, ("needs_user", "needs_human_review")),
        (approval.upper(), ("needs_user", "needs_human_review")),
        (approval[:-1] + last, ("denied", "approval_mismatch")),
        ("{" + approval + "}", ("422", "request_invalid")),
        (approval.replace("-", ""), ("422", "request_invalid")),
        (f"urn:uuid:{approval}", ("422", "request_invalid")),
    ):
        answer = await tenant.refund("A-1001", "129.90", "c1", approval_id=spelling)
        assert answer.said == said, spelling
        assert answer["execution_permitted"] is False
        if answer.status == 200 and answer["decision"] == "needs_user":
            assert answer["approval"]["approval_id"] == approval
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == 1
    assert await tenant.held("resource:order:A-1001") == 0


async def test_ob_01_ids_in_arguments_never_stand_for_those_of_the_envelope(stage: Stage) -> None:
    """Who is served, which session and which task are the runtime's: in the shop's tools such an argument is refused, in a free tool
    it is data that binds nothing."""
    tenant = await stage.tenant(with_tool("note", "{type: object}"))
    await tenant.order("A-1001", 20_00, status="paid")
    await tenant.order("A-1002", 20_00, status="paid", customer=OTHER)
    ids = {
        "customer_id": OTHER,
        "session_id": "chat-9",
        "task_id": "task-9",
        "run_id": "run-9",
        "call_id": "c-9",
        "on_behalf_of": {"id": OTHER},
    }
    for tool in (*TOOLS, "search_order"):
        for name, value in ids.items():
            arguments = {"order_id": "A-1002", **TOOLS.get(tool, {}), name: value}
            answer = await tenant.call(tool, arguments, on_behalf_of=CUSTOMER, task_id="task-1")
            assert answer.said == MALFORMED, (tool, name)
            assert answer["fix_hint"]["field"] == f"/{name}"
    noted = await tenant.call("note", ids, session_id="chat-1", task_id="task-1", on_behalf_of=CUSTOMER)
    assert noted.said == ACCEPTED
    row = (await tenant.events("tool_call.decided"))[-1]
    assert (row["session_id"], row["task_id"]) == ("chat-1", "task-1")
    assert await tenant.value("SELECT count(*) FROM placet.decisions WHERE tenant_id = $1 AND session_id <> 'chat-1'") == 0


@pytest.mark.parametrize("tool", TOOLS)
async def test_ob_02_whoever_asks_no_tool_reaches_another_customers_order(stage: Stage, tool: str) -> None:
    """In both directions, so that the order is there for its owner and only for it: what a role allows is not what it may touch."""
    tenant = await _tenant(stage)
    served = {"cust-77": "A-1001", OTHER: "A-1002"}
    for customer in served:
        for owner, order in served.items():
            behalf = {"id": customer, "segment": "trusted_buyer"}
            answer = await _ask(tenant, tool, order, on_behalf_of=behalf, session_id=f"chat-{customer}")
            assert answer.said == (ACCEPTED if owner == customer else NOT_FOUND), (customer, order)
            assert answer["execution_permitted"] is (owner == customer)
            if owner != customer:
                assert (answer["refused_by"], answer.holds) == ("semantic", {})
                assert "side_effects" not in answer.body
    holds = await tenant.rows("SELECT account FROM placet.holds WHERE tenant_id = $1 AND account LIKE 'resource:%' ORDER BY 1")
    money = tool in ("refund", "cancel_order")
    assert [row["account"] for row in holds] == (["resource:order:A-1001", "resource:order:A-1002"] if money else [])
    await tenant.is_sound()


async def test_ob_02_a_look_is_below_the_customer_who_is_served(stage: Stage) -> None:
    """A read has static and scope only, so nothing is looked up: what it needs names the served customer, and what it is granted lies
    below that one. Another's order and one that isn't there are therefore the same permitted question about the served customer."""
    tenant = await _tenant(stage)
    answers = [await tenant.call("search_order", {"order_id": order}) for order in ("A-1001", "A-1002", "A-1007")]
    for answer, order in zip(answers, ("A-1001", "A-1002", "A-1007"), strict=True):
        assert answer.said == ACCEPTED
        assert [layer["name"] for layer in answer["layers"]] == ["static", "scope"]
        assert [entry["resource"] for entry in answer["effective_scope"]] == [f"customer:cust-77/orders/{order}"]
        assert OTHER not in answer.text
    assert _told(answers[1], "A-1002") == _told(answers[2], "A-1007")
    others = [{"action": "search_order", "resource": f"customer:{OTHER}/orders/A-1002"}]
    outside = await tenant.call("search_order", {"order_id": "A-1002"}, requested_scope=others)
    assert outside.said == ("denied", "outside_requested_scope")
    nobody = await tenant.call("search_order", {"order_id": "A-1002"}, on_behalf_of=None)
    assert nobody.said == ("denied", "not_granted")
    assert nobody["refused_by"] == "scope"


@pytest.mark.parametrize("customer", ["*", "**", "cust-*", "cust-78/orders/A-1002", "../cust-78", "cust-77/../cust-78", ".", "..", "%2a"])
async def test_ob_02_the_name_of_a_customer_widens_nothing(stage: Stage, customer: str) -> None:
    """A pattern or a path as the served customer's id: it is a text, or no resource at all, and reaches no order of anybody."""
    tenant = await _tenant(stage)
    behalf = {"id": customer, "segment": "standard"}
    for tool in TOOLS:
        answer = await _ask(tenant, tool, "A-1002", on_behalf_of=behalf)
        assert answer["decision"] == "denied", tool
        assert answer["reason"] in ("order_not_found", "not_granted"), tool
    look = await tenant.call("search_order", {"order_id": "A-1002"}, on_behalf_of=behalf)
    if look["decision"] == "accepted":
        (entry,) = look["effective_scope"]
        assert entry["resource"].count("/") == 2
        assert not entry["resource"].startswith(f"customer:{OTHER}/")


@pytest.mark.parametrize("owner", ["", "guest", "anonymous", "null", "None"])
@pytest.mark.parametrize("tool", TOOLS)
async def test_ob_02_an_order_without_an_owner_is_nobodys(stage: Stage, tool: str, owner: str) -> None:
    """A guest's order, or one whose owner is empty: neither a customer nor a call that serves nobody reaches it.

    A message needs a customer's mailbox, so without one the scope layer refuses; the others look the order up and find none.
    """
    tenant = await _tenant(stage)
    await tenant.order("A-1003", 20_00, status="paid", customer=owner)
    assert (await _ask(tenant, tool, "A-1003")).said == NOT_FOUND
    unserved = await _ask(tenant, tool, "A-1003", on_behalf_of=None)
    assert unserved.said == (("denied", "not_granted") if tool == "send_message" else NOT_FOUND)
    assert unserved["execution_permitted"] is False
    for empty in ("", None, 0, False, []):
        assert (await _ask(tenant, tool, "A-1003", on_behalf_of={"id": empty})).said == ("422", "request_invalid"), empty
    await _nothing_but_refusals(tenant, 2)

"""Faults of money that others shipped, over HTTP on a service with two workers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.cases.stage import CUSTOMER, SHOP, Stage, Tenant, calm, changed, said, together

EXCEEDS = ("denied", "amount_exceeds_refundable")
ACCEPTED = ("accepted", "within_policy")
NOT_EXACT = ("denied", "amount_not_exact")


@pytest.mark.parametrize("calls", [10, 40])
async def test_mo_01_parallel_refunds_in_two_tenants_never_exceed_the_payment(stage: Stage, calls: int) -> None:
    """S3.8: of parallel refunds of 60.00 on 100.00 one is accepted in each tenant; no 5xx; sums agree; the chains verify.

    The losers' first failing rule is `not_refunded_before`, which the bundle puts before `within_refundable`; both checks are shown.
    """
    tenants = [await stage.tenant(), await stage.tenant()]
    for tenant in tenants:
        await tenant.order("A-1002", 100_00)
    answers = await together(tenant.refund("A-1002", "60.00") for _ in range(calls) for tenant in tenants)
    assert {answer.status for answer in answers} == {200}
    for number, tenant in enumerate(tenants):
        own = answers[number::2]
        assert said(own) == {ACCEPTED: 1, ("denied", "already_refunded"): calls - 1}
        for loser in own:
            if loser["decision"] == "denied":
                check = loser.check("within_refundable")
                assert (check["reason"], check["expected"]["maximum"]) == ("amount_exceeds_refundable", 40)
                assert loser["execution_permitted"] is False
                assert loser.holds == {}
        held = {row["account"]: row["held"] for row in await tenant.rows("SELECT account, held FROM placet.accounts WHERE tenant_id = $1")}
        assert held.pop("resource:order:A-1002") == 60_00
        assert list(held.values()) == [60_00]  # the day's budget
        assert await tenant.decisions() == calls
        await tenant.is_sound()


@pytest.mark.parametrize(
    ("currency", "paid", "amounts", "wins"),
    [
        ("EUR", 100_00, [f"60.{cents:02}" for cents in range(12)], 1),
        ("EUR", 100_00, [f"30.{cents:02}" for cents in range(12)], 3),
        ("JPY", 10_000, [f"{6000 + yen}" for yen in range(12)], 1),
        ("KWD", 10_000, [f"6.{fils:03}" for fils in range(12)], 1),
    ],
)
async def test_mo_01_parallel_refunds_of_different_amounts(stage: Stage, currency: str, paid: int, amounts: list[str], wins: int) -> None:
    """The same with amounts that are all different, so that only the order's remainder can refuse; in other currencies too."""
    tenant = await stage.tenant()
    await tenant.order("A-1002", paid, currency)
    answers = await together(tenant.refund("A-1002", amount, currency=currency) for amount in amounts)
    assert said(answers) == {ACCEPTED: wins, EXCEEDS: len(amounts) - wins}
    held = await tenant.held("resource:order:A-1002")
    assert held == sum(_minor(amount) for amount, answer in zip(amounts, answers, strict=True) if answer["decision"] == "accepted")
    assert held <= paid
    await tenant.is_sound()


@pytest.mark.parametrize(
    ("currency", "paid", "most", "over", "rest", "least"),
    [
        ("EUR", 100_00, "99.00", "2.00", "1.00", "0.01"),
        ("JPY", 10_000, "9900", "200", "100", "1"),
        ("KWD", 10_000, "9.900", "0.101", "0.100", "0.001"),
    ],
)
@pytest.mark.parametrize("moved", [False, True], ids=["held", "in the order's row"])
async def test_mo_02_each_step_counts_what_went_before(
    stage: Stage, currency: str, paid: int, most: str, over: str, rest: str, least: str, moved: bool
) -> None:
    """Whether the first refund is still held or already in the order's row (outcomes can't be reported yet), the rest is what is left."""
    tenant = await stage.tenant()
    if moved:
        await tenant.order("A-1001", paid, currency, refunded=_minor(most))
    else:
        await tenant.order("A-1001", paid, currency)
        assert (await tenant.refund("A-1001", most, currency=currency)).said == ACCEPTED
    refused = await tenant.refund("A-1001", over, currency=currency)
    assert refused.said == EXCEEDS
    assert refused["fix_hint"]["expected"] == {"exclusiveMinimum": 0, "maximum": Decimal(rest)}
    assert refused["fix_hint"]["field"] == "/amount"
    assert (await tenant.refund("A-1001", rest, currency=currency)).said == ACCEPTED
    last = await tenant.refund("A-1001", least, currency=currency)
    assert last.said == EXCEEDS
    assert last["fix_hint"]["expected"]["maximum"] == 0
    await tenant.is_sound()


@pytest.mark.parametrize("status", ["paid", "shipped", "delivered"])
async def test_mo_04_an_order_that_may_be_refunded(stage: Stage, status: str) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00, status=status)
    assert (await tenant.refund("A-1001", "20.00")).said == ACCEPTED


async def test_mo_04_every_other_status_is_refused_unknown_ones_too(stage: Stage) -> None:
    """One list in the tool's file says what may be refunded."""
    tenant = await stage.tenant()
    statuses = [
        "new",
        "cancelled",
        "refunded",
        "partially_refunded",
        "chargeback",
        "on_hold",
        "Paid",
        "PAID",
        "paid ",
        "",
        "delivered\u200b",
    ]
    for number, status in enumerate(statuses):
        await tenant.order(f"B-{1000 + number}", 100_00, status=status)
    answers = await together(tenant.refund(f"B-{1000 + number}", "20.00", session_id=f"chat-{number}") for number in range(len(statuses)))
    assert said(answers) == {("denied", "order_state_forbids"): len(statuses)}
    for status, answer in zip(statuses, answers, strict=True):
        hint = answer["fix_hint"]
        assert (hint["field"], hint["fact"], hint["expected"]) == ("/order_id", "order.status", {"enum": ["paid", "shipped", "delivered"]})
        assert hint["actual"] == status.replace("\u200b", "\\u200b")  # what can't be seen is spelt out
        assert answer.holds == {}
    await tenant.is_sound()


STATUSES = ("new", "paid", "shipped", "delivered", "cancelled", "refunded", "partially_refunded", "chargeback")
UNKNOWN = ("on_hold", "New", "PAID", "paid ", "", "new,paid", "nеw")  # the last one has a Cyrillic letter
ADDRESS = {"name": "Ada", "street": "Lindenstr. 4", "postcode": "10969", "city": "Berlin", "country": "DE"}


@pytest.mark.parametrize(
    ("tool", "arguments", "allowed"),
    [
        ("refund", {"amount": 5, "currency": "EUR", "cause": "damaged"}, ["paid", "shipped", "delivered"]),
        ("cancel_order", {"cause": "changed_mind"}, ["new", "paid"]),
        ("update_address", {"address": ADDRESS}, ["new", "paid"]),
    ],
)
async def test_mo_04_each_tool_names_the_statuses_that_it_allows(
    stage: Stage, tool: str, arguments: dict[str, object], allowed: list[str]
) -> None:
    """Every status of the shop and some that it hasn't, for every tool that changes an order: what isn't named is refused."""
    tenant = await stage.tenant()
    statuses = [*STATUSES, *UNKNOWN]
    for number, status in enumerate(statuses):
        await tenant.order(f"B-{1000 + number}", 20_00, status=status)
    for number, status in enumerate(statuses):
        order = {"order_id": f"B-{1000 + number}"}
        answer = await tenant.call(tool, order | arguments, on_behalf_of=CUSTOMER, session_id=f"chat-{number}")
        if status in allowed:
            assert answer.said == ACCEPTED, status
            continue
        assert answer.said == ("denied", "order_state_forbids"), status
        hint = answer["fix_hint"]
        assert (hint["field"], hint["fact"], hint["actual"]) == ("/order_id", "order.status", status)
        assert hint["expected"] == {"enum": allowed}
        assert (answer["refused_by"], answer.holds) == ("semantic", {})
    denied = [row for row in await tenant.events("tool_call.decided") if row["decision"] == "denied"]
    assert len(denied) == len(statuses) - len(allowed)
    holds = await tenant.rows("SELECT account FROM placet.holds WHERE tenant_id = $1 AND account LIKE 'resource:%' ORDER BY 1")
    paid = [f"resource:order:B-{1000 + statuses.index(status)}" for status in allowed]
    assert [row["account"] for row in holds] == ([] if tool == "update_address" else sorted(paid))
    await tenant.is_sound()


@pytest.mark.parametrize("status", [*STATUSES, *UNKNOWN])
async def test_mo_04_data_is_deleted_only_where_every_order_is_known_to_be_closed(stage: Stage, status: str) -> None:
    """`delete_customer_data` has the list the other way round: an order that isn't known to be closed is open."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 20_00, status="delivered")
    await tenant.order("A-1002", 20_00, status=status)
    arguments = {"customer_id": "cust-77", "cause": "customer_asked"}
    answer = await tenant.call("delete_customer_data", arguments, on_behalf_of=CUSTOMER)
    closed = status in ("delivered", "cancelled", "refunded")
    assert answer.said == (("needs_user", "grant_needs_approval") if closed else ("denied", "orders_open"))
    assert await tenant.value("SELECT count(*) FROM placet.approvals WHERE tenant_id = $1") == int(closed)
    assert answer["execution_permitted"] is False


@pytest.mark.parametrize(("status", "paid"), [("paid", 20_00), ("new", 20_00), ("new", 0)])
async def test_mo_04_of_two_cancels_at_once_one_is_accepted(stage: Stage, status: str, paid: int) -> None:
    """S3.8: whatever the workers; the other one is told that it is being cancelled, and nothing is held twice, nor for an unpaid one."""
    tenant = await stage.tenant()
    for number in range(6):
        order = await tenant.order(f"A-100{number}", paid, status=status)
        arguments = {"order_id": order, "cause": "changed_mind"}
        answers = await together(tenant.call("cancel_order", arguments, on_behalf_of=CUSTOMER) for _ in range(2))
        assert said(answers) == {ACCEPTED: 1, ("denied", "already_cancelled"): 1}
        (loser,) = [answer for answer in answers if answer["decision"] == "denied"]
        assert loser["fix_hint"]["next_action"] == {"kind": "stop"}
        assert loser.holds == {}
        assert loser["execution_permitted"] is False
        assert await tenant.held(f"resource:order:{order}") == paid
    budget = await tenant.value(
        "SELECT sum(held) FROM placet.accounts WHERE tenant_id = $1 AND account LIKE '%cancellations_per_agent_day%'"
    )
    assert budget == paid * 6
    assert [row["decision"] for row in await tenant.events("tool_call.decided")].count("accepted") == 6
    await tenant.is_sound()


async def test_mo_04_a_cancellation_and_a_refund_at_once_never_give_the_money_twice(stage: Stage) -> None:
    """They hold on one account, so that whichever is second finds nothing left of the order, or the order in use."""
    tenant = await stage.tenant(calm())
    for number in range(8):
        order = await tenant.order(f"A-100{number}", 20_00, status="paid")
        cancel = tenant.call("cancel_order", {"order_id": order, "cause": "changed_mind"}, on_behalf_of=CUSTOMER)
        refund = tenant.refund(order, "20.00")
        if number % 2:
            cancelled, refunded = await together([cancel, refund])
        else:
            refunded, cancelled = await together([refund, cancel])
        accepted = [answer for answer in (cancelled, refunded) if answer["decision"] == "accepted"]
        assert len(accepted) == 1
        assert cancelled.said in (ACCEPTED, ("denied", "order_in_use"))
        assert refunded.said in (ACCEPTED, EXCEEDS)
        assert await tenant.held(f"resource:order:{order}") == 20_00
    await tenant.is_sound()


async def test_mo_05_five_hundred_yen_are_five_hundred_everywhere(stage: Stage) -> None:
    """Arguments, hold, budget, dry run, risk, approval and audit speak of 500 JPY; 500.5 JPY is refused, not rounded."""
    budget = (
        '\n  - {budget: yen, level: tenant, for: {tool: refund}, limit: {amount: "60000", currency: JPY}, window: total, on_exceed: deny}\n'
    )
    tenant = await stage.tenant({**SHOP, "thresholds.yaml": SHOP["thresholds.yaml"].rstrip() + budget})
    await tenant.order("A-1003", 80_000, "JPY")
    small = await tenant.refund("A-1003", "500", currency="JPY")
    assert small.said == ACCEPTED
    assert small.holds == {"order:A-1003": ("500", "JPY"), "budget:yen": ("500", "JPY")}
    assert small["effective_arguments"]["amount"] == 500
    assert small["side_effects"]["rows"][0]["after"] == {"refunded_minor": 500}
    assert small["side_effects"]["rows"][1]["after"] == {"amount_minor": 500, "currency": "JPY"}
    assert small["risk"]["factors"][0]["value"] == Decimal("0.0167")  # 500 / 30 000
    assert small["effective_scope"][0]["constraints"]["amount"]["max"] == {"amount": "500", "currency": "JPY"}
    budgets = {limit["name"]: limit for limit in small["limits"]}
    assert budgets["budget:yen"]["held"] == {"amount": "500", "currency": "JPY"}
    assert budgets["budget:yen"]["remaining"] == {"amount": "59500", "currency": "JPY"}
    assert await tenant.held("resource:order:A-1003") == 500
    for half in ("500.5", "0.5", "500.01", "5005e-1"):
        refused = await tenant.refund("A-1003", half, currency="JPY")
        assert refused.said == NOT_EXACT
        assert refused["refused_by"] == "static"
        assert refused["fix_hint"]["expected"] == {"multipleOf": 1}
    asked = await tenant.refund("A-1003", "22000", currency="JPY")
    assert asked.said == ("needs_user", "needs_human_review")
    review = await tenant.value("SELECT review FROM placet.approvals WHERE tenant_id = $1")
    assert '"amount":22000,' in review
    assert '"amount_minor":22000' in review
    assert "2200000" not in review
    payload = await tenant.value(
        "SELECT body FROM placet.audit_payloads WHERE tenant_id = $1 AND body IS NOT NULL ORDER BY sequence LIMIT 1"
    )
    assert '"amount":500,' in payload
    assert "50000" not in payload.replace('"60000"', "")
    await tenant.is_sound()


@pytest.mark.parametrize("amount", ["145.05", "19.99", "4.02", "1.11", "600.03", "0.07", "1.005e2", "14505e-2", "145.0500"])
async def test_mo_07_an_exact_full_refund_is_exact(stage: Stage, amount: str) -> None:
    """Whatever the number's spelling, it is the decimal that was written: all of it goes, one cent more doesn't, nothing is left."""
    tenant = await stage.tenant(calm())
    value = Decimal(amount)
    minor = int(value * 100)
    await tenant.order("A-1001", minor)
    more = await tenant.refund("A-1001", str(value + Decimal("0.01")))
    assert more.said == EXCEEDS
    assert more["fix_hint"]["expected"]["maximum"] == value
    assert more["fix_hint"]["suggested_arguments"]["amount"] == value
    whole = await tenant.refund("A-1001", amount)
    assert whole.said == ACCEPTED
    assert whole.holds == {"order:A-1001": (f"{value:.2f}", "EUR")}
    assert await tenant.held("resource:order:A-1001") == minor
    assert (await tenant.refund("A-1001", "0.01")).said == EXCEEDS
    await tenant.is_sound()


@pytest.mark.parametrize("amount", ["145.05", "19.99", "4.02", "1.11", "600.03"])
async def test_mo_07_an_amount_as_text_is_refused_not_guessed(stage: Stage, amount: str) -> None:
    """API.md 0.2: arguments are as the tool's schema has them, and the shop's says number. So the text is refused, with a hint."""
    tenant = await stage.tenant(calm())
    await tenant.order("A-1001", int(Decimal(amount) * 100))
    refused = await tenant.refund("A-1001", f'"{amount}"')
    assert refused.said == ("denied", "schema_invalid")
    assert (refused["fix_hint"]["field"], refused["fix_hint"]["expected"]) == ("/amount", {"type": "number"})


async def test_mo_08_parts_of_a_cent_are_refused_and_leave_nothing(stage: Stage) -> None:
    """S3.4: no rounding either way. What breaks exactness is a decision with a hint (200), where the case expects 422."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    for amount in ("33.333333", "33.335", "33.335", "33.335", "0.004", "0.009", "99.999", "1e-3", "33.330000000000001"):
        refused = await tenant.refund("A-1001", amount)
        assert refused.said == NOT_EXACT, amount
        assert refused["refused_by"] == "static"
        assert refused["fix_hint"]["expected"] == {"multipleOf": Decimal("0.01")}
    assert await tenant.rows("SELECT * FROM placet.holds WHERE tenant_id = $1") == []
    for amount in ("33.33", "33.34", "33.320000", "0.01"):
        assert (await tenant.refund("A-1001", amount)).said == ACCEPTED
    assert await tenant.held("resource:order:A-1001") == 100_00
    assert (await tenant.refund("A-1001", "0.02")).said == EXCEEDS
    await tenant.is_sound()


@pytest.mark.parametrize(
    ("currency", "paid", "inexact", "step", "exact"),
    [("JPY", 10_000, ["33.3", "0.5", "1e-1"], "1", "33"), ("KWD", 10_000, ["3.3333", "0.0005"], "0.001", "3.333")],
)
async def test_mo_08_each_currency_has_its_own_digits(
    stage: Stage, currency: str, paid: int, inexact: list[str], step: str, exact: str
) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1001", paid, currency)
    for amount in inexact:
        refused = await tenant.refund("A-1001", amount, currency=currency)
        assert refused.said == NOT_EXACT
        assert refused["fix_hint"]["expected"] == {"multipleOf": Decimal(step)}
    assert (await tenant.refund("A-1001", exact, currency=currency)).said == ACCEPTED


async def test_mo_10_a_limit_counts_in_its_own_currency_only(stage: Stage) -> None:
    """With a ceiling of 100 EUR nobody gets 100 of something else; order and request have to agree."""
    lines = SHOP["grants.yaml"].splitlines(keepends=True)
    grants = "".join(line for line in lines if "JPY" not in line and "KWD" not in line).replace("15000.00", "100.00")
    enum = changed("tools/refund.yaml", ("enum: [EUR, JPY, KWD]", "enum: [EUR, JPY, KWD, USD, BTC, XAU]"))
    tenant = await stage.tenant({**enum, "grants.yaml": grants})
    await tenant.order("A-1001", 500_00)
    await tenant.order("A-1003", 80_000, "JPY")
    await tenant.order("A-1004", 250_500, "KWD")
    not_granted = ("denied", "not_granted")
    expected = [
        ("A-1001", "90.00", "EUR", ACCEPTED),
        ("A-1001", "100.01", "EUR", not_granted),
        ("A-1004", "100", "KWD", not_granted),
        ("A-1004", "0.001", "KWD", not_granted),
        ("A-1003", "9000", "JPY", not_granted),
        ("A-1003", "1", "JPY", not_granted),
        ("A-1001", "99", "USD", not_granted),
        ("A-1001", "99", "BTC", NOT_EXACT),  # no ISO currency, so nobody knows its digits
        ("A-1001", "1", "XAU", NOT_EXACT),  # gold has no minor unit
        ("A-1001", "99", "GBP", ("denied", "schema_invalid")),
        ("A-1001", "99", "eur", ("denied", "schema_invalid")),
    ]
    for order, amount, currency, wanted in expected:
        answer = await tenant.refund(order, amount, currency=currency)
        assert answer.said == wanted, (amount, currency)
        if wanted == not_granted:
            assert answer["refused_by"] == "scope"
    await tenant.is_sound()


@pytest.mark.parametrize(("amount", "currency"), [("50", "JPY"), ("50.00", "KWD"), ("50.000", "KWD")])
async def test_mo_10_the_currency_of_the_order_is_the_currency_of_its_refund(stage: Stage, amount: str, currency: str) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1001", 500_00)
    refused = await tenant.refund("A-1001", amount, currency=currency)
    assert refused.said == ("denied", "currency_mismatch")
    assert refused.check("within_refundable")["outcome"] == "skipped"  # minor units of two currencies don't compare
    assert (refused["fix_hint"]["field"], refused["fix_hint"]["expected"]) == ("/currency", {"const": "EUR"})
    assert refused.holds == {}


async def test_mo_10_a_budget_in_euros_neither_counts_nor_stops_yen(stage: Stage) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1003", 80_000, "JPY")
    accepted = await tenant.refund("A-1003", "9000", currency="JPY")
    assert accepted.said == ACCEPTED
    assert accepted.holds == {"order:A-1003": ("9000", "JPY")}
    assert accepted["limits"] == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("grants.yaml", '{max: {amount: "15000.00", currency: EUR}}', "{max: 15000}"),
        ("grants.yaml", '{max: {amount: "15000.00", currency: EUR}}', '{max: {amount: "15000.00"}}'),
        ("grants.yaml", '{max: {amount: "15000.00", currency: EUR}}', '{max: {amount: "15000", currency: EUR}}'),
        ("grants.yaml", '{max: {amount: "50000", currency: JPY}}', '{max: {amount: "500.00", currency: JPY}}'),
        ("thresholds.yaml", '{amount: "1000.00", currency: EUR}', '{amount: "1000.00"}'),
        ("thresholds.yaml", '{amount: "1000.00", currency: EUR}', "1000"),
        ("thresholds.yaml", '{amount: "1000.00", currency: EUR}', '{amount: "1000.00", currency: BTC}'),
    ],
)
async def test_mo_10_a_limit_without_a_currency_is_no_policy(stage: Stage, file: str, old: str, new: str) -> None:
    tenant = await stage.tenant()
    refused = await stage.post("/policies", await tenant.key("author"), {"files": changed(file, (old, new))})
    assert refused.said == ("422", "policy_invalid")
    assert refused["errors"][0]["detail"].startswith(f"{file}:")
    assert await tenant.value("SELECT count(*) FROM placet.policy_versions WHERE tenant_id = $1") == 1


async def _score(tenant: Tenant, amount: str, **more: object) -> tuple[tuple[str, str], Decimal]:
    answer = await tenant.refund("A-1001", amount, **more)
    return answer.said, answer["risk"]["score"]


async def test_mo_11_the_remaining_amount_itself_passes(stage: Stage) -> None:
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    assert (await tenant.refund("A-1001", "60.00")).said == ACCEPTED
    assert (await tenant.refund("A-1001", "40.01")).said == EXCEEDS
    assert (await tenant.refund("A-1001", "40.00")).said == ACCEPTED


@pytest.mark.parametrize(
    ("segment", "review_at"),
    [("standard", "0.6"), ("trusted_buyer", "0.75"), ("vip", "0.6"), (None, "0.6"), ("STANDARD", "0.6"), ("trusted_buyer ", "0.6")],
)
async def test_mo_11_thresholds_ask_at_and_above(stage: Stage, segment: str | None, review_at: str) -> None:
    """S3.7: a score of review_at or more asks, of deny_at or more refuses; an unknown or missing segment gets the strictest pair.

    On an order of 200.00 the score is the share of it that is asked for.
    """
    tenant = await stage.tenant()
    await tenant.order("A-1001", 200_00)
    behalf = {"id": "cust-77"} | ({"segment": segment} if segment else {})
    asked, refused = ("needs_user", "needs_human_review"), ("denied", "risk_too_high")
    at = Decimal(review_at) * 200
    for amount, wanted, score in (
        (at, asked, Decimal(review_at)),
        (at + Decimal("0.02"), asked, Decimal(review_at) + Decimal("0.0001")),
        (Decimal("189.98"), asked, Decimal("0.9499")),
        (Decimal("190.00"), refused, Decimal("0.95")),
        (Decimal("190.02"), refused, Decimal("0.9501")),
        (Decimal("200.00"), refused, Decimal(1)),
        (at - Decimal("0.02"), ACCEPTED, Decimal(review_at) - Decimal("0.0001")),
    ):
        assert await _score(tenant, str(amount), on_behalf_of=behalf) == (wanted, score), amount
    await tenant.is_sound()


async def test_mo_11_a_ceiling_and_a_budget_include_their_own_value(stage: Stage) -> None:
    files = calm()
    budget = SHOP["thresholds.yaml"].split("budgets:")[1]
    tenant = await stage.tenant(
        changed("grants.yaml", ("15000.00", "1000.00"), files={**files, "thresholds.yaml": files["thresholds.yaml"] + "budgets:" + budget})
    )
    for number in range(4):
        await tenant.order(f"A-100{number}", 5_000_00)
    over = await tenant.refund("A-1000", "1000.01")
    assert over.said == ("denied", "not_granted")
    exact = await tenant.refund("A-1001", "1000.00")
    assert exact.said == ACCEPTED
    assert exact["limits"][0]["remaining"] == {"amount": "0.00", "currency": "EUR"}
    beyond = await tenant.refund("A-1002", "0.01")
    assert beyond.said == ("needs_user", "budget_exceeded")
    assert beyond.holds == {}
    await tenant.is_sound()


async def test_mo_13_a_full_refund_is_never_the_whole_order_again(stage: Stage) -> None:
    """27.00 paid, 7.00 refunded. Without an amount nothing is assumed; with the old one the suggestion is the 20.00 that are left."""
    tenant = await stage.tenant()
    await tenant.order("A-1006", 27_00, refunded=7_00)
    least = {"order_id": "A-1006", "currency": "EUR", "cause": "damaged"}
    behalf = {"on_behalf_of": {"id": "cust-77", "segment": "standard"}}
    for extra in ({}, {"full": True}, {"amount": None}, {"amount": "full"}, {"amount": "max"}):
        refused = await tenant.call("refund", least | extra, **behalf)
        assert refused.said == ("denied", "schema_invalid"), extra
        assert refused["fix_hint"]["field"] in ("/amount", "/full")
    again = await tenant.refund("A-1006", "27.00")
    assert again.said == EXCEEDS
    hint = again["fix_hint"]
    assert hint["suggested_arguments"] == least | {"amount": 20}
    assert (hint["suggestion_verified"], hint["suggestion_decision"]) == (True, "accepted")
    accepted = await tenant.call("refund", hint["suggested_arguments"], **behalf)
    assert accepted.said == ACCEPTED
    assert accepted["effective_arguments"]["amount"] == 20
    assert accepted.holds["order:A-1006"] == ("20.00", "EUR")
    assert await tenant.held("resource:order:A-1006") == 20_00


def _minor(amount: str) -> int:
    return int(amount.replace(".", ""))

"""Policy semantics (PS-07, PS-09, PS-10, PS-12): what can't be read or judged denies, and no answer is another question's."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.cases.consequences import ACCEPTED, NO_POLICY, REFUND, kept, stores_nothing
from tests.cases.stage import CUSTOMER, SHOP, Answer, Stage, Tenant, calm, changed, together

WAITS = ("needs_user", "needs_human_review")
GOODWILL = """'args.cause == "goodwill" ? 1.0 : 0.0'"""
GRANT = '{action: refund, resource: "order:*", constraints: {amount: {max: {amount: "15000.00", currency: EUR}}}}'


async def _health(stage: Stage) -> tuple[int, dict[str, str], int]:
    ready, alive = await stage.client.get("/readyz"), await stage.client.get("/healthz")
    return ready.status_code, {name: said for name, said in ready.json()["checks"].items() if said != "ok"}, alive.status_code


async def _is_unavailable(tenant: Tenant, answer: Answer) -> None:
    """Assert that no decision was made, and that the client is told to treat it as a no for now."""
    assert answer.said == ("503", "decision_unavailable"), answer.text
    assert answer["execution_permitted"] is False
    assert (answer["fix_hint"]["denial_class"], answer["fix_hint"]["retryable"]) == ("transient", "after_delay")
    assert answer["tool_result"]["is_error"] is True
    assert int(answer.headers["retry-after"]) >= 1


async def test_ps_07_a_policy_that_cannot_be_read_decides_nothing(stage: Stage) -> None:
    """S3.10: while the policies' table can't be read no call is decided, by no worker; alive, and back by itself."""
    tenant = await stage.tenant(changed("bundle.yaml", ("name: shop", "name: shop_read_late")))
    await tenant.order("A-1001", 129_90)
    key = await tenant.key("agent", "unknown-to-the-workers")
    await stage.superuser.execute(
        "UPDATE placet.chain_heads SET authority_version = authority_version + 1 WHERE tenant_id = $1", tenant.tenant_id
    )
    async with stage.superuser.transaction():
        await stage.superuser.execute("LOCK placet.policy_versions, placet.tenants IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            started = time.monotonic()
            answers = await together([*(tenant.refund("A-1001", "1.00", f"c{number}", key=key) for number in range(6))])
            assert time.monotonic() - started < 5
            for answer in answers:
                await _is_unavailable(tenant, answer)
        assert (await stage.client.get("/healthz")).status_code == 200
        assert (await stage.client.get("/readyz")).status_code == 503
    for _ in range(20):
        answer = await tenant.refund("A-1001", "1.00", "c0", key=key)
        if answer.status == 200:
            break
        await asyncio.sleep(0.2)
    assert (answer.said, answer["replayed"]) == (ACCEPTED, False)
    assert await _health(stage) == (200, {}, 200)
    assert await tenant.decisions() == 1
    await tenant.is_sound()


@pytest.mark.parametrize("fault", ["gone", "broken", "empty"])
async def test_ps_07_a_policy_that_is_named_and_not_there_is_no_policy_that_allows(stage: Stage, fault: str) -> None:
    """A tenant's active version whose row is gone or whose files can't be compiled: 503, never an answer by half a policy. Its people are
    let in, so that they can go back to another version, which decides at once, without a restart."""
    tenant = await stage.tenant(changed("bundle.yaml", ("name: shop", f"name: shop_{fault}")))
    await tenant.order("A-1001", 129_90)
    superuser = stage.superuser

    async def as_administrator(sql: str, *values: object) -> None:
        async with superuser.transaction():
            await superuser.execute("SET LOCAL session_replication_role = replica")  # no foreign key, no trigger
            await superuser.execute(sql, tenant.tenant_id, *values)
            await superuser.execute(
                "UPDATE placet.chain_heads SET authority_version = authority_version + 1 WHERE tenant_id = $1", tenant.tenant_id
            )

    match fault:
        case "gone":
            await as_administrator("DELETE FROM placet.policy_versions WHERE tenant_id = $1 AND version = 2")
        case "broken":
            files = json.dumps({**SHOP, "grants.yaml": "grants: 5\n"})
            await as_administrator(
                "UPDATE placet.policy_versions SET files = $2, digest = repeat('0', length(digest)) WHERE tenant_id = $1 AND version = 2",
                files,
            )
        case "empty":
            await as_administrator(
                "UPDATE placet.policy_versions SET files = '{}', digest = repeat('1', length(digest)) WHERE tenant_id = $1 AND version = 2"
            )
    for number in range(4):
        for answer in (await tenant.refund("A-1001", "1.00", f"c{number}"), await tenant.call("search_order", {"order_id": "A-1001"})):
            await _is_unavailable(tenant, answer)
            assert "grants" not in answer.text  # an agent isn't told what is in the policy
    assert await tenant.decisions() == 0
    assert await _health(stage) == (200, {}, 200)  # one tenant's fault isn't the service's
    listed = await stage.get("/policies", await tenant.key("author"))
    assert (listed.status, [item["version"] for item in listed["items"] if item["version"] == 1]) == (200, [1])
    back = await stage.post("/policies/1/activation", await tenant.key("operator"), None)
    assert (back.status, back["active"]) == (200, True), back.text
    assert (await tenant.refund("A-1001", "1.00", "c0")).said == ACCEPTED
    await tenant.is_sound()


async def test_ps_07_readiness_says_what_is_missing_and_comes_back_by_itself(stage: Stage) -> None:
    """S11.4: no served policy, or a schema that isn't at the head: not ready, alive, and ready again without a restart. A tenant that has
    a policy of its own isn't refused for the platform's."""
    superuser, platform = stage.superuser, uuid.UUID(int=0)
    served = await superuser.fetchval("SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1", platform)
    head = await superuser.fetchval("SELECT version_num FROM placet.schema_version")
    active = "UPDATE placet.tenants SET active_policy_version = $2 WHERE tenant_id = $1"
    try:
        await superuser.execute(active, platform, None)
        assert await _health(stage) == (503, {"policy": "no policy is active on the platform"}, 200)
        tenant = await stage.tenant()
        await tenant.order("A-1001", 20_00)
        assert (await tenant.refund("A-1001", "1.00")).said == NO_POLICY  # it began with what is served: nothing
        await superuser.execute(active, platform, served)
        assert await _health(stage) == (200, {}, 200)
        await superuser.execute("UPDATE placet.schema_version SET version_num = '0000'")
        assert await _health(stage) == (503, {"migrations": f"at 0000, not {head}: run `placet migrate`"}, 200)
    finally:
        await superuser.execute(active, platform, served)
        await superuser.execute("UPDATE placet.schema_version SET version_num = $1", head)
    assert await _health(stage) == (200, {}, 200)
    await tenant.activate(SHOP)
    assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED


# PS-09


NOTHING = "(args.amount.minor - args.amount.minor)"
SCORERS = {
    "an integer divided by nothing": f"double(1 / {NOTHING})",
    "not a number": f"0.0 / double{NOTHING}",
    "infinite": f"1.0 / double{NOTHING}",
    "infinite the other way": f"-1.0 / double{NOTHING}",
    "a key that isn't there": 'double({"EUR": 1}[args.cause])',
    "a word": "double(args.currency)",
    "an item that isn't there": "[0.1, 0.2][args.amount.minor]",
    "too large for an integer": "double(9223372036854775807 + args.amount.minor)",
}


async def _counted(stage: Stage, reason: str, layer: str) -> float:
    return await stage.counted("placet_decisions_total", tool="refund", decision="denied", reason=reason, layer=layer)


async def _is_a_failure(tenant: Tenant, reason: str, layer: str, *behind: str) -> Answer:
    """Assert that a refund is denied for the broken guard, that no layer behind it ran, and that chain and metrics show it; once more for
    the same call under another id."""
    await tenant.order("A-1001", 129_90)
    before = await kept(tenant)
    for number in range(2):
        counted = await _counted(tenant.stage, reason, layer)
        answer = await tenant.refund("A-1001", "1.00", f"c{number}")
        assert answer.said == ("denied", reason), answer.text
        assert (answer["refused_by"], answer["execution_permitted"], answer.holds) == (layer, False, {})
        assert answer["layers"][-1]["name"] == layer
        assert not {each["name"] for each in answer["layers"]} & set(behind)
        row = (await tenant.events("tool_call.decided"))[-1]
        assert (row["decision"], row["reason"], row["refused_by"]) == ("denied", reason, layer)
        assert await _counted(tenant.stage, reason, layer) == counted + 1
    assert await kept(tenant) == before
    return answer


@pytest.mark.parametrize("scorer", SCORERS)
async def test_ps_09_a_score_that_is_none_denies(stage: Stage, scorer: str) -> None:
    """A factor that raises, or gives NaN or infinity, is no factor of 0: the whole risk layer says no, and no person is asked either."""
    tenant = await stage.tenant(changed(REFUND, (GOODWILL, f"'{SCORERS[scorer]}'")))
    answer = await _is_a_failure(tenant, "risk_error", "risk", "holds")
    assert "risk" not in answer.body
    assert "goodwill" in answer.check("factors")["message"]


@pytest.mark.parametrize(
    ("value", "counts_as", "said"),
    [
        ("1.7", "1", ("denied", "risk_too_high")),
        ("1000000.0", "1", ("denied", "risk_too_high")),
        ("0.5", "0.5", WAITS),
        ("0.0", "0", ACCEPTED),
        ("-0.0", "0", ACCEPTED),
        ("-1.0", "0", ACCEPTED),
    ],
)
async def test_ps_09_a_score_out_of_range_is_clipped_and_never_pays_for_another(
    stage: Stage, value: str, counts_as: str, said: tuple[str, str]
) -> None:
    """API.md 5: a factor's value counts from 0 to 1, so one of -1 lowers nothing and one of 1.7 can't overflow what it adds to."""
    tenant = await stage.tenant(changed(REFUND, (GOODWILL, f'"{value}"'), ("weight: 0.15", "weight: 1.0")))
    await tenant.order("A-1001", 200_00)
    answer = await tenant.refund("A-1001", "20.00")
    factors = {each["name"]: each for each in answer["risk"]["factors"]}
    assert (factors["goodwill"]["value"], factors["goodwill"]["contribution"]) == (Decimal(counts_as), Decimal(counts_as))
    assert answer["risk"]["score"] == min(Decimal("0.1") + Decimal(counts_as), Decimal(1))
    assert answer.said == said


@pytest.mark.parametrize("weight", ["1.7", "-1.5", ".nan", ".inf", "high", '"high"', "null", "true", "[]"])
async def test_ps_09_a_weight_that_is_none_is_refused_at_the_save(stage: Stage, weight: str) -> None:
    await stores_nothing(await stage.tenant(), changed(REFUND, ("weight: 0.15", f"weight: {weight}")), REFUND)


@pytest.mark.parametrize("value", ['"1"', '"true"', "'\"high\"'", '"null"', "args.note", "order.status", "args.amount.minor", "order.paid"])
async def test_ps_09_a_factor_that_gives_no_number_is_refused_at_the_save(stage: Stage, value: str) -> None:
    """A whole number, a truth value, a text, null and an argument that may be absent aren't a double, and nothing makes them one."""
    await stores_nothing(await stage.tenant(), changed(REFUND, (GOODWILL, value)), REFUND)


REQUIRE = "require: args.amount.minor <= open.minor"
GUARDS: Mapping[str, tuple[tuple[str, str], str, str]] = {
    "a rule": ((REQUIRE, f"require: 1 / {NOTHING} <= open.minor"), "rule_error", "semantic"),
    "a rule that would forbid": ((REQUIRE, f"require: '!(1 / {NOTHING} > open.minor)'"), "rule_error", "semantic"),
    "a rule's `when`": (("when: args.currency == order.paid.currency", f"when: 1 / {NOTHING} == 1"), "rule_error", "semantic"),
    "a value": (("minor: refundable.minor - account.order.held.minor", f"minor: refundable.minor / {NOTHING}"), "rule_error", "semantic"),
    "a fact": (("SELECT complaints FROM", "SELECT 1 / complaints AS complaints FROM"), "fact_unavailable", "semantic"),
    "a fact that hangs": (
        ("SELECT complaints FROM", "SELECT (SELECT count(*)::int FROM generate_series(1, 100000000000)) AS complaints FROM"),
        "fact_unavailable",
        "semantic",
    ),
    "an effect": (("refunded_minor = refunded_minor + :minor", "refunded_minor = :minor / (:minor - :minor)"), "sandbox_failed", "sandbox"),
    "an invariant": (("o.refunded_minor <= o.paid_minor", "o.paid_minor / (o.paid_minor - o.paid_minor) == 1"), "rule_error", "sandbox"),
    "an invariant over nothing": (("o.refunded_minor <= o.paid_minor", "o.no_such_column == 1"), "rule_error", "sandbox"),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS)
async def test_ps_09_a_guard_that_breaks_denies(stage: Stage, guard: str) -> None:
    """S3.10: whatever fails on its way, in whichever layer, refuses in its own name, and the layers behind it aren't asked."""
    change, reason, layer = GUARDS[guard]
    tenant = await stage.tenant(changed(REFUND, change))
    behind = {"semantic": ("sandbox", "risk", "holds"), "sandbox": ("risk", "holds")}[layer]
    await _is_a_failure(tenant, reason, layer, *behind)


# PS-10


@asynccontextmanager
async def _tries(tenant: Tenant) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Count the effects that the sandbox tries on this tenant's orders: they are rolled back, but a sequence isn't."""
    superuser, name = tenant.stage.superuser, f"tried_{tenant.tenant_id.hex}"
    await superuser.execute(
        f"CREATE SEQUENCE public.{name}; CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        f" $$BEGIN PERFORM nextval('public.{name}'); RETURN NEW; END$$;"
        f" CREATE TRIGGER {name} BEFORE UPDATE ON shop.orders FOR EACH ROW WHEN (NEW.tenant = '{tenant.name}')"
        f" EXECUTE FUNCTION public.{name}()"
    )

    async def count() -> int:
        return int(await superuser.fetchval(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.{name}"))

    try:
        yield count
    finally:
        await superuser.execute(f"DROP TRIGGER {name} ON shop.orders; DROP FUNCTION public.{name}; DROP SEQUENCE public.{name}")


ORDER = ("static", "scope", "semantic", "sandbox", "risk", "holds")


async def test_ps_10_no_layer_behind_a_refusal_runs_and_nothing_of_it_stays(stage: Stage) -> None:
    """S3.3: one refusal of each layer: the layers up to it, no effect tried before semantic let the call on, no hold, no approval, no row
    of the shop, and one audit row. In the end a call that all layers let on shows that the counter counts."""
    wild = SHOP[REFUND].replace("tool: refund\n", "tool: wild_refund\n").replace("shop.orders: {updated: 1}", "shop.orders: {updated: 0}")
    tenant = await stage.tenant({**SHOP, "tools/wild_refund.yaml": wild})
    for order, paid, status in (("A-1001", 200_00, "paid"), ("A-1002", 200_00, "cancelled"), ("T-9001", 100_00, "paid")):
        await tenant.order(order, paid, status=status)
    await tenant.order("A-1003", 20_00, customer="cust-78")

    def wild_refund() -> Awaitable[Answer]:
        arguments = {"order_id": "A-1001", "amount": 1, "currency": "EUR", "cause": "damaged"}
        return tenant.call("wild_refund", arguments, on_behalf_of=CUSTOMER)

    calls: list[tuple[Callable[[], Awaitable[Answer]], str, str, int]] = [
        (lambda: tenant.refund("A-1001", "-1"), "static", "schema_invalid", 0),
        (lambda: tenant.refund("A-1001", "1.001"), "static", "amount_not_exact", 0),
        (lambda: tenant.call("no_such_tool", {"order_id": "A-1001"}), "static", "tool_unknown", 0),
        (lambda: tenant.refund("T-9001", "1.00"), "scope", "forbidden", 0),
        (lambda: tenant.refund("A-1001", "1.00", requested_scope=[]), "scope", "outside_requested_scope", 0),
        (lambda: tenant.refund("A-1003", "1.00"), "semantic", "order_not_found", 0),
        (lambda: tenant.refund("A-1002", "1.00"), "semantic", "order_state_forbids", 0),
        (wild_refund, "sandbox", "blast_radius_exceeded", 1),
        (lambda: tenant.refund("A-1001", "195.00"), "risk", "risk_too_high", 1),
    ]  # fmt: skip
    before = await kept(tenant)
    async with _tries(tenant) as tried:
        for number, (ask, layer, reason, tries) in enumerate(calls):
            count, rows = await tried(), len(await tenant.events())
            answer = await ask()
            assert answer.said == ("denied", reason)
            assert answer["refused_by"] == layer
            names = [each["name"] for each in answer["layers"]]
            assert names == list(ORDER[: ORDER.index(layer) + 1])
            assert [each["outcome"] for each in answer["layers"]] == ["accepted"] * (len(names) - 1) + ["denied"]
            assert await tried() - count == tries, (number, reason)
            assert await kept(tenant) == before
            (row,) = (await tenant.events())[rows:]
            assert (row["event"], row["decision_id"], row["refused_by"]) == ("tool_call.decided", answer["decision_id"], layer)
        count = await tried()
        assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED
        assert await tried() - count == 1
        after = await kept(tenant)
    assert [name for name in before if before[name] != after[name]] == ["holds", "held"]
    await tenant.is_sound()


async def test_ps_10_facts_are_not_read_for_a_call_that_an_earlier_layer_refuses(stage: Stage) -> None:
    """A fact that fails is told in the service's log: once for the call that got as far, never for those that didn't."""
    tenant = await stage.tenant(changed(REFUND, ("SELECT complaints FROM", "SELECT 1 / complaints AS complaints FROM")))
    await tenant.order("A-1001", 129_90)
    for answer, reason in (
        (await tenant.refund("A-1001", "-1"), "schema_invalid"),
        (await tenant.refund("T-9001", "1.00"), "forbidden"),
        (await tenant.refund("A-1001", "1.00"), "fact_unavailable"),
    ):
        assert answer.said == ("denied", reason)
    for _ in range(50):
        told = [line for line in stage.service.output.splitlines() if "fact_failed" in line and tenant.name in line]
        if told:
            break
        await asyncio.sleep(0.1)
    assert len(told) == 1


async def test_ps_10_calls_of_one_batch_do_not_let_each_other_on(stage: Stage) -> None:
    """Refused and accepted calls at once, so that they share transactions: the refused ones leave nothing in the accepted ones' either."""
    tenant = await stage.tenant(calm())
    for number in range(8):
        await tenant.order(f"A-100{number}", 20_00)
        await tenant.order(f"B-100{number}", 20_00, status="cancelled")
    wanted = [(f"{letter}-100{number}", letter == "A") for number in range(8) for letter in "AB"]
    answers = await together(tenant.refund(order, "1.00") for order, _ in wanted)
    for (order, passes), answer in zip(wanted, answers, strict=True):
        assert answer.said == (ACCEPTED if passes else ("denied", "order_state_forbids")), order
    held = await tenant.rows("SELECT account FROM placet.holds WHERE tenant_id = $1 ORDER BY 1")
    assert [row["account"] for row in held] == [f"resource:order:A-100{number}" for number in range(8)]
    await tenant.is_sound()


# PS-12


async def test_ps_12_another_amount_is_another_question(stage: Stage) -> None:
    """10 then 9000 within a moment, in both orders, one after the other and all at once."""
    tenant = await stage.tenant(calm())
    for number in range(12):
        await tenant.order(f"A-{1000 + number}", 200_00)
    exceeds = ("denied", "amount_exceeds_refundable")
    for number, order in enumerate((("10.00", ACCEPTED), ("9000.00", exceeds)) for _ in range(4)):
        for amount, said in order if number % 2 else reversed(order):
            assert (await tenant.refund(f"A-{1000 + number}", amount)).said == said
    amounts = [("10.00", ACCEPTED), ("9000.00", exceeds)] * 8
    answers = await together(
        tenant.refund(f"A-{1004 + number // 2}", amount, session_id=f"chat-{number}") for number, (amount, _) in enumerate(amounts)
    )
    assert [answer.said for answer in answers] == [said for _, said in amounts]
    await tenant.is_sound()


async def test_ps_12_another_tenant_is_another_question(stage: Stage) -> None:
    """The same tool, arguments, session and subject in three tenants, with another order, another ceiling and no grant, at once."""
    tenants = [
        await stage.tenant(),
        await stage.tenant(changed("grants.yaml", ("15000.00", "5.00"))),
        await stage.tenant({**SHOP, "grants.yaml": "grants: []\n"}),
        await stage.tenant(),
    ]
    for number, tenant in enumerate(tenants):
        await tenant.order("A-1001", 129_90, status="cancelled" if number == 3 else "paid")
    expected = [ACCEPTED, ("denied", "not_granted"), ("denied", "not_granted"), ("denied", "order_state_forbids")]
    for _ in range(3):
        call_id = uuid.uuid4().hex
        answers = await together(tenant.refund("A-1001", f"{5 + _ + 1}.00", call_id) for tenant in tenants)
        assert [answer.said for answer in answers] == expected


async def test_ps_12_another_segment_principal_task_or_language_is_another_question(stage: Stage) -> None:
    """On an order of 200.00 a refund of 130.00 scores 0.65: asked of a standard customer, accepted for a trusted one; a forbid for one
    subject, the refusals of one task and the sentences of one locale are nobody else's."""
    forbid = (
        '  - grant: not_this_one\n    effect: forbid\n    to: {subjects: [agent-2]}\n    scope: [{action: refund, resource: "order:*"}]\n'
    )
    without_history = changed(REFUND, ("require: history.same_refund.count == 0", "require: history.same_refund.count >= 0"))
    tenant = await stage.tenant({**without_history, "grants.yaml": SHOP["grants.yaml"] + forbid})
    number = 0

    async def ask(segment: str, **more: Any) -> Answer:
        nonlocal number
        number += 1
        order = await tenant.order(f"A-{1000 + number}", 200_00)
        return await tenant.refund(order, "130.00", on_behalf_of={"id": "cust-77", "segment": segment}, session_id=f"chat-{number}", **more)

    second = await tenant.key("agent", "agent-2")
    for _ in range(2):
        assert (await ask("standard")).said == WAITS
        assert (await ask("trusted_buyer")).said == ACCEPTED
        assert (await ask("trusted_buyer", key=second)).said == ("denied", "forbidden")
    english, chinese = [await tenant.refund("A-9999", "1.00", locale=locale, session_id=f"in-{locale}") for locale in ("en", "zh")]
    assert english["fix_hint"]["message"] == "order A-9999 was not found"
    assert chinese["fix_hint"]["message"] == "找不到订单 A-9999"
    left = [(await tenant.refund("A-9999", "1.00", session_id="tasks", task_id=task))["fix_hint"]["attempts_left"] for task in "abab"]
    assert left == [2, 2, 1, 1]


async def test_ps_12_another_state_is_another_question(stage: Stage) -> None:
    """What changes between two checks counts at once: the order's row, what was refunded, what is held, who it belongs to, the policy."""
    tenant = await stage.tenant(calm())
    await tenant.order("A-1001", 100_00, status="paid")
    expected: list[tuple[str, tuple[str, str]]] = [
        ("status = 'paid'", ACCEPTED), ("status = 'cancelled'", ("denied", "order_state_forbids")), ("status = 'paid'", ACCEPTED),
        ("refunded_minor = 9800", ("denied", "amount_exceeds_refundable")), ("refunded_minor = 0", ACCEPTED),
        ("currency = 'JPY'", ("denied", "currency_mismatch")), ("currency = 'EUR'", ACCEPTED),
        ("customer_id = 'cust-78'", ("denied", "order_not_found")), ("customer_id = 'cust-77'", ACCEPTED),
    ]  # fmt: skip
    await tenant.order("A-1002", 1_00, customer="cust-78")
    for number, (change, said) in enumerate(expected):
        await stage.superuser.execute(f"UPDATE shop.orders SET {change} WHERE tenant = $1 AND order_id = 'A-1001'", tenant.name)
        assert (await tenant.refund("A-1001", f"2.0{number}")).said == said, change
    assert (await tenant.refund("A-1001", "2.00")).said == ("denied", "already_refunded")
    await tenant.activate(changed("grants.yaml", ("15000.00", "1.00"), files=calm()))
    assert (await tenant.refund("A-1001", "2.20")).said == ("denied", "not_granted")


async def test_ps_12_a_grants_window_ends_between_two_checks(stage: Stage) -> None:
    """Nobody sends anything in between: the moment itself is an input."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    window = f"time: {{from: 2026-01-01T00:00:00Z, until: {end.isoformat().replace('+00:00', 'Z')}}}"
    timed = GRANT.replace("currency: EUR}}}}", "currency: EUR}}, " + window + "}}")
    assert timed != GRANT
    await tenant.activate(changed("grants.yaml", (GRANT, timed)))
    assert (await tenant.refund("A-1001", "1.00")).said == ACCEPTED
    await asyncio.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()) + 0.05)
    assert (await tenant.refund("A-1001", "1.01")).said == ("denied", "not_granted")


async def test_ps_12_the_state_version_is_the_approvals_own(stage: Stage) -> None:
    """No rule reads `state_version`; what it binds is the approval: two calls that saw two versions wait for two people's answers."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    for version in (1, 2):
        waits = await tenant.refund("A-1001", "129.90", f"c{version}", state_version=version, task_id="task-1")
        assert waits.said == WAITS
    found = await tenant.rows("SELECT state_version FROM placet.approvals WHERE tenant_id = $1 ORDER BY 1")
    assert [row["state_version"] for row in found] == [1, 2]


async def test_ps_12_a_replay_is_the_same_decision_and_no_second_permission(stage: Stage) -> None:
    """S3.9: the one answer that is kept is that of a settled call id, and it permits nothing: not for another customer either."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 129_90)
    first = await tenant.refund("A-1001", "10.00", "c1")
    assert (first.said, first["execution_permitted"]) == (ACCEPTED, True)
    for behalf in (CUSTOMER, {"id": "cust-78", "segment": "standard"}, {"id": "cust-77", "segment": "trusted_buyer"}):
        again = await tenant.refund("A-1001", "10.00", "c1", on_behalf_of=behalf)
        assert (again["decision_id"], again["replayed"], again["execution_permitted"]) == (first["decision_id"], True, False)
    assert (await tenant.refund("A-1001", "9000.00", "c1")).said == ("denied", "call_id_reused")
    assert await tenant.held("resource:order:A-1001") == 10_00


# PS-15

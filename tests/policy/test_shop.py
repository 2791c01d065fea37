"""The example bundle: it compiles, each rule passes and refuses, and its SQL runs under the roles that it is meant for (SPEC S14.1)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import asyncpg
import pytest

from app.domain.quantity import Quantity
from app.policy.compile import compile_bundle, load_directory
from app.policy.expressions import Bindings
from app.policy.facts import read_row
from app.policy.model import Statement
from tests.conftest import TestDatabase

SHOP = Path(__file__).parents[2] / "policies" / "shop"
POLICY = compile_bundle(load_directory(SHOP))
REFUND = POLICY.tools["refund"]
CALL: dict[str, object] = {"order_id": "A-1001", "amount": Decimal("129.90"), "currency": "EUR", "cause": "damaged"}
ORDER = {"status": "delivered", "currency": "EUR", "paid_minor": 12990, "refunded_minor": 0}


def bindings(
    call: dict[str, object] | None = None, order: dict[str, object] | None = None, complaints: int = 0, held: int = 0, count: int = 0
) -> Bindings:
    arguments = {**CALL, **(call or {})}
    assert REFUND.arguments.violations(arguments) == ()
    values = {**REFUND.arguments.read(arguments).values, "on_behalf_of.id": "cust-77"}
    values |= {"history.same_refund.count": count, "account.order.held.minor": held}
    values |= read_row(REFUND.facts[0], {**ORDER, **(order or {})}) | read_row(REFUND.facts[1], {"complaints": complaints})
    for value in REFUND.values:
        bound = REFUND.environment.bind(values)
        values = {**values, f"{value.name}.minor": value.minor.evaluate(bound), f"{value.name}.currency": value.currency.evaluate(bound)}
    return REFUND.environment.bind(values)


def broken(bound: Bindings) -> list[str]:
    return [
        rule.name
        for rule in REFUND.rules
        if (rule.when is None or rule.when.evaluate(bound) is True) and rule.require.evaluate(bound) is not True
    ]


def score(bound: Bindings) -> Decimal:
    total = Decimal(0)
    for factor in REFUND.risk:
        value = factor.value.evaluate(bound)
        assert isinstance(value, float)
        total += factor.weight * min(Decimal(1), max(Decimal(0), Decimal(repr(value))))
    return round(total, 4)


@pytest.mark.parametrize(
    ("call", "order", "held", "count", "rules"),
    [
        ({}, {}, 0, 0, []),
        ({"amount": 12990}, {}, 0, 0, ["within_refundable"]),
        ({"amount": Decimal("129.91")}, {}, 0, 0, ["within_refundable"]),
        ({"amount": Decimal("9.90")}, {}, 12000, 0, []),
        ({"amount": Decimal("9.91")}, {}, 12000, 0, ["within_refundable"]),
        ({"amount": Decimal("0.01")}, {"refunded_minor": 12990}, 0, 0, ["within_refundable"]),
        ({"amount": 20, "currency": "JPY"}, {}, 0, 0, ["currency_matches"]),
        ({"amount": 80_000, "currency": "JPY"}, {"currency": "JPY", "paid_minor": 80_000}, 0, 0, []),
        ({}, {"status": "cancelled"}, 0, 0, ["order_is_refundable"]),
        ({}, {"status": "unheard_of"}, 0, 0, ["order_is_refundable"]),
        ({}, {}, 0, 1, ["not_refunded_before"]),
    ],
)
def test_each_rule_passes_and_refuses(call: dict[str, object], order: dict[str, object], held: int, count: int, rules: list[str]) -> None:
    """MO-01, MO-02, MO-04, MO-05, MO-10, MO-11"""
    assert broken(bindings(call, order, held=held, count=count)) == rules


@pytest.mark.parametrize(
    ("call", "complaints", "expected"),
    [
        ({}, 0, "0.7196"),
        ({"amount": 80}, 0, "0.4432"),
        ({"amount": 20}, 0, "0.1108"),
        ({"amount": 20, "cause": "goodwill"}, 0, "0.2608"),
        ({}, 3, "0.7196"),
        ({}, 4, "0.5037"),
        ({"amount": 20}, 4, "0.0776"),
    ],
)
def test_the_score_is_that_of_the_worked_examples(call: dict[str, object], complaints: int, expected: str) -> None:
    """API.md 1.2, 1.6, 6; from the fourth complaint on it is 0.7 of that, as in the essay."""
    assert score(bindings(call, complaints=complaints)) == Decimal(expected)


def test_the_hint_of_the_first_worked_example() -> None:
    """API.md 1.1"""
    bound = bindings({"amount": Decimal("12990.00")})
    refuse = next(rule.refuse for rule in REFUND.rules if rule.name == "within_refundable")
    assert refuse.expected is not None
    assert refuse.message["en"].text(bound) == "amount is 12990.00 EUR; at most 129.90 EUR can still be refunded on order A-1001"
    assert refuse.message["zh"].text(bound) == "金额为 12990.00 EUR，订单 A-1001 最多还可退 129.90 EUR"
    assert refuse.expected.json(bound) == {"exclusiveMinimum": 0, "maximum": Decimal("129.9")}
    assert [(pointer, template.json(bound)) for pointer, template in refuse.suggest] == [("/amount", Decimal("129.9"))]


def test_the_need_the_hold_and_the_budget() -> None:
    bound = bindings()
    limit = REFUND.need.limits["amount"]
    assert (REFUND.need.action, REFUND.need.resource.text(bound), REFUND.need.field) == ("refund", "order:A-1001", "/order_id")
    assert (limit.kind, limit.field, limit.currency_field) == ("money", "/amount", "/currency")
    assert limit.template is not None
    assert limit.template.render(bound) == Quantity(12990, "EUR", 2)
    (hold,) = REFUND.holds
    assert (hold.on.text(bound), hold.quantity.render(bound), hold.limit.render(bound)) == (
        "order:A-1001", Quantity(12990, "EUR", 2), Quantity(12990, "EUR", 2),
    )  # fmt: skip
    budget = next(each for each in POLICY.budgets if each.selector.tool == REFUND.name)
    assert (budget.name, budget.level, budget.limit, budget.time_zone, budget.on_exceed) == (
        "refunds_per_agent_day", "principal", Quantity(100_000, "EUR", 2), "Europe/Berlin", "needs_user",
    )  # fmt: skip


async def test_the_sql_runs_under_its_roles(database: TestDatabase) -> None:
    """S3.5, S3.6: facts only read, effects only what they need, and another customer's order is no row."""
    connection = await asyncpg.connect(database.superuser_url)
    try:
        for _ in range(2):
            await connection.execute((SHOP / "demo" / "schema.sql").read_text())
            await connection.execute("SELECT set_config('placet.demo_tenant', 'shop-test', false)")
            await connection.execute((SHOP / "demo" / "data.sql").read_text())
        order, customer = (fact.statement for fact in REFUND.facts)
        bound = bindings()
        async with connection.transaction():
            await connection.execute("SET LOCAL ROLE placet_facts; SET LOCAL app.tenant = 'shop-test'")
            assert await _run(connection, order, bound) == ORDER
            assert await _run(connection, customer, bound) == {"complaints": 0}
            assert await _run(connection, order, bound, tenant="another") is None
            assert await _run(connection, order, bindings({"order_id": "A-2001"})) is None
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SET LOCAL ROLE placet_sandbox; SET LOCAL app.tenant = 'shop-test'")
        assert REFUND.sandbox is not None
        update, insert = (effect.statement for effect in REFUND.sandbox.effects)
        row = {"tenant": "shop-test", "order_id": "A-1001", "customer_id": "cust-77", **ORDER}
        assert await _run(connection, update, bound) == [[row, {**row, "refunded_minor": 12990}]]
        inserted = await _run(connection, insert, bound)
        assert isinstance(inserted, list)
        assert inserted[0][0] is None
        assert {**inserted[0][1], "refund_id": None} == {
            "tenant": "shop-test", "refund_id": None, "order_id": "A-1001", "amount_minor": 12990, "currency": "EUR",
        }  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("UPDATE shop.orders SET paid_minor = 0")
        await transaction.rollback()
        assert await connection.fetchval("SELECT count(*) FROM shop.refunds") == 0
    finally:
        await connection.close()


async def _run(connection: asyncpg.Connection[asyncpg.Record], statement: Statement, bound: Bindings, tenant: str = "shop-test") -> object:
    values = {name: expression.evaluate(bound) for name, expression in statement.binds}
    found = await connection.fetchval(statement.sql, json.dumps({"tenant": tenant, **values}))
    return None if found is None else json.loads(found)

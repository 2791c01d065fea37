"""Amounts are exact integers of minor units (API.md 0.2, S3.4, S6.2)."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.quantity import MINOR_MAX, MINOR_MIN, UNITS, Quantity, QuantityError, parse_quantity, to_minor

EXPONENTS = {"EUR": 2, "JPY": 0, "KWD": 3, "CLF": 4}


@pytest.mark.parametrize(
    ("quantity", "document", "text", "number"),
    [
        (Quantity(8000, "EUR", 2), {"amount": "80.00", "currency": "EUR"}, "80.00 EUR", 80),
        (Quantity(12990, "EUR", 2), {"amount": "129.90", "currency": "EUR"}, "129.90 EUR", Decimal("129.9")),
        (Quantity(5, "EUR", 2), {"amount": "0.05", "currency": "EUR"}, "0.05 EUR", Decimal("0.05")),
        (Quantity(0, "EUR", 2), {"amount": "0.00", "currency": "EUR"}, "0.00 EUR", 0),
        (Quantity(500, "JPY", 0), {"amount": "500", "currency": "JPY"}, "500 JPY", 500),
        (Quantity(1250, "KWD", 3), {"amount": "1.250", "currency": "KWD"}, "1.250 KWD", Decimal("1.25")),
        (
            Quantity(MINOR_MAX, "EUR", 2),
            {"amount": "92233720368547758.07", "currency": "EUR"},
            "92233720368547758.07 EUR",
            Decimal("92233720368547758.07"),
        ),
        (Quantity(3, "calls", 0), {"amount": "3", "unit": "calls"}, "3 calls", 3),
    ],
)
def test_forms_of_a_quantity(quantity: Quantity, document: dict[str, str], text: str, number: int | Decimal) -> None:
    assert quantity.render() == document
    assert quantity.text() == text
    assert quantity.as_number() == number
    assert type(quantity.as_number()) is type(number)
    assert str(quantity.as_number()) == str(number)
    assert parse_quantity(document, EXPONENTS.get) == quantity
    assert quantity.is_currency is ("currency" in document)


def test_an_amount_below_zero_has_a_sign_in_sentences_and_cannot_be_read_back() -> None:
    below = Quantity(-5, "EUR", 2)
    assert below.text() == "-0.05 EUR"
    assert below.as_number() == Decimal("-0.05")
    with pytest.raises(QuantityError):
        parse_quantity(below.render(), EXPONENTS.get)


def test_units_are_the_closed_set_of_the_contract() -> None:
    assert frozenset(["calls", "requests", "refusals", "rounds", "tokens", "ms", "bytes", "rows", "lines"]) == UNITS


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"amount": "80.0", "currency": "EUR"},
            "`80.0` isn't an amount of EUR; write a decimal string with exactly 2 digits after the point, such as `8.00`",
        ),
        ({"amount": "500.5", "currency": "JPY"}, "`500.5` isn't an amount of JPY; write a decimal string with no point, such as `8`"),
        ({"amount": "500.", "currency": "JPY"}, "`500.` isn't an amount of JPY; write a decimal string with no point, such as `8`"),
        ({"amount": 80, "currency": "EUR"}, "a value of type `int` isn't an amount of EUR"),
        ({"amount": "-1.00", "currency": "EUR"}, "`-1.00` isn't an amount"),
        ({"amount": "+1.00", "currency": "EUR"}, "`+1.00` isn't an amount"),
        ({"amount": "01.00", "currency": "EUR"}, "`01.00` isn't an amount"),
        ({"amount": "1.00\n", "currency": "EUR"}, "isn't an amount"),
        ({"amount": " 1.00", "currency": "EUR"}, "isn't an amount"),
        ({"amount": "١.٠٠", "currency": "EUR"}, "isn't an amount"),
        ({"amount": "1e2", "currency": "JPY"}, "isn't an amount"),
        ({"amount": "9" * 5000, "currency": "JPY"}, "isn't an amount"),
        ({"amount": "92233720368547758.08", "currency": "EUR"}, "is too large; at most 92233720368547758.07 EUR"),
        ({"amount": "1.00", "currency": "XXQ"}, "`XXQ` isn't a known currency"),
        ({"amount": "1.00", "currency": "eur"}, "`eur` isn't a known currency"),
        ({"amount": "1.00", "currency": ["EUR"]}, "a value of type `list` isn't a known currency"),
        ({"amount": "3", "unit": "seconds"}, "`seconds` isn't a unit; write one of bytes, calls,"),
        ({"amount": "3", "unit": ["calls"]}, "a value of type `list` isn't a unit"),
        ({"amount": "3"}, "a quantity has `amount` and either `currency` or `unit`, and nothing else"),
        ({"amount": "3", "unit": "calls", "currency": "EUR"}, "and nothing else"),
        ({"amount": "3", "unit": "calls", "note": "x"}, "and nothing else"),
        ("80.00 EUR", "`80.00 EUR` isn't a quantity; write"),
        (None, "a value of type `NoneType` isn't a quantity; write"),
    ],
)
def test_what_is_no_quantity_is_refused_with_what_is_expected(document: object, message: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(document, EXPONENTS.get)  # type: ignore[arg-type]  # wrong types are the point
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("amount", "exponent", "minor"),
    [
        (Decimal("145.05"), 2, 14505),
        (Decimal("19.99"), 2, 1999),
        (Decimal("4.02"), 2, 402),
        (Decimal("600.03"), 2, 60003),
        (Decimal("129.900000"), 2, 12990),
        (Decimal("129.901"), 2, None),
        (Decimal("500.5"), 0, None),
        (Decimal("500.0"), 0, 500),
        (Decimal("1.2E+3"), 2, 120000),
        (Decimal("1.25"), 3, 1250),
        (Decimal("-1.25"), 2, -125),
        (Decimal("-0"), 2, 0),
        (Decimal("0E+400"), 2, 0),
        (Decimal("0E-400"), 2, 0),
        (Decimal("1E+400"), 2, None),
        (Decimal("1E-400"), 2, None),
        (Decimal("1E+999999999999"), 2, None),
        (Decimal("1E-999999999999"), 2, None),
        (Decimal("NaN"), 2, None),
        (Decimal("sNaN"), 2, None),
        (Decimal("Infinity"), 2, None),
        (Decimal("1." + "0" * 5000), 2, 100),
        (Decimal("92233720368547758.07"), 2, MINOR_MAX),
        (Decimal("92233720368547758.08"), 2, None),
        (Decimal("-92233720368547758.08"), 2, MINOR_MIN),
        (80, 2, 8000),
        (MINOR_MAX, 0, MINOR_MAX),
        (MINOR_MAX + 1, 0, None),
        (MINOR_MIN, 0, MINOR_MIN),
        (MINOR_MAX, 2, None),
        pytest.param(10**5000, 2, None, id="5000 digits"),
        (True, 2, None),
        (1.5, 2, None),
    ],
)
def test_to_minor_is_exact_or_none(amount: int | Decimal, exponent: int, minor: int | None) -> None:
    assert to_minor(amount, exponent) == minor


@given(st.integers(0, MINOR_MAX), st.sampled_from(["EUR", "JPY", "KWD", "CLF"]))
def test_every_form_reads_back_as_the_same_quantity(minor: int, currency: str) -> None:
    quantity = Quantity(minor, currency, EXPONENTS[currency])
    assert parse_quantity(quantity.render(), EXPONENTS.get) == quantity
    assert to_minor(quantity.as_number(), quantity.exponent) == minor


def test_the_decimal_context_has_no_say() -> None:
    with decimal.localcontext(decimal.Context(prec=3)):
        assert to_minor(Decimal("1234567.89"), 2) == 123456789
        assert str(Quantity(123456789, "EUR", 2).as_number()) == "1234567.89"

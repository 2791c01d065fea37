"""Amounts of money and of counted things, as integers of minor units (API.md 0.2).

No amount ever passes through a binary float or the decimal context: both round without saying so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.domain.echo import echo

UNITS: frozenset[str] = frozenset({"calls", "requests", "refusals", "rounds", "tokens", "ms", "bytes", "rows", "lines"})
"""What can be counted; the set is closed, so that nobody compares `second` with `seconds`."""

MINOR_MIN = -(2**63)
MINOR_MAX = 2**63 - 1
"""Minor units are stored as a signed 64-bit column."""

EXPONENT_MAX = 18
"""The most digits after the point that a currency may have; more wouldn't fit 64 bits."""

_MINOR_DIGITS_MAX = 19
_AMOUNT = re.compile(r"(0|[1-9][0-9]{0,18})(?:\.([0-9]{1,18}))?")
_CURRENCY = re.compile(r"[A-Z]{3}")


class QuantityError(ValueError):
    """A document isn't a quantity; the message says what is expected."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """`minor` minor units of a currency (`EUR`, exponent 2) or of a counted thing (`calls`, exponent 0)."""

    minor: int
    unit: str
    exponent: int

    @property
    def is_currency(self) -> bool:
        return self.unit not in UNITS

    def render(self) -> dict[str, str]:
        """Give the wire form, `{"amount": "80.00", "currency": "EUR"}` or `{"amount": "3", "unit": "calls"}`."""
        return {"amount": _decimal_text(self.minor, self.exponent), "currency" if self.is_currency else "unit": self.unit}

    def text(self) -> str:
        """Give the form for sentences, `129.90 EUR`."""
        return f"{_decimal_text(self.minor, self.exponent)} {self.unit}"

    def as_number(self) -> int | Decimal:
        """Give the plain amount as an exact JSON number: an int where it is whole (80), else a Decimal without trailing zeros (129.9)."""
        scale: int = 10**self.exponent
        whole, rest = divmod(self.minor, scale)
        if not rest:
            return whole
        return Decimal(_decimal_text(self.minor, self.exponent).rstrip("0"))


def parse_quantity(document: Mapping[str, object], exponent_of: Callable[[str], int | None]) -> Quantity:
    """Read a quantity strictly: an unsigned decimal string with exactly the currency's digits, and one currency or unit.

    `exponent_of` gives the digits of a currency, None for one that isn't known.

    Raises:
        QuantityError: the document has another shape, an unknown currency or unit, other digits, or doesn't fit 64 bits.
    """
    if not isinstance(document, Mapping):
        raise QuantityError(f'{_echo(document)} isn\'t a quantity; write {{"amount": "80.00", "currency": "EUR"}}')
    keys = set(document)
    if keys == {"amount", "currency"}:
        unit = document["currency"]
        exponent = exponent_of(unit) if isinstance(unit, str) and _CURRENCY.fullmatch(unit) else None
        if exponent is None:
            raise QuantityError(f"{_echo(unit)} isn't a known currency; write an ISO 4217 code such as `EUR`")
    elif keys == {"amount", "unit"}:
        unit, exponent = document["unit"], 0
        if not isinstance(unit, str) or unit not in UNITS:
            raise QuantityError(f"{_echo(unit)} isn't a unit; write one of {', '.join(sorted(UNITS))}")
    else:
        raise QuantityError("a quantity has `amount` and either `currency` or `unit`, and nothing else")
    return Quantity(_parse_minor(document["amount"], str(unit), exponent), str(unit), exponent)


def to_minor(amount: int | Decimal, exponent: int) -> int | None:
    """Turn a plain amount into minor units, exactly.

    Gives None where that can't be done: more digits than the currency has, not a finite number, or not within 64 bits.
    """
    if isinstance(amount, bool):
        return None
    if isinstance(amount, int):
        # the bound comes first: multiplying a number of a million digits would cost time for nothing
        if not MINOR_MIN <= amount <= MINOR_MAX:
            return None
        return _within(amount * 10**exponent)
    if not isinstance(amount, Decimal) or not amount.is_finite():
        return None
    if not amount:
        return 0
    if amount.adjusted() + exponent >= _MINOR_DIGITS_MAX:
        return None
    sign, digits, power = amount.as_tuple()
    shift = int(power) + exponent
    if shift < 0:
        if any(digits[shift:]):
            return None
        digits, shift = digits[:shift], 0
    minor = int("".join(map(str, digits))) * 10**shift
    return _within(-minor if sign else minor)


def _parse_minor(amount: object, unit: str, exponent: int) -> int:
    matched = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    if matched is None or len(matched[2] or "") != exponent:
        example = _decimal_text(8 * 10**exponent, exponent)
        digits = f"exactly {exponent} digits after the point" if exponent else "no point"
        raise QuantityError(f"{_echo(amount)} isn't an amount of {unit}; write a decimal string with {digits}, such as `{example}`")
    minor = int(matched[1] + (matched[2] or ""))
    if minor > MINOR_MAX:
        raise QuantityError(f"{_echo(amount)} is too large; at most {_decimal_text(MINOR_MAX, exponent)} {unit} can be counted")
    return minor


def _within(minor: int) -> int | None:
    return minor if MINOR_MIN <= minor <= MINOR_MAX else None


def _decimal_text(minor: int, exponent: int) -> str:
    if not exponent:
        return str(minor)
    digits = str(abs(minor)).rjust(exponent + 1, "0")
    return f"{'-' if minor < 0 else ''}{digits[:-exponent]}.{digits[-exponent:]}"


def _echo(value: object) -> str:
    if isinstance(value, str):
        return echo(value)
    return f"a value of type `{type(value).__name__}`"

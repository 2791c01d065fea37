"""A fact's row as typed variables. Whatever isn't exactly of its declared type makes the fact unreadable, never a guess."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from app.policy.currencies import exponent_of
from app.policy.expressions import INT_MAX, INT_MIN
from app.policy.model import Fact, FactColumn

TEXT_BYTES_MAX = 65_536


class FactUnreadable(Exception):
    """A column isn't there, is null, or isn't of its declared type."""


def variables_of(fact: Fact) -> frozenset[str]:
    """Give the names of the variables that the fact's row would give."""
    names: set[str] = set()
    for column in fact.columns:
        name = f"{fact.name}.{column.name}"
        names |= {f"{name}.minor", f"{name}.currency"} if column.type == "money" else {name}
    return frozenset(names)


def read_row(fact: Fact, row: Mapping[str, object]) -> dict[str, object]:
    """Give the fact's variables.

    Raises:
        FactUnreadable: a column is missing, null or of another type.
    """
    values: dict[str, object] = {}
    for column in fact.columns:
        name = f"{fact.name}.{column.name}"
        if column.type == "money":
            values[f"{name}.minor"] = _integer(row, column.minor_column or "")
            values[f"{name}.currency"] = _currency(row, column.currency_column or "")
        else:
            values[name] = _plain(row, column)
    return values


def _plain(row: Mapping[str, object], column: FactColumn) -> object:
    value = row.get(column.name)
    match column.type:
        case "string" if isinstance(value, str) and len(value) <= TEXT_BYTES_MAX:
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "int":
            return _integer(row, column.name)
        case "timestamp" if isinstance(value, str):
            return _timestamp(value)
    raise FactUnreadable(f"column `{column.name}` isn't a {column.type}")


def _integer(row: Mapping[str, object], name: str) -> int:
    value = row.get(name)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value() and abs(value) < 10**20:
        value = int(value)
    if type(value) is not int or not INT_MIN <= value <= INT_MAX:
        raise FactUnreadable(f"column `{name}` isn't a whole number of 64 bits")
    return value


def _currency(row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or exponent_of(value) is None:
        raise FactUnreadable(f"column `{name}` isn't a known currency")
    return value


def _timestamp(value: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise FactUnreadable("a timestamp can't be read") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)

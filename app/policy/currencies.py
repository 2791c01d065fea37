"""The digits that a currency has after its point, from ISO 4217.

A currency that isn't in the list, or that has no minor unit (gold), has none: nobody may guess two.
"""

from __future__ import annotations

from collections.abc import Mapping

import iso4217

_EXPONENTS: Mapping[str, int] = {currency.code: currency.exponent for currency in iso4217.Currency if isinstance(currency.exponent, int)}


def exponent_of(currency: str) -> int | None:
    """Give the digits after the point of an upper-case ISO 4217 code; None if it isn't one or has no minor unit."""
    return _EXPONENTS.get(currency)

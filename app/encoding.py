"""The canonical form of `domain.canonical`, ten times as fast, for the documents that every decision writes.

It is the same text for every value whose Decimals are normalised and no smaller than 1e-6, which is how they are read from requests,
policies and the database; a property holds it against the reference. What the fast encoder would write otherwise (text beyond ASCII,
where the order of keys may differ; exponents; what isn't a number) goes to the reference. No value may hold a float: there it would be
silent about NaN.
"""

from __future__ import annotations

import hashlib

import msgspec

from app.domain.canonical import canonical

_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="number")
_PLAIN = msgspec.json.Encoder(decimal_format="number")


def canonical_text(value: object) -> str:
    """Give the canonical text of a JSON value.

    Raises:
        CanonicalError: it has none.
    """
    try:
        data = _SORTED.encode(value)
    except (TypeError, ValueError, OverflowError):
        return canonical(value)
    if not data.isascii() or b"E-" in data or b"E+" in data or b"NaN" in data or b"Inf" in data or b"\\u0000" in data:
        return canonical(value)
    return data.decode("ascii")


def canonical_digest(value: object) -> str:
    """Give `sha256:<hex>` of the canonical text."""
    return "sha256:" + hashlib.sha256(canonical_text(value).encode()).hexdigest()


def json_text(value: object) -> str:
    """Give JSON for the database: numbers exact, ids and times as text, keys in any order."""
    return _PLAIN.encode(value).decode()

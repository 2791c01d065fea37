"""The canonical form v1: one text for one JSON value, so that digests mean the same everywhere (DESIGN.md, "Formats").

RFC 8785 strings and key order (UTF-16 code units); numbers as the shortest exact decimal without exponent, so 60 = 60.0 = 6e1 and -0 = 0.
Every stored digest rests on it: a change of one character breaks each audit chain and approval, so it may only ever get a successor
beside it. `tests/vectors/canonical.json` fixes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

DIGITS_MAX = 80
"""Most significant digits of a number (an integer of 256 bits has 78)."""

MAGNITUDE_MAX = 308
MAGNITUDE_MIN = -324
"""The power of ten of a number's first digit: the range of binary64. With DIGITS_MAX, no number's text is longer than 406 characters."""

DEPTH_MAX = 128
"""Deepest nesting; requests are limited to 64 and records wrap them in a few levels of their own."""

_SMALL = 10**18
_INTEGER_BITS_MAX = 1028  # over 10**309: refused before str(), whose time grows with the square of the digits
_BEYOND_BMP = re.compile(rb"[\xf0-\xf4]")  # lead bytes: without such a character, code point order is the order of code units
_KeyOrder = Callable[[str], bytes] | None

# the standard library's C function writes what RFC 8785 3.2.2.2 asks: short escapes, \u00xx in lower case, DEL and non-ASCII as they are
_quoted: Callable[[str], str] = encode_basestring


class CanonicalError(ValueError):
    """A value has no canonical form; the message says why."""


def canonical(value: object) -> str:
    """Give the canonical text of a JSON value (None, bool, int, finite float, Decimal, str, list or tuple, Mapping with str keys).

    Raises:
        CanonicalError: another type, a number over the limits or not finite, NUL or a lone surrogate in a string, nesting over DEPTH_MAX.
    """
    return _checked(value)[0]


def digest(value: object) -> str:
    """Give `sha256:<hex>` over the canonical text of a JSON value.

    Raises:
        CanonicalError: see `canonical`.
    """
    return "sha256:" + hashlib.sha256(_checked(value)[1]).hexdigest()


def digest_text(text: str) -> str:
    """Give `sha256:<hex>` over a text that is canonical already."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def normalise_number(number: int | Decimal) -> int | Decimal:
    """Give the one form of a number: an int where it is whole, else a Decimal without trailing zeros.

    Raises:
        CanonicalError: the number is over the limits or not finite.
    """
    text = _integer_text(number) if isinstance(number, int) else _decimal_text(number)
    return Decimal(text) if "." in text else int(text)


def _checked(value: object) -> tuple[str, bytes]:
    """Give the text and its UTF-8. Strings are checked here, once over the whole text, because that is cheaper than one by one."""
    text = _render(value, None)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise CanonicalError("a string has a lone surrogate; send well-formed Unicode") from None
    if not text.isascii() and _BEYOND_BMP.search(encoded):
        text = _render(value, _utf16_order)
        encoded = text.encode()
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):  # an escaped backslash before u0000 is no NUL
        raise CanonicalError("a string has a NUL character; remove it")
    return text, encoded


def _utf16_order(key: str) -> bytes:
    return key.encode("utf-16-be")


def _render(value: object, order: _KeyOrder) -> str:
    try:
        return _text(value, order, DEPTH_MAX)
    except TypeError:
        # sorting or quoting met a key that isn't a string; checking each key would cost more than all of this
        raise CanonicalError("an object has a key that isn't a string") from None


def _text(value: object, order: _KeyOrder, depth: int) -> str:
    kind = type(value)
    write = _WRITERS.get(kind)
    if write is not None:
        return write(value)
    if kind is dict:
        return _object(value, order, depth)  # type: ignore[arg-type]  # mypy doesn't narrow by type(), which is faster than isinstance
    if kind is list or kind is tuple:
        if not depth:
            raise CanonicalError(f"nested deeper than {DEPTH_MAX}")
        below = depth - 1
        return "[" + ",".join([_text(item, order, below) for item in value]) + "]"  # type: ignore[attr-defined]  # as above
    if isinstance(value, str):  # StrEnum
        return _quoted(value)
    if isinstance(value, Mapping):
        return _object(dict(value), order, depth)
    raise CanonicalError(f"a value of type `{kind.__name__}` has no canonical form")


def _object(value: dict[str, object], order: _KeyOrder, depth: int) -> str:
    """Write an object. The commonest kinds of member are written in the loop: a call for each would cost half as much again."""
    if not depth:
        raise CanonicalError(f"nested deeper than {DEPTH_MAX}")
    below = depth - 1
    parts = []
    for key in sorted(value) if order is None else sorted(value, key=order):
        item = value[key]
        kind = type(item)
        if kind is str:
            parts.append(f"{_quoted(key)}:{_quoted(item)}")  # type: ignore[arg-type]  # as in _text
        elif kind is int and -_SMALL < item < _SMALL:  # type: ignore[operator]  # as in _text
            parts.append(f"{_quoted(key)}:{item}")
        elif kind is dict:
            parts.append(f"{_quoted(key)}:{_object(item, order, below)}")  # type: ignore[arg-type]  # as in _text
        else:
            parts.append(f"{_quoted(key)}:{_text(item, order, below)}")
    return "{" + ",".join(parts) + "}"


def _integer_text(value: int) -> str:
    if -_SMALL < value < _SMALL:
        return str(value)
    if value.bit_length() > _INTEGER_BITS_MAX:
        raise CanonicalError(f"a number is beyond 1e{MAGNITUDE_MAX}")
    text = str(value)
    digits = text.lstrip("-")
    if len(digits) > MAGNITUDE_MAX + 1:
        raise CanonicalError(f"a number is beyond 1e{MAGNITUDE_MAX}")
    if len(digits.rstrip("0")) > DIGITS_MAX:
        raise CanonicalError(f"a number has more than {DIGITS_MAX} significant digits")
    return text


def _decimal_text(value: Decimal) -> str:
    text = str(value)
    if len(text) <= DIGITS_MAX and text.replace(".", "", 1).isdigit():  # plain and unsigned, as nearly all are
        return text.rstrip("0").rstrip(".") if "." in text else text
    if not value.is_finite():
        raise CanonicalError("a number isn't finite")
    if not value:
        return "0"
    if not MAGNITUDE_MIN <= value.adjusted() <= MAGNITUDE_MAX:
        raise CanonicalError(f"a number is beyond 1e{MAGNITUDE_MIN} to 1e{MAGNITUDE_MAX}")
    text = f"{value:f}"  # exact: without a precision the context isn't asked
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if len(text) > DIGITS_MAX and len(text.lstrip("-0.").replace(".", "").rstrip("0")) > DIGITS_MAX:
        raise CanonicalError(f"a number has more than {DIGITS_MAX} significant digits")
    return text


def _float_text(value: float) -> str:
    # repr is the shortest text that reads back as the same double, so a double and the decimal that was typed agree
    return _decimal_text(Decimal(repr(value)))


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: _quoted,
    int: _integer_text,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
    Decimal: _decimal_text,
    float: _float_text,
}

"""The canonical form v1 (DESIGN.md, "Formats that can't change later"; API.md 0.4)."""

from __future__ import annotations

import decimal
import hashlib
import json
import random
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.canonical import (
    DEPTH_MAX,
    DIGITS_MAX,
    MAGNITUDE_MAX,
    MAGNITUDE_MIN,
    CanonicalError,
    canonical,
    digest,
    digest_text,
    normalise_number,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "canonical.json").read_text())
REFUND = {"order_id": "A-1001", "currency": "EUR", "cause": "damaged"}


class Word(StrEnum):
    ACCEPTED = "accepted"


def read(text: str) -> object:
    return json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize("vector", VECTORS["canonical"], ids=lambda vector: vector["case"])
def test_vector(vector: dict[str, str]) -> None:
    assert canonical(read(vector["json"])) == vector["canonical"]
    assert digest(read(vector["json"])) == "sha256:" + hashlib.sha256(vector["canonical"].encode()).hexdigest()


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["case"])
def test_refused_vector(vector: dict[str, str]) -> None:
    with pytest.raises(CanonicalError, match=vector["refused"]):
        canonical(read(vector["json"]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (60.0, "60"),
        (-0.0, "0"),
        (1e16, "10000000000000000"),
        (1e-7, "0.0000001"),
        (0.1, "0.1"),
        (1.7976931348623157e308, "17976931348623157" + "0" * 292),
        (5e-324, "0." + "0" * 323 + "5"),
        (Decimal("-0.00"), "0"),
        (Decimal("6E+1"), "60"),
        (Decimal("1E+308"), "1" + "0" * 308),
        (10**308, "1" + "0" * 308),
        (-(10**18), "-1000000000000000000"),
        (Word.ACCEPTED, '"accepted"'),
        ({Word.ACCEPTED: [Word.ACCEPTED]}, '{"accepted":["accepted"]}'),
        ((1, (2,)), "[1,[2]]"),
        (MappingProxyType({"b": MappingProxyType({}), "a": 1}), '{"a":1,"b":{}}'),
        ({"a": True, "b": False, "c": None, "d": 1}, '{"a":true,"b":false,"c":null,"d":1}'),
    ],
)
def test_python_values(value: object, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "a number isn't finite"),
        (float("inf"), "a number isn't finite"),
        (Decimal("NaN"), "a number isn't finite"),
        (Decimal("sNaN123"), "a number isn't finite"),
        (Decimal("-Infinity"), "a number isn't finite"),
        (10**309, "a number is beyond 1e308"),
        (-(10**309), "a number is beyond 1e308"),
        pytest.param(10**10_000, "a number is beyond 1e308", id="10000 digits"),
        (Decimal("1E+999999999"), "a number is beyond 1e-324 to 1e308"),
        ({1: 2}, "an object has a key that isn't a string"),
        ({1: 2, "a": 3}, "an object has a key that isn't a string"),
        ({None: 2}, "an object has a key that isn't a string"),
        ({b"a": 2}, "an object has a key that isn't a string"),
        (b"bytes", "a value of type `bytes` has no canonical form"),
        ({"a": {1}}, "a value of type `set` has no canonical form"),
        ([object()], "a value of type `object` has no canonical form"),
        ("\ud83d", "a string has a lone surrogate; send well-formed Unicode"),
        (["ok\x00"], "a string has a NUL character; remove it"),
    ],
)
def test_what_has_no_canonical_form_is_refused(value: object, reason: str) -> None:
    with pytest.raises(CanonicalError) as refused:
        canonical(value)
    assert str(refused.value) == reason


def test_limits_are_where_they_are_named() -> None:
    assert (DIGITS_MAX, MAGNITUDE_MAX, MAGNITUDE_MIN, DEPTH_MAX) == (80, 308, -324, 128)
    assert len(canonical(Decimal(f"-1.{'3' * (DIGITS_MAX - 1)}E{MAGNITUDE_MIN}"))) == 406
    deep: object = 0
    for _ in range(DEPTH_MAX):
        deep = {"a": deep}
    assert canonical(deep).count("{") == DEPTH_MAX
    with pytest.raises(CanonicalError, match="nested deeper than 128"):
        canonical({"a": deep})
    with pytest.raises(CanonicalError, match="nested deeper than 128"):
        canonical((MappingProxyType({"a": deep}),))


def test_the_decimal_context_has_no_say() -> None:
    with decimal.localcontext(decimal.Context(prec=3, capitals=0)):
        assert canonical([Decimal("1234.5678"), Decimal("1E+4"), Decimal("1E-9")]) == "[1234.5678,10000,0.000000001]"


def test_every_character_but_nul_and_surrogates_comes_back() -> None:
    text = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x110000, 7)]))
    assert json.loads(canonical(text)) == text
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    for code in range(1, 0x20):
        assert canonical(chr(code)) == '"' + short.get(code, f"\\u{code:04x}") + '"'


json_strings = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
json_numbers = (
    st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=6) | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    st.none() | st.booleans() | json_numbers | json_strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_strings, inner, max_size=5),
    max_leaves=20,
)


@given(json_values, st.randoms())
def test_equal_values_have_one_text_and_the_text_reads_back_as_the_value(value: object, chance: random.Random) -> None:
    text = canonical(value)
    assert canonical(read(text)) == text
    assert canonical(respell(value, chance)) == text
    assert digest(value) == digest_text(text)


@given(st.dictionaries(json_strings, st.just(0), max_size=8))
def test_keys_are_in_the_order_of_their_utf16_code_units(value: dict[str, int]) -> None:
    keys = [key for key, _ in json.loads(canonical(value), object_pairs_hook=list)]
    assert keys == sorted(value, key=lambda key: list(memoryview(key.encode("utf-16-le")).cast("H")))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_and_the_decimal_that_was_typed_agree_and_nothing_is_lost(number: float) -> None:
    text = canonical(number)
    assert canonical(Decimal(repr(number))) == text
    assert float(text) == number
    assert "e" not in text
    assert "E" not in text


@given(st.integers(-(10**79), 10**79) | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9))
def test_normalised_numbers_are_equal_and_have_one_form(number: int | Decimal) -> None:
    normal = normalise_number(number)
    assert normal == number
    assert isinstance(normal, int) == (number == int(number))
    assert str(normal if isinstance(normal, int) else f"{normal:f}") == canonical(number)


def test_numbers_over_the_limits_cannot_be_normalised() -> None:
    for number in (Decimal("1E+400"), Decimal("NaN"), 10**400, Decimal("0." + "7" * 81)):
        with pytest.raises(CanonicalError):
            normalise_number(number)


def respell(value: object, chance: random.Random) -> object:
    """Give the same value otherwise: keys in another order, numbers of another type, lists as tuples."""
    if isinstance(value, dict):
        items = [(key, respell(item, chance)) for key, item in value.items()]
        chance.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return tuple(respell(item, chance) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(f"{value}.000")
    if isinstance(value, Decimal) and value == int(value):
        return int(value)
    return value


# --- the digests that API.md shows, computed there by another implementation ---

SIDE_EFFECTS = {
    "strategy": "transaction",
    "rows": [
        {
            "table": "shop.orders",
            "operation": "update",
            "key": {"order_id": "A-1001"},
            "before": {"refunded_minor": 0},
            "after": {"refunded_minor": 12990},
        },
        {
            "table": "shop.refunds",
            "operation": "insert",
            "key": {"order_id": "A-1001"},
            "before": None,
            "after": {"amount_minor": 12990, "currency": "EUR"},
        },
    ],
    "counts": {"shop.orders": {"inserted": 0, "updated": 1, "deleted": 0}, "shop.refunds": {"inserted": 1, "updated": 0, "deleted": 0}},
}


@pytest.mark.parametrize("amount", [80, Decimal("80.00"), 80.0, Decimal("8E+1")])
def test_call_digest_of_api_1_6(amount: object) -> None:
    value = {"tool": "refund", "arguments": {**REFUND, "amount": amount}}
    assert digest(value) == "sha256:f0379a111697d78472f2d931aaf4975bfea5fdd152c5112d5ea26ff97959ef3a"


@pytest.mark.parametrize("amount", [Decimal("129.90"), Decimal("129.9"), 129.9])
def test_bound_digest_of_api_1_3(amount: object) -> None:
    value = {"tool": "refund", "arguments": {**REFUND, "amount": amount}}
    assert digest(value) == "sha256:0f153ce642f530feff24bdf20897b691a371227095c960d1401ce54507a7710b"


def test_effects_digest_of_api_1_2() -> None:
    assert digest(SIDE_EFFECTS) == "sha256:0cb1694836ae938e3b45234a314f9794bdddd527b2f2edcc9a4fb27daf5d3a22"


def test_effects_digest_of_api_1_4_for_80_instead_of_129_90() -> None:
    narrowed = json.loads(json.dumps(SIDE_EFFECTS).replace("12990", "8000"))
    assert digest(narrowed) == "sha256:19ce64053be8e9aa7d4f5281c40c88b92c2fd6dcddca3045cd69c97175d60542"


def test_seen_digest_of_api_1_3() -> None:
    risk = {
        "score": Decimal("0.7196"),
        "review_at": Decimal("0.6"),
        "deny_at": Decimal("0.95"),
        "thresholds_for": {},
        "factors": [
            {"name": "amount", "value": Decimal("0.6495"), "weight": Decimal("0.8"), "contribution": Decimal("0.5196")},
            {"name": "share_of_order", "value": Decimal("1.0"), "weight": Decimal("0.2"), "contribution": Decimal("0.2")},
            {"name": "goodwill", "value": 0, "weight": Decimal("0.15"), "contribution": 0},
        ],
    }
    review = {
        "call": {"tool": "refund", "arguments": {**REFUND, "amount": Decimal("129.9")}},
        "why": [{"layer": "risk", "reason": "needs_human_review"}],
        "budgets": [
            {
                "name": "budget:refunds_per_agent_day",
                "level": "principal",
                "remaining_before": {"amount": "780.00", "currency": "EUR"},
                "remaining_after": {"amount": "650.10", "currency": "EUR"},
            }
        ],
        "history": [
            {
                "decision_id": "01a230d5-2298-72d9-87ec-9ded623eae90",
                "tool": "refund",
                "arguments": {**REFUND, "amount": 12990},
                "decision": "denied",
                "reason": "amount_exceeds_refundable",
            }
        ],
        "similar": [
            {
                "decision_id": "01a20ddd-36b8-7998-bcd5-925b373a7246",
                "tool": "refund",
                "arguments": {**REFUND, "order_id": "A-0874", "amount": 118},
                "risk_score": Decimal("0.672"),
                "answer": "approved",
                "outcome": "succeeded",
            }
        ],
        "side_effects": {**SIDE_EFFECTS, "digest": digest(SIDE_EFFECTS)},
        "risk": risk,
    }
    assert digest(review) == "sha256:86a6626cb64bb57ef81b4c6a8c31feec18793827653a56c31fecd7f9b0d52f0a"

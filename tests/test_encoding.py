"""The fast encoder writes what the reference writes, or leaves it to the reference."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.canonical import CanonicalError, canonical, digest, normalise_number
from app.encoding import canonical_digest, canonical_text, json_text

NUMBERS = st.one_of(
    st.integers(-(10**70), 10**70),
    st.decimals(Decimal("-1e20"), Decimal("1e20"), allow_nan=False, allow_infinity=False, places=6).map(normalise_number),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=25,
)


@given(VALUES)
def test_the_fast_text_is_the_canonical_text(value: object) -> None:
    assert canonical_text(value) == canonical(value)
    assert canonical_digest(value) == digest(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": Decimal("1E-7")},
        {"a": Decimal("1E+3")},
        {"\U0001f600": 1, "\ufb33": 2},
        {"b": 1, "a": {"d": [], "c": {}}},
        {"a": 'control \x01 \x1f \x7f " \\ / \b\f\n\r\t'},
        {"a": 2**64, "b": -(2**63), "c": 2**53 + 1},
        {"a": "E-7 and NaN and Infinity are words here"},
        "text",
        7,
    ],
)
def test_what_the_fast_encoder_would_write_otherwise_goes_to_the_reference(value: object) -> None:
    assert canonical_text(value) == canonical(value)


@pytest.mark.parametrize("value", [{"a": Decimal("NaN")}, {"a": Decimal("Infinity")}, {"a": "nul \0"}, {"a": "\ud800"}, {1: 2}])
def test_what_has_no_canonical_form_is_refused_here_too(value: object) -> None:
    with pytest.raises(CanonicalError):
        canonical_text(value)


def test_json_for_the_database_keeps_numbers_ids_and_times() -> None:
    value = {"n": Decimal("129.90"), "big": 2**60 + 1, "id": UUID(int=7), "at": datetime(2026, 12, 1, tzinfo=UTC)}
    id_and_time = '"id":"00000000-0000-0000-0000-000000000007","at":"2026-12-01T00:00:00Z"'
    assert json_text(value) == '{"n":129.90,"big":1152921504606846977,' + id_and_time + "}"

"""What is stored and shown of a caller's value (S10.3, AS-01, AS-03): no secret at any depth, and everything else as it was."""

from __future__ import annotations

import string
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.redaction import put_back, redacted, scrubbed, secrets_of, shown, shown_schema, under_name

SENT: dict[str, Any] = {
    "headers": {"Authorization": "Bearer abc", "accept": "text/html"},
    "cfg": [{"cookie": "s=1"}, {"private_key": "-----BEGIN"}],
    "pairs": [["Cookie", "a"], ["accept", "b"]],
    "env": [{"name": "X-Api-Key", "value": "zz"}, {"name": "HOME", "value": "/root"}],
    "note": "use sk-live-abc123",
    "sk-live-abc123": {"used": True},
    "password": 1234,
    "credentials": {"user": "ada", "once": True},
    "order_id": "a8Xk29LmQz7Rt4Vw1Yb6Nc3Jd5Hf0Gs8",
    "key": "a8Xk29LmQz7Rt4Vw1Yb6Nc3Jd5Hf0Gs8",
    "cookie_consent": True,
    "max_tokens": 5,
    "token": None,
    "amount": Decimal("129.9"),
}
KEPT: dict[str, Any] = {
    "headers": {"Authorization": "[redacted]", "accept": "text/html"},
    "cfg": [{"cookie": "[redacted]"}, {"private_key": "[redacted]"}],
    "pairs": [["Cookie", "[redacted]"], ["accept", "b"]],
    "env": [{"name": "X-Api-Key", "value": "[redacted]"}, {"name": "HOME", "value": "/root"}],
    "note": "[redacted]",
    "[redacted]": {"used": True},
    "password": "[redacted]",
    "credentials": "[redacted]",
    "order_id": "a8Xk29LmQz7Rt4Vw1Yb6Nc3Jd5Hf0Gs8",
    "key": "[redacted]",
    "cookie_consent": True,
    "max_tokens": 5,
    "token": None,
    "amount": Decimal("129.9"),
}


def test_as_01_secrets_are_replaced_at_every_depth_and_nothing_else_is() -> None:
    assert redacted(SENT) == KEPT
    assert redacted(KEPT) == KEPT


def test_a_document_without_a_secret_is_the_very_same_object() -> None:
    harmless = {"order_id": "A-1001", "amount": Decimal("129.9"), "lines": [{"name": "cup", "value": 2}], "secret": "", "token": None}
    assert redacted(harmless) is harmless


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("password", "hunter2", "[redacted]"),
        ("password", 1234, "[redacted]"),
        ("password", Decimal("1.5"), "[redacted]"),
        ("password", ["a"], "[redacted]"),
        ("password", True, True),
        ("password", None, None),
        ("password", "", ""),
        ("authorization", 12, 12),
        ("tokens", 12, 12),
        ("tokens", ["12"], "[redacted]"),
        ("token_count", "many", "many"),
    ],
)
def test_truth_values_and_what_counts_are_no_secrets(name: str, value: object, kept: object) -> None:
    assert under_name(name, value) == kept
    assert redacted({name: value}) == {name: kept}


def test_what_was_taken_out_is_put_back_from_the_same_arguments() -> None:
    assert put_back(redacted(SENT), SENT) == SENT
    suggested = {**SENT, "amount": 20, "cfg": [*SENT["cfg"], {"cookie": "other"}]}
    assert put_back(redacted(suggested), SENT) == {**SENT, "amount": 20, "cfg": redacted(suggested["cfg"])}


def test_what_is_made_of_a_secret_is_scrubbed_of_it() -> None:
    secrets = secrets_of(SENT, redacted(SENT))
    assert secrets == {"Bearer abc", "s=1", "-----BEGIN", "a", "zz", "use sk-live-abc123", "sk-live-abc123", "1234", "ada", SENT["key"]}
    assert scrubbed({"message": "sent as Bearer abc", "code": "1234", "moment": "at 12345"}, secrets) == {
        "message": "sent as [redacted]",
        "code": "[redacted]",
        "moment": "at 12345",
    }


@pytest.mark.parametrize(
    ("value", "pointer", "seen"),
    [
        ("hunter2", "/password", "[redacted]"),
        ("hunter2", "/credentials/0/user", "[redacted]"),
        ("sk-live-abc123", "/note", "[redacted]"),
        ("x" * 200 + " sk-live-abc123", "/note", "[redacted]"),
        ("x" * 200, "/note", "x" * 120 + "…"),
        ("a\u202eb", "/note", "a\\u202eb"),
        (True, "/token", True),
        (5, "/max_tokens", 5),
        ({"a": 1}, "/note", "[an object]"),
        ([1], "/note", "[a list]"),
        (Decimal("1.5"), "/amount", Decimal("1.5")),
    ],
)
def test_what_a_hint_repeats(value: object, pointer: str, seen: object) -> None:
    assert shown(value, pointer) == seen


def test_a_megabyte_of_letters_is_shown_fast() -> None:
    assert shown("a" * 1_000_000) == "a" * 120 + "…"  # the first pattern for dense runs took a day


def test_a_schema_under_a_secrets_name_lists_no_values() -> None:
    assert shown_schema({"type": "string", "enum": ["hunter2"], "const": "x"}, "/api_key") == {
        "type": "string",
        "enum": "[redacted]",
        "const": "[redacted]",
    }
    listed = {"enum": ["EUR", "JPY"]}
    assert shown_schema(listed, "/currency") is listed


NAMES = st.sampled_from(["note", "Password", "x_api_key", "items", "token_count", "sk-live-abc123"]) | st.text(
    string.ascii_letters, max_size=4
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["", "plain", "Bearer abc.123", "hunter2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_redacting_is_done_once_and_undone_by_the_same_arguments(sent: dict[str, object]) -> None:
    kept = redacted(sent)
    assert redacted(kept) == kept
    assert put_back(kept, sent) == sent
    assert "Bearer abc" not in str(kept)
    assert "sk-live" not in str(kept)

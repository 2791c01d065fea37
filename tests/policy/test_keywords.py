"""Which keywords of a tool's schema assert something, and which unknown ones may have been meant to (SPEC S3.4, S6.3)."""

from __future__ import annotations

import pytest

from app.policy.keywords import KNOWN_FORMATS, meant_by, unasserted


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("maxLenght", "`maxLength`"),
        ("max_length", "`maxLength`"),
        ("Required", "`required`"),
        ("patterns", "`pattern`"),
        ("ref", "`$ref`"),
        ("formt", "`format`"),
        ("dependencies", "`dependentRequired` or `dependentSchemas`"),
        ("additionalItems", "`items` beside `prefixItems`"),
        ("minValue", "`minimum`"),
        ("formatMinimum", "a rule of `static_rules`"),
    ],
)
def test_what_may_be_a_constraint_is_never_an_annotation(key: str, meant: str) -> None:
    """S6.3: dropping it would loosen the policy."""
    assert meant_by(key) == meant


@pytest.mark.parametrize("key", ["optional", "example_value", "example", "nullable", "discriminator", "xml", "order", "enumNames", "unit"])
def test_what_is_like_no_constraint_is_told(key: str) -> None:
    assert meant_by(key) is None
    assert unasserted(key, True) == f"{key} is not asserted; it is only an annotation"


@pytest.mark.parametrize("key", ["type", "pattern", "items", "title", "description", "examples", "$comment", "x-maxLenght", "$defs"])
def test_what_asserts_or_only_describes_is_not_told(key: str) -> None:
    assert (meant_by(key), unasserted(key, "x")) == (None, None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "int32", "int32 is not asserted; it is only an annotation"),
        ("format", "x" * 100, f"{'x' * 64}… is not asserted; it is only an annotation"),
        ("default", 1, "a default is not filled in; it is only an annotation"),
        ("contentEncoding", "base64", "contentEncoding is not asserted; it is only an annotation"),
        ("readOnly", True, "readOnly is not asserted; it is only an annotation"),
        ("$schema", "http://json-schema.org/draft-07/schema#", "not asserted; the schema is read as draft 2020-12"),
        ("$schema", "https://json-schema.org/draft/2020-12/schema", None),
        *(("format", name, None) for name in sorted(KNOWN_FORMATS)),
    ],
)
def test_what_nothing_asserts_is_said(key: str, value: object, message: str | None) -> None:
    assert unasserted(key, value) == message

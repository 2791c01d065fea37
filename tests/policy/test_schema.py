"""References, patterns and annotations of a tool's schema (SPEC S3.4, IJ-11)."""

from __future__ import annotations

import pytest

from app.policy.schema import Annotation, Misspelling, SchemaInvalid, check_schema, schemas_in

PATTERN = (
    "the pattern can't be run in linear time: it has a look-around, a back reference or a large repeat, or is no regular expression;"
    " write it without, or as a rule of `static_rules` and keep the text as `x-pattern`"
)


@pytest.mark.parametrize(
    ("argument", "pointer", "message"),
    [
        (
            {"$ref": "https://a.test/b.json"},
            "/properties/a/$ref",
            "`https://a.test/b.json` is outside the schema, and nothing is fetched; copy it into `$defs` and refer to `#/$defs/<name>`",
        ),
        ({"$ref": "#"}, "/properties/a/$ref", "`#` refers to itself; write out the levels that are needed"),
        ({"$ref": "#/$defs/no"}, "/properties/a/$ref", "`#/$defs/no` isn't a schema in the document; refer to `#/$defs/<name>`"),
        ({"pattern": "^(?!x)"}, "/properties/a/pattern", PATTERN),
        ({"pattern": "(a)\\1"}, "/properties/a/pattern", PATTERN),
        ({"pattern": "("}, "/properties/a/pattern", PATTERN),
        ({"patternProperties": {"(?<=x)y": {}}}, "/properties/a/patternProperties/(?<=x)y", PATTERN),
    ],
)
def test_what_is_unsafe_is_refused_with_its_place_and_what_to_do(argument: dict[str, object], pointer: str, message: str) -> None:
    """IJ-11"""
    with pytest.raises(SchemaInvalid) as raised:
        check_schema({"type": "object", "properties": {"a": argument}})
    assert (raised.value.pointer, str(raised.value)) == (pointer, message)


@pytest.mark.parametrize("hidden", ["enum", "const", "default", "examples", "x-parts", "parts"])
def test_a_reference_leads_only_to_what_was_looked_at(hidden: str) -> None:
    """IJ-11: what stands in an enum or an unknown keyword is no schema, and may hold what no schema may."""
    inner = {"$dynamicRef": "#"}
    holder = {hidden: [inner] if hidden in ("enum", "examples") else {"0": inner}}
    schema = {"type": "object", "properties": {"a": holder, "b": {"$ref": f"#/properties/a/{hidden}/0"}}}
    with pytest.raises(SchemaInvalid, match="isn't a schema in the document"):
        check_schema(schema)


def test_a_reference_may_be_percent_encoded() -> None:
    """Generators of schemas write generic types so."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/List%3CName%3E"}}, "$defs": {"List<Name>": {"type": "array"}}}
    validator = check_schema(schema).validator
    assert (validator.is_valid({"a": []}), validator.is_valid({"a": 1})) == (True, False)


def test_a_reference_may_lead_to_true_or_false() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}, "$defs": {"none": False}}
    assert not check_schema(schema).validator.is_valid({"a": 1})


def test_annotations_and_misspellings_are_told_apart_with_their_places() -> None:
    """S6.3"""
    inner = {"type": "array", "items": {"type": "string", "format": "json", "maxLenght": 3, "example": "x", "x-own": 1}}
    checked = check_schema({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a/b": inner}})
    assert checked.annotations == (
        Annotation("/$schema", "not asserted; the schema is read as draft 2020-12"),
        Annotation("/properties/a~1b/items/format", "json is not asserted; it is only an annotation"),
        Annotation("/properties/a~1b/items/example", "example is not asserted; it is only an annotation"),
    )
    assert checked.misspellings == (Misspelling("/properties/a~1b/items/maxLenght", "`maxLength`"),)


def test_names_of_arguments_are_no_keywords() -> None:
    names = ("min", "maxLenght", "default", "format", "$schema", "dependencies")
    checked = check_schema({"type": "object", "properties": {name: {} for name in names}})
    assert (checked.annotations, checked.misspellings) == ((), ())


def test_each_schema_of_a_document_is_found() -> None:
    document = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, True]}}, "$defs": {"b": {}}, "enum": [{"type": "x"}]}
    assert [pointer for pointer, _ in schemas_in(document)] == ["", "/properties/a", "/properties/a/anyOf/0", "/$defs/b"]

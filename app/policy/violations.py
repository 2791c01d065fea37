"""What breaks a tool's schema, as values: where, by which keyword, and what the schema expects there.

A message is made of the schema's words only. The caller's text never goes into one: it would speak to a model as the guard (IE-03).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import jsonschema_rs

from app.domain.decision import ABSENT
from app.domain.wording import Locales, either, say
from app.policy.schema import CheckedSchema, escape, lookup, resolve

ACTUAL_CHARS_MAX = 256
EXPECTED_NODES_MAX = 64

_SENTENCES: Mapping[str, str] = {
    "type": "schema_type",
    "required": "schema_required",
    "additionalProperties": "schema_additional",
    "unevaluatedProperties": "schema_additional",
    "enum": "schema_enum",
    "const": "schema_const",
    "pattern": "schema_pattern",
    "format": "schema_format",
    "minimum": "schema_minimum",
    "maximum": "schema_maximum",
    "exclusiveMinimum": "schema_exclusive_minimum",
    "exclusiveMaximum": "schema_exclusive_maximum",
    "multipleOf": "schema_multiple_of",
    "minLength": "schema_min_length",
    "maxLength": "schema_max_length",
    "minItems": "schema_min_items",
    "maxItems": "schema_max_items",
    "uniqueItems": "schema_unique_items",
    "minProperties": "schema_min_properties",
    "maxProperties": "schema_max_properties",
}
_WITHOUT_VALUE = frozenset({"required", "additionalProperties", "unevaluatedProperties", "enum", "const", "uniqueItems"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong. `expected` is a JSON Schema fragment; `actual` ABSENT: missing, or too large to repeat.

    `sentence` is a name of `wording`, `value` what it shows: a word of the schema, or several as a choice.
    """

    pointer: str
    rule: str
    expected: Mapping[str, object]
    actual: object
    sentence: str
    value: object = None

    def message(self, locales: Locales) -> str:
        """Say what is wrong, without the place."""
        value = self.value
        return say(locales, self.sentence, value=either(locales, map(str, value)) if isinstance(value, list | tuple) else value)


def found_by_schema(checked: CheckedSchema, arguments: Mapping[str, object], most: int) -> tuple[Violation, ...]:
    """List what the validator finds, in its order, at most `most`."""
    found: dict[tuple[str, str, str], Violation] = {}
    for error in checked.validator.iter_errors(arguments):
        for violation in _violations(checked.document, arguments, error):
            found.setdefault((violation.pointer, violation.rule, str(violation.value)), violation)
            if len(found) >= most:  # also inside one error: it may name thousands of properties
                return tuple(found.values())
    return tuple(found.values())


def _violations(document: Mapping[str, object], arguments: object, error: jsonschema_rs.ValidationError) -> Iterator[Violation]:
    pointer = "".join(f"/{escape(str(part))}" for part in error.instance_path)
    path = [str(part) for part in error.schema_path]
    rule = path[-1] if path and path[-1] == "additionalProperties" else error.kind.name
    if rule == "required":
        name = str(getattr(error.kind, "property", ""))
        yield _violation(f"{pointer}/{escape(name)}", rule, _fragment(document, path[:-1], name), ABSENT)
    elif rule in ("additionalProperties", "unevaluatedProperties"):
        names = getattr(error.kind, "unexpected", None)
        if names is None:  # without `properties`, the validator names none of them
            holder = lookup(arguments, pointer)
            names = list(holder) if isinstance(holder, Mapping) else []
        for name in names:
            place = f"{pointer}/{escape(str(name))}"
            yield _violation(place, rule, {"not": {}}, _actual(lookup(arguments, place)))
    else:
        value = lookup(document, "".join(f"/{escape(part)}" for part in path))
        if value is ABSENT:
            value = getattr(error.kind, "value", None)
        expected = {rule: value} if value is not None and _nodes(value) <= EXPECTED_NODES_MAX else {}
        yield _violation(pointer, rule, expected, _actual(lookup(arguments, pointer)))


def _violation(pointer: str, rule: str, expected: Mapping[str, object], actual: object) -> Violation:
    value = expected.get(rule)
    if rule in _WITHOUT_VALUE:
        return Violation(pointer, rule, expected, actual, _SENTENCES[rule])
    if rule in _SENTENCES and value is not None:
        return Violation(pointer, rule, expected, actual, _SENTENCES[rule], value)
    return Violation(pointer, rule, expected, actual, "schema_otherwise", rule)


def _fragment(document: Mapping[str, object], path: list[str], name: str) -> Mapping[str, object]:
    """Give what a missing property would have to be: the short keywords of its schema."""
    holder = lookup(document, "".join(f"/{escape(part)}" for part in path))
    properties = holder.get("properties") if isinstance(holder, Mapping) else None
    schema = resolve(document, properties.get(name)) if isinstance(properties, Mapping) else {}
    short = {key: schema[key] for key in ("type", "enum", "const", "format", "pattern") if key in schema}
    return short if _nodes(short) <= EXPECTED_NODES_MAX else {key: short[key] for key in ("type",) if key in short}


def _actual(value: object) -> object:
    if value is None or isinstance(value, bool | int | Decimal):
        return value
    return value if isinstance(value, str) and len(value) <= ACTUAL_CHARS_MAX else ABSENT


def _nodes(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(map(_nodes, value.values()))
    if isinstance(value, list | tuple):
        return 1 + sum(map(_nodes, value))
    return 1

"""The JSON Schema of a tool's arguments: what may stand in it, how much it may weigh, and what a rule finds in it.

Nothing outside the document is ever fetched, and no reference may recurse: validation stays linear in the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import jsonschema_rs

from app.domain.decision import ABSENT
from app.domain.errors import PlacetError

SUBSCHEMAS_MAX = 20_000
REGEX_BYTES_MAX = 1_000_000

KNOWN_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri", "uri-reference"}
    | {"iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex", "uuid"}
)
_ONE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains", "not", "if", "then", "else"}
    | {"contentSchema"}
)
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_PLAIN = frozenset(
    {"$schema", "$ref", "$comment", "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
    | {"maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties"}
    | {"minProperties", "required", "dependentRequired", "title", "description", "default", "deprecated", "readOnly", "writeOnly"}
    | {"examples", "format", "contentEncoding", "contentMediaType"}
)
_REFUSED = frozenset({"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"})
_DEFINITIONS = ("$defs", "definitions")


class SchemaInvalid(PlacetError):
    """A tool's schema can't be used; `pointer` says where in it."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that passed: its validator and what was found on the way."""

    document: Mapping[str, object]
    validator: jsonschema_rs.Draft202012Validator
    unknown_formats: tuple[str, ...]  # annotations: nothing asserts them
    unknown_keywords: tuple[str, ...]  # pointers


def check_schema(document: Mapping[str, object]) -> CheckedSchema:
    """Check and compile a schema for an object of arguments.

    Raises:
        SchemaInvalid: not an object's schema, a reference outside or in a circle, too heavy, or a pattern that isn't linear.
    """
    if document.get("type") != "object":
        raise SchemaInvalid("the arguments are an object; write `type: object`", "/type")
    formats: set[str] = set()
    unknown: list[str] = []
    for pointer, schema in _walk(document, ""):
        for key in schema:
            if key in _REFUSED and (pointer, key) != ("", "$id"):
                raise SchemaInvalid(f"`{key}` isn't supported; refer to `#/$defs/<name>`", f"{pointer}/{key}")
            if key not in _ONE | _LIST | _MAP | _PLAIN and not key.startswith("x-") and key != "$id":
                unknown.append(f"{pointer}/{escape(key)}")
        name = schema.get("format")
        if isinstance(name, str) and name not in KNOWN_FORMATS:
            formats.add(name)
    _weigh(document, document, (), {})
    usable = {key: value for key, value in document.items() if key not in ("$id", "$schema")}
    try:
        validator = jsonschema_rs.Draft202012Validator(
            usable,
            validate_formats=True,
            ignore_unknown_formats=True,
            retriever=_refuse,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES_MAX),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        place = "".join(f"/{escape(str(part))}" for part in getattr(error, "instance_path", []))
        raise SchemaInvalid(f"not a JSON Schema of draft 2020-12: {message[:300]}", place) from None
    return CheckedSchema(document, validator, tuple(sorted(formats)), tuple(unknown))


def resolve(document: Mapping[str, object], schema: object) -> Mapping[str, object]:
    """Follow local references of a checked document to the schema that they stand for; {} where there is none."""
    for _ in range(32):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = lookup(document, reference.removeprefix("#"))
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **siblings} if isinstance(target, Mapping) else siblings
    return {}


def lookup(document: object, pointer: str) -> object:
    """Give what stands at a JSON Pointer; ABSENT where nothing does."""
    for escaped in pointer.split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping) and part in document:
            document = document[part]
        elif isinstance(document, list | tuple) and re.fullmatch("0|[1-9][0-9]{0,8}", part) and int(part) < len(document):
            document = document[int(part)]
        else:
            return ABSENT
    return document


def escape(part: str) -> str:
    """Escape one part of a JSON Pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def _refuse(uri: str) -> NoReturn:
    raise LookupError(f"a reference outside the schema is not allowed: {uri}")


def _children(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, value in schema.items():
        if key in _ONE:
            yield key, value
        elif key in _LIST and isinstance(value, list | tuple):
            yield from ((f"{key}/{index}", item) for index, item in enumerate(value))
        elif key in _MAP and isinstance(value, Mapping):
            yield from ((f"{key}/{escape(str(name))}", item) for name, item in value.items())


def _walk(schema: object, pointer: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(schema, Mapping):
        return
    if pointer.count("/") > 128:
        raise SchemaInvalid("nested too deeply", pointer)
    yield pointer, schema
    for path, child in _children(schema):
        yield from _walk(child, f"{pointer}/{path}")


def _weigh(root: Mapping[str, object], schema: object, path: tuple[str, ...], known: dict[str, int]) -> int:
    """Count the subschemas that one value may meet, references written out; definitions weigh where they are used."""
    if not isinstance(schema, Mapping):
        return 1
    weight = 1
    for name, child in _children(schema):
        if name.split("/")[0] not in _DEFINITIONS:
            weight += _weigh(root, child, path, known)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in path:
            raise SchemaInvalid(f"`{reference}` refers to itself; write out the levels that are needed", "")
        if reference not in known:
            target = lookup(root, reference.removeprefix("#"))
            if not reference.startswith("#/") or not isinstance(target, Mapping | bool):
                raise SchemaInvalid(f"`{reference}` isn't in the schema; refer to `#/$defs/<name>`", "")
            known[reference] = _weigh(root, target, (*path, reference), known)
        weight += known[reference]
    if weight > SUBSCHEMAS_MAX:
        raise SchemaInvalid(f"more than {SUBSCHEMAS_MAX} subschemas, references written out", "")
    return weight

"""The JSON Schema of a tool's arguments: what may stand in it, how much it may weigh, and what a rule finds in it.

Nothing outside the document is ever fetched, and no reference may recurse: validation stays linear in the arguments. What nothing asserts
is either told as an annotation or, where its author may have meant it to be asserted, refused: no constraint is dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import unquote

import jsonschema_rs

from app.domain.decision import ABSENT
from app.domain.errors import PlacetError
from app.policy.keywords import HOLDS_LIST, HOLDS_MAP, HOLDS_ONE, REFUSED, meant_by, short, unasserted

SUBSCHEMAS_MAX = 20_000
REGEX_BYTES_MAX = 1_000_000

_DEFINITIONS = ("$defs", "definitions")
_PATTERN = (
    "the pattern can't be run in linear time: it has a look-around, a back reference or a large repeat, or is no regular expression;"
    " write it without, or as a rule of `static_rules` and keep the text as `x-pattern`"
)


class SchemaInvalid(PlacetError):
    """A tool's schema can't be used; `pointer` says where in it."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something in a schema that nothing asserts: where it stands, and what that means."""

    pointer: str
    message: str


@dataclass(frozen=True, slots=True)
class Misspelling:
    """A keyword that isn't one of JSON Schema and looks like a constraint: where it stands, and what may have been meant."""

    pointer: str
    meant: str


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that passed: its validator and what was found on the way. With `misspellings` it is looser than its author meant."""

    document: Mapping[str, object]
    validator: jsonschema_rs.Draft202012Validator
    annotations: tuple[Annotation, ...]
    misspellings: tuple[Misspelling, ...]


def check_schema(document: Mapping[str, object]) -> CheckedSchema:
    """Check and compile a schema for an object of arguments.

    Raises:
        SchemaInvalid: not an object's schema, a reference outside or in a circle, too heavy, or a pattern that isn't linear.
    """
    if document.get("type") != "object":
        raise SchemaInvalid("the arguments are an object; write `type: object`", "/type")
    annotations: list[Annotation] = []
    misspellings: list[Misspelling] = []
    references: list[tuple[str, object]] = []
    places: set[str] = set()
    for pointer, schema in schemas_in(document):
        places.add(pointer)
        for key, value in schema.items():
            place = f"{pointer}/{escape(key)}"
            if key == "$ref":
                references.append((place, value))
            elif key in REFUSED and (pointer, key) != ("", "$id"):
                raise SchemaInvalid(f"`{key}` isn't supported; refer to `#/$defs/<name>`", place)
            elif meant := meant_by(key):
                misspellings.append(Misspelling(place, meant))
            elif message := unasserted(key, value):
                annotations.append(Annotation(place, message))
    for place, reference in references:
        _check_reference(document, places, place, reference)
    _weigh(document, document, (), {})
    return CheckedSchema(document, _validator(document), tuple(annotations), tuple(misspellings))


def _check_reference(document: Mapping[str, object], places: set[str], place: str, reference: object) -> None:
    """Let a reference only lead to a schema of the document that was looked at: what stands in an enum or an unknown keyword wasn't."""
    if not isinstance(reference, str):
        return  # the validator says what it has to be
    if not reference.startswith("#"):
        message = f"`{short(reference)}` is outside the schema, and nothing is fetched; copy it into `$defs` and refer to `#/$defs/<name>`"
        raise SchemaInvalid(message, place)
    if reference == "#":
        raise SchemaInvalid("`#` refers to itself; write out the levels that are needed", place)
    target = _fragment(reference)
    if target not in places and not isinstance(lookup(document, target), bool):
        raise SchemaInvalid(f"`{short(reference)}` isn't a schema in the document; refer to `#/$defs/<name>`", place)


def _validator(document: Mapping[str, object]) -> jsonschema_rs.Draft202012Validator:
    usable = {key: value for key, value in document.items() if key not in ("$id", "$schema")}
    try:
        return jsonschema_rs.Draft202012Validator(
            usable,
            validate_formats=True,
            ignore_unknown_formats=True,
            retriever=_refuse,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES_MAX),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        place = "".join(f"/{escape(str(part))}" for part in getattr(error, "instance_path", []))
        if message.endswith('is not a "regex"'):
            raise SchemaInvalid(_PATTERN, place) from None
        raise SchemaInvalid(f"not a JSON Schema of draft 2020-12: {message[:300]}", place) from None


def schemas_in(document: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Give each schema of a document with its pointer, the document's own first; booleans aren't told.

    Raises:
        SchemaInvalid: nested deeper than a body can be.
    """
    return _walk(document, "")


def resolve(document: Mapping[str, object], schema: object) -> Mapping[str, object]:
    """Follow local references of a checked document to the schema that they stand for; {} where there is none."""
    for _ in range(32):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = lookup(document, _fragment(reference))
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


def _fragment(reference: str) -> str:
    """Give the JSON Pointer of a local reference, which is a URI's fragment (RFC 6901, 6)."""
    return unquote(reference.removeprefix("#"))


def _refuse(uri: str) -> NoReturn:
    raise LookupError(f"a reference outside the schema is not allowed: {uri}")


def _children(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, value in schema.items():
        if key in HOLDS_ONE:
            yield key, value
        elif key in HOLDS_LIST and isinstance(value, list | tuple):
            yield from ((f"{key}/{index}", item) for index, item in enumerate(value))
        elif key in HOLDS_MAP and isinstance(value, Mapping):
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
            target = lookup(root, _fragment(reference))  # checked before to be there
            known[reference] = _weigh(root, target, (*path, reference), known)
        weight += known[reference]
    if weight > SUBSCHEMAS_MAX:
        raise SchemaInvalid(f"more than {SUBSCHEMAS_MAX} subschemas, references written out", "")
    return weight

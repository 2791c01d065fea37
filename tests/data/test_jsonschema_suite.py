"""The validator of arguments against JSON Schema's own test suite, beside the library that it is made of (SPEC S3.4).

A schema of the suite stands where a tool's argument stands. The rule: no value that the suite calls invalid is valid here, in any draft,
unless it is named in LOOSER. Where we are stricter than draft 2020-12 asks, the reason is in STRICTER or REFUSED, with the number of tests.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import pytest

from app.api.json_body import parse_json
from app.domain.errors import BodyMalformed
from app.policy.arguments import ArgumentReader
from app.policy.keywords import KNOWN_FORMATS
from app.policy.schema import SchemaInvalid, schemas_in
from tests.cases.stage import written
from tests.data.suites import rows

OURS = "draft2020-12"
LIBRARY = {
    "draft2020-12": jsonschema_rs.Draft202012Validator,
    "draft2019-09": jsonschema_rs.Draft201909Validator,
    "draft7": jsonschema_rs.Draft7Validator,
    "draft6": jsonschema_rs.Draft6Validator,
    "draft4": jsonschema_rs.Draft4Validator,
}
Part = Literal["required", "optional", "format"]

SCORES: Mapping[tuple[str, Part], tuple[int, int, int, int]] = {
    ("draft2020-12", "required"): (1299, 1254, 1235, 1143),
    ("draft2020-12", "optional"): (158, 157, 157, 95),
    ("draft2020-12", "format"): (768, 378, 768, 767),
    ("draft2019-09", "required"): (1259, 1227, 1227, 1033),
    ("draft2019-09", "optional"): (158, 155, 155, 95),
    ("draft2019-09", "format"): (757, 371, 757, 756),
    ("draft7", "required"): (927, 904, 904, 762),
    ("draft7", "optional"): (118, 116, 116, 102),
    ("draft7", "format"): (676, 676, 676, 675),
    ("draft6", "required"): (839, 816, 816, 682),
    ("draft6", "optional"): (106, 106, 106, 96),
    ("draft6", "format"): (325, 325, 325, 323),
    ("draft4", "required"): (618, 601, 601, 482),
    ("draft4", "optional"): (100, 100, 100, 90),
    ("draft4", "format"): (219, 219, 219, 218),
}
"""Draft and part -> tests, right by the library with its defaults, right by it with formats asserted, right by us. A schema that we refuse
is right in no test; a body that we refuse counts as an invalid value."""

REFUSED: Mapping[str, int] = {
    "`$id` isn't supported": 55,
    "`$anchor` isn't supported": 11,
    "`$dynamicAnchor` isn't supported": 28,
    "`$dynamicRef` isn't supported": 6,
    "is outside the schema, and nothing is fetched": 36,
    "isn't a schema in the document": 10,
    "refers to itself": 11,
    "a constraint of another draft": 36,
}
"""What the message of a refused schema says -> tests of draft 2020-12. A tool's schema is one document without identifiers of its own,
whose references lead down into it: then its validation ends, fetches nothing, and a reader sees what is meant."""

_FORMAT = "the draft leaves formats to annotation; here they are asserted"
_NUL = "no text that PostgreSQL can't hold comes into a decision: the body is refused"
_DIGITS = "a number of more than 34 digits has no exact value for a rule"
STRICTER: Mapping[tuple[str, str], tuple[int, str]] = {
    **{("format.json", f"{name} format"): (1, _FORMAT) for name in sorted(KNOWN_FORMATS)},
    ("const.json", "nul characters in strings"): (1, _NUL),
    ("enum.json", "nul characters in strings"): (1, _NUL),
    ("optional/format/json-pointer.json", "validation of JSON-pointers (JSON String Representation)"): (1, _NUL),
    ("optional/bignum.json", "integer"): (2, _DIGITS),
    ("optional/bignum.json", "number"): (2, _DIGITS),
    ("vocabulary.json", "schema that uses custom metaschema with with no validation vocabulary"): (
        1,
        "`$schema` can't take a constraint away: it is read as draft 2020-12, and a note says so",
    ),
}
"""File and group of draft 2020-12 -> tests in which a valid value is refused, and why."""

_CONTENT = "2020-12 made contentEncoding and contentMediaType annotations; a note of the bundle names them"
LOOSER: Mapping[tuple[str, str, str], str] = {
    ("draft7", "optional/content.json", "an invalid JSON document"): _CONTENT,
    ("draft7", "optional/content.json", "an invalid base64 string (% is not a valid character)"): _CONTENT,
    ("draft7", "optional/content.json", "a validly-encoded invalid JSON document"): _CONTENT,
    ("draft7", "optional/content.json", "an invalid base64 string that is valid JSON"): _CONTENT,
    ("draft4", "optional/zeroTerminatedFloats.json", "a float is not an integer even without fractional part"): (
        "a number is its value: 1.0 is the integer 1 in every later draft"
    ),
}
"""Draft, file and test -> why a value that this draft calls invalid is valid here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test of the suite: what is right, what the library says (None: it refuses the schema), and what we say."""

    draft: str
    part: Part
    file: str
    group: str
    test: str
    right: bool
    library: bool | None
    asserting: bool | None
    ours: bool | None
    refusal: str = ""


@pytest.fixture(scope="module")
def outcomes(shared_dir: Path) -> list[Outcome]:
    exact = rows(shared_dir, "jsonschema_testsuite", exact=True)
    return [outcome for row, own in zip(rows(shared_dir, "jsonschema_testsuite"), exact, strict=True) for outcome in _outcomes(row, own)]


def test_the_scores(outcomes: list[Outcome]) -> None:
    found: dict[tuple[str, Part], list[int]] = {}
    for each in outcomes:
        score = found.setdefault((each.draft, each.part), [0, 0, 0, 0])
        said = (each.right, each.library, each.asserting, each.ours)
        score[:] = [total + (what == each.right) for total, what in zip(score, said, strict=True)]
    assert {place: tuple(score) for place, score in found.items()} == SCORES


def test_nothing_that_is_invalid_is_valid_here(outcomes: list[Outcome]) -> None:
    """S3.4: whatever draft a tool's schema was written in, reading it as 2020-12 lets nothing more through."""
    looser = {(each.draft, each.file, each.test) for each in outcomes if each.ours is True and not each.right}
    assert looser == LOOSER.keys()


def test_each_difference_from_the_draft_has_its_reason(outcomes: list[Outcome]) -> None:
    ours = [each for each in outcomes if each.draft == OURS]
    refused = Counter(each.refusal for each in ours if each.ours is None)
    assert refused == REFUSED
    assert [each for each in ours if each.ours is True and not each.right] == []
    stricter = Counter((each.file, each.group) for each in ours if each.ours is False and each.right)
    assert stricter == {place: number for place, (number, _) in STRICTER.items()}


def _outcomes(row: Mapping[str, Any], own: Mapping[str, Any]) -> list[Outcome]:
    library = _library(row, validate_formats=None)
    asserting = _library(row, validate_formats=True)
    reader, refusal = _reader(own["schema"])
    part: Part = "format" if row["format"] else "optional" if row["optional"] else "required"
    return [
        Outcome(
            row["draft"],
            part,
            row["file"],
            row["group"],
            test["description"],
            test["valid"],
            library and library.is_valid(test["data"]),
            asserting and asserting.is_valid(test["data"]),
            reader and _is_valid(reader, exact["data"]),
            refusal,
        )
        for test, exact in zip(row["tests"], own["tests"], strict=True)
    ]


def _library(row: Mapping[str, Any], validate_formats: bool | None) -> Any:
    try:
        return LIBRARY[row["draft"]](
            row["schema"], validate_formats=validate_formats, retriever=_refuse
        )  # the suite's own server isn't there
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None


def _refuse(uri: str) -> None:
    raise LookupError(uri)


def _reader(schema: object) -> tuple[ArgumentReader | None, str]:
    """Read the schema as that of the argument `v`: what names the document moves up, references are written from its new root."""
    moved = copy.deepcopy(schema)
    document: dict[str, Any] = {"type": "object", "properties": {"v": moved}}
    if isinstance(moved, dict):
        document |= {key: moved.pop(key) for key in ("$schema", "$id") if key in moved}
    for _, each in schemas_in(moved):
        reference = each.get("$ref")
        if isinstance(each, dict) and isinstance(reference, str) and reference.startswith("#"):
            each["$ref"] = "#/properties/v" + reference[1:]
    try:
        reader = ArgumentReader(document)
    except SchemaInvalid as error:
        return None, _kind(str(error))
    if reader.misspellings:
        return None, "a constraint of another draft"
    return reader, ""


def _kind(message: str) -> str:
    """Give a refusal's kind: its words without what it quotes of the schema."""
    return re.sub(r"`(?!\$)[^`]*` ", "", message).partition(";")[0]


def _is_valid(reader: ArgumentReader, data: object) -> bool:
    try:
        arguments = parse_json(written({"v": data}))
    except BodyMalformed:
        return False
    assert isinstance(arguments, dict)
    return not reader.violations(arguments)

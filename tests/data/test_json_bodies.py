"""The JSON parsing suite (RFC 8259), sent to the endpoint whole and inside a good request's arguments (SPEC S3.4, IJ-01 to IJ-06).

What the suite leaves to the reader, and the four documents that it allows and we refuse, are in ON_PURPOSE with what the caller is told.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.serving import Client
from tests.data.sending import CHECK, Answered, each, take_notes, writing_routes
from tests.data.suites import rows
from tests.engine.shop import Shop

_DUPLICATE = "duplicate key `a`"  # two readers would take different values
_KEY_NUL = "a key has a NUL character; remove it"  # PostgreSQL's text can't hold it
_NUL = "a string has a NUL character; remove it"
_LONE = "a string has a lone surrogate"  # isn't Unicode text; no two languages agree what it is
_CUT = "a string has a lone surrogate or a cut escape"
_UTF8 = "a string isn't valid UTF-8"
_NOT_A_VALUE = "expected a value (NaN and Infinity aren't JSON)"  # UTF-16: RFC 8259 (8.1) asks for UTF-8
_BEYOND = "a number is beyond 1e-324 to 1e308"  # no two readers agree on its value
_RANGE = "a number is out of range"
_DEEP = "nested deeper than 64"

ON_PURPOSE: Mapping[str, str] = {
    "y_object_duplicated_key.json": _DUPLICATE,
    "y_object_duplicated_key_and_value.json": _DUPLICATE,
    "y_object_escaped_null_in_key.json": _KEY_NUL,
    "y_string_null_escape.json": _NUL,
    "object_same_key_different_values.json": _DUPLICATE,
    "object_same_key_same_value.json": _DUPLICATE,
    "object_same_key_unclear_values.json": _DUPLICATE,
    "string_with_escaped_NULL.json": _NUL,
    "i_number_double_huge_neg_exp.json": _BEYOND,
    "i_number_huge_exp.json": _RANGE,
    "i_number_neg_int_huge_exp.json": _BEYOND,
    "i_number_pos_double_huge_exp.json": _BEYOND,
    "i_number_real_neg_overflow.json": _BEYOND,
    "i_number_real_pos_overflow.json": _BEYOND,
    "i_number_real_underflow.json": _BEYOND,
    "number_1e-999.json": _BEYOND,
    "i_object_key_lone_2nd_surrogate.json": _LONE,
    "i_string_1st_surrogate_but_2nd_missing.json": _CUT,
    "i_string_1st_valid_surrogate_2nd_invalid.json": _LONE,
    "i_string_incomplete_surrogate_and_escape_valid.json": _CUT,
    "i_string_incomplete_surrogate_pair.json": _LONE,
    "i_string_incomplete_surrogates_escape_valid.json": _LONE,
    "i_string_invalid_lonely_surrogate.json": _CUT,
    "i_string_invalid_surrogate.json": _CUT,
    "i_string_inverted_surrogates_U+1D11E.json": _LONE,
    "i_string_lone_second_surrogate.json": _LONE,
    "string_1_escaped_invalid_codepoint.json": _CUT,
    "string_2_escaped_invalid_codepoints.json": _LONE,
    "string_3_escaped_invalid_codepoints.json": _LONE,
    "i_string_UTF-8_invalid_sequence.json": _UTF8,
    "i_string_UTF8_surrogate_U+D800.json": _UTF8,
    "i_string_invalid_utf-8.json": _UTF8,
    "i_string_iso_latin_1.json": _UTF8,
    "i_string_lone_utf8_continuation_byte.json": _UTF8,
    "i_string_not_in_unicode_range.json": _UTF8,
    "i_string_overlong_sequence_2_bytes.json": _UTF8,
    "i_string_overlong_sequence_6_bytes.json": _UTF8,
    "i_string_overlong_sequence_6_bytes_null.json": _UTF8,
    "i_string_truncated-utf-8.json": _UTF8,
    "string_1_invalid_codepoint.json": _UTF8,
    "string_2_invalid_codepoints.json": _UTF8,
    "string_3_invalid_codepoints.json": _UTF8,
    "i_string_UTF-16LE_with_BOM.json": _NOT_A_VALUE,
    "i_string_utf16BE_no_BOM.json": _NOT_A_VALUE,
    "i_string_utf16LE_no_BOM.json": _NOT_A_VALUE,
    "i_structure_500_nested_arrays.json": _DEEP,
    "i_structure_UTF-8_BOM_empty_object.json": _NOT_A_VALUE,  # a whole body that starts so is told about its byte order mark
}
"""What isn't refused by the grammar and is refused here -> what the caller is told, without the place."""

NOT_EXACT = {"i_number_very_big_negative_int.json"}
"""Read, and then denied: 48 digits have no exact value for a rule."""


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    expect: str
    body: bytes


@pytest.fixture(scope="module")
def documents(shared_dir: Path) -> list[Document]:
    return [Document(row["name"], row["expect"], base64.b64decode(row["b64"])) for row in rows(shared_dir, "jsontestsuite")]


def test_the_suite_is_there_and_the_table_is_about_it(documents: list[Document]) -> None:
    assert Counter(each.expect for each in documents) == {"reject": 188, "accept": 95, "either": 57}
    assert ON_PURPOSE.keys() | NOT_EXACT <= {each.name for each in documents if each.expect != "reject"}


async def test_each_document_as_the_whole_body(client: Client, shop: Shop, documents: list[Document]) -> None:
    """IJ-01: 400 where it isn't JSON that all read alike, 422 where it is and is no request; never a 5xx, never a permission."""
    token = shop.acme.tokens["agent"]
    wrong = []
    for document, answer in await each(documents, lambda document: client.ask("POST", CHECK, token, document.body)):
        readable = document.expect != "reject" and document.name not in ON_PURPOSE
        if answer.said != ("422 request_invalid" if readable else "400 body_malformed"):
            wrong.append((document, answer.said))
    assert wrong == []


async def test_each_document_as_an_argument_of_a_good_request(client: Client, shop: Shop, documents: list[Document]) -> None:
    """IJ-01 to IJ-06: what is read is decided, what isn't is refused with the reason in the table."""
    await take_notes(client, shop)
    token, number = shop.acme.tokens["agent"], itertools.count()

    def around(document: Document) -> bytes:
        head = b'{"tool": "note", "session_id": "s", "call_id": "c%d", "arguments": {"note": ' % next(number)
        return head + document.body + b"}}"

    wrong = []
    counted = Counter[str]()
    for document, answer in await each(documents, lambda document: client.ask("POST", CHECK, token, around(document))):
        counted[answer.said] += 1
        if not _as_expected(document, answer):
            wrong.append((document.name, answer.said, answer.document.get("detail")))
    assert wrong == []
    assert counted == {"accepted": 104, "denied": 1, "400 body_malformed": 235}


@pytest.mark.slow
async def test_each_document_to_every_route_that_takes_one(client: Client, shop: Shop, documents: list[Document]) -> None:
    """S3.4: all routes read with the same strictness."""
    routes = await writing_routes(client, shop)
    assert {route.path for route in routes} >= {"/keys", "/policies", "/tenants", "/keys/{key_id}/rotation"}
    wrong = []
    for route in routes:
        for document, answer in await each(documents, lambda document, route=route: route.send(client, document.body)):
            readable = document.expect != "reject" and document.name not in ON_PURPOSE
            if (answer.said == "400 body_malformed") is readable or answer.status in (401, 403):
                wrong.append((route.path, document.name, answer.said))
    assert wrong == []


def _as_expected(document: Document, answer: Answered) -> bool:
    if document.expect == "reject":
        return answer.said == "400 body_malformed"
    if document.name in ON_PURPOSE:
        told = str(answer.document["detail"]).partition(" at line")[0]
        return answer.said == "400 body_malformed" and told == ON_PURPOSE[document.name]
    if document.name in NOT_EXACT:
        return answer.said == "denied" and answer.document["reason"] == "number_not_exact"
    return answer.said == "accepted"

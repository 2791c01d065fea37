"""What `read_body` and `parse_json` let through (SPEC S3.4, API.md 3.6), and that nothing else comes out of them than a refusal."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.json_body import BODY_BYTES_MAX, DEPTH_MAX, VALUES_MAX, parse_json, pointer_of, read_body, shown
from app.domain.errors import BodyMalformed, BodyTooLarge, BodyTooSlow, ClientDisconnected, UnsupportedMediaType

SHARED = Path(os.environ.get("PLACET_SHARED_DIR", Path(__file__).parents[3] / "shared"))
SUITE = SHARED / "data" / "jsontestsuite.jsonl.gz"


def refusal(body: bytes) -> tuple[str, str]:
    with pytest.raises(BodyMalformed) as caught:
        parse_json(body)
    return str(caught.value), caught.value.pointer


class Client:
    """Plays a client that sends messages, and counts how many were taken."""

    def __init__(self, messages: Iterable[dict[str, Any]]) -> None:
        self.messages = iter(messages)
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        self.taken += 1
        return next(self.messages)


def read(headers: list[tuple[bytes, bytes]], *chunks: bytes, limit: int = BODY_BYTES_MAX) -> bytes:
    messages = [{"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1} for index, chunk in enumerate(chunks)]
    return asyncio.run(read_body({"headers": headers}, Client(messages), limit))


JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 129.90}', {"a": Decimal("129.9")}),
        (b'{"a": [1.0, -0.0, -0, 6e1, 1E2, 100, 0.10]}', {"a": [1, 0, 0, 60, 100, 100, Decimal("0.1")]}),
        (b"9007199254740993", 9007199254740993),
        (b"0.1234567890123456789012345678901234567890", Decimal("0.123456789012345678901234567890123456789")),
        (b"1e300", 10**300),
        (b"1.7976931348623157e308", 17976931348623157 * 10**292),
        ('"\\ud83d\\ude00é"'.encode(), "😀é"),
        (b'{"a": "\\\\u0000"}', {"a": "\\u0000"}),
        (b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)),
        (b'{"a": "' + b"[{" * 100 + b'"}', {"a": "[{" * 100}),
        (b" \t\r\n null ", None),
    ],
)
def test_s3_4_exact_documents_are_read_by_value(body: bytes, value: object) -> None:
    read_value = parse_json(body)
    assert read_value == value
    assert repr(read_value) == repr(value)


@pytest.mark.parametrize(
    ("body", "detail", "pointer"),
    [
        (b"", "the body is empty; send one JSON document", ""),
        (b" \n", "the body is empty; send one JSON document", ""),
        (b"\xef\xbb\xbf{}", "the body starts with a byte order mark; leave it out", ""),
        (b'{"a":1,"a":2}', "duplicate key `a` at line 1 column 12", ""),
        (b'{"a":1,\n"\\u0061":2}', "duplicate key `a` at line 2 column 10", ""),
        (b'{"x":[{"a":{},"a":{}}]}', "duplicate key `a` at line 1 column 19", ""),
        (b'{"a\\n at line 7 column 7":1,"a\\n at line 7 column 7":2}', "duplicate key `a\\n at line 7 column 7` at line 1 column 54", ""),
        (b'{"%(k)b":1,"%(k)b":2}' % {b"k": b"k" * 200}, f"duplicate key `{'k' * 64}…` at line 1 column 410", ""),
        (b'{"a": NaN}', "expected a value (NaN and Infinity aren't JSON) at line 1 column 7", ""),
        (b'{"a": -Infinity}', "invalid number (no leading zeros; NaN and Infinity aren't JSON) at line 1 column 8", ""),
        (b'{"a": 1e400}', "a number is beyond 1e-324 to 1e308", "/a"),
        (b'{"a": {"b/c": [0, -1e400]}}', "a number is beyond 1e-324 to 1e308", "/a/b~1c/1"),
        (b"1e400", "a number is beyond 1e-324 to 1e308", ""),
        (b'{"a": 1.8e308}', "a number is beyond the range of binary64", "/a"),
        (b'{"a": 1e-400}', "a number is beyond 1e-324 to 1e308", "/a"),
        (b'{"a": 1e99999999999999999999}', "a number is out of range at line 1 column 29", ""),
        (b'{"a": ' + b"7" * 4000 + b"}", "a number is beyond 1e308", "/a"),
        (b'{"a": ' + b"7" * 5000 + b"}", "a number is out of range at line 1 column 4308", ""),
        (b'{"a": 0.' + b"7" * 81 + b"}", "a number has more than 80 significant digits", "/a"),
        (b'{"a": "x\\u0000y"}', "a string has a NUL character; remove it", "/a"),
        (b'{"a": [{"b\\u0000": 1}]}', "a key has a NUL character; remove it", "/a/0/b\\x00"),
        (b'"\\u0000"', "a string has a NUL character; remove it", ""),
        (b'{"a": "\x00"}', "a string has a control character that isn't escaped at line 1 column 8", ""),
        (b'{"a": "\\udc00x"}', "a string has a lone surrogate at line 1 column 13", ""),
        (b'{"a": "\\ud800"}', "a string has a lone surrogate or a cut escape at line 1 column 14", ""),
        (b'{"a": "\xed\xa0\x80"}', "a string isn't valid UTF-8 at line 1 column 8", ""),
        (b'{"a": 1} {}', "expected the end after one document at line 1 column 10", ""),
        (b"[1,]", "trailing comma at line 1 column 4", ""),
        (b"{1: 2}", "a key must be a string at line 1 column 2", ""),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64", "/0" * 64),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64", "/a" * 64),
        (b"[" * 9_000 + b"]" * 9_000, "nested deeper than 64 at line 1 column 202", ""),
    ],
)
def test_s3_4_ij_01_ij_03_ij_06_what_is_not_exact_is_refused_with_its_place(body: bytes, detail: str, pointer: str) -> None:
    assert refusal(body) == (detail, pointer)


def test_a_refusal_never_holds_a_value() -> None:
    for broken in (
        b'{"key": "sk-secret" x',
        b'{"key": "sk-secret\\ud800"}',
        b'{"key": "sk-secret\\u0000"}',
        b'["sk-secret", 1e999]',
        b'"sk-secret',
    ):
        detail, pointer = refusal(broken)
        assert "secret" not in detail + pointer


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**70), 10**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def exact(text: str) -> int | Decimal:
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else number


@given(json_values, st.booleans())
def test_s3_4_a_document_is_read_as_the_reference_reads_it(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text.encode()) == json.loads(text, parse_float=exact, parse_int=exact)


@given(json_values)
def test_s3_4_whatever_is_read_has_no_float_and_no_whole_decimal(value: object) -> None:
    waiting = [parse_json(json.dumps(value).encode())]
    while waiting:
        item = waiting.pop()
        assert type(item) in (type(None), bool, int, Decimal, str, list, dict)
        if isinstance(item, Decimal):
            assert item != item.to_integral_value()
            assert not f"{item:f}".endswith("0")
        waiting.extend(item if isinstance(item, list) else item.values() if isinstance(item, dict) else ())


hostile = st.binary(max_size=200) | st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u0000", b"\\ud800", b"u", b"1", b"-", b".", b"e", b"9" * 400,
         b"e99999999999999999999", b"NaN", b"null", b"tru", b"\xff", b"\xef\xbb\xbf", b"\x00", b'"a":', b'{"a":', b"[" * 70, b"0.0", b" ",
         b"\n"]
    ),
    max_size=30,
).map(b"".join)  # fmt: skip


@given(hostile)
def test_hostile_bytes_are_read_or_refused_and_nothing_else(body: bytes) -> None:
    said = ""
    try:
        parse_json(body)
    except BodyMalformed as error:
        said = str(error) + error.pointer
    assert said.isprintable()
    assert len(said) < 6_000


BEYOND_OUR_LIMITS = {
    "y_object_duplicated_key.json": "duplicate key",
    "y_object_duplicated_key_and_value.json": "duplicate key",
    "y_object_escaped_null_in_key.json": "NUL",
    "y_string_null_escape.json": "NUL",
}


@pytest.mark.skipif(not SUITE.exists(), reason="the shared data isn't beside the checkout (PLACET_SHARED_DIR)")
def test_s3_4_the_json_test_suite_is_read_as_it_says() -> None:
    with gzip.open(SUITE, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    assert len(cases) > 300
    wrong: list[tuple[str, object]] = []
    for case in cases:
        name, body = case_of(case)
        try:
            outcome: object = parse_json(body)
        except BodyMalformed as error:
            expected = BEYOND_OUR_LIMITS.get(name)
            if name.startswith("y_") and (expected is None or expected not in str(error)):
                wrong.append((name, str(error)))
        else:
            if name.startswith("n_") or name in BEYOND_OUR_LIMITS:
                wrong.append((name, outcome))
    assert wrong == []


TOO_MANY = f"the document has more than {VALUES_MAX} values; send fewer"


@pytest.mark.parametrize(("opening", "item", "closing"), [(b"[", b"1", b"]"), (b'{"a":[', b'"x"', b"]}"), (b'{"a":[0,[', b"null", b"]]}")])
def test_s3_4_a_document_has_at_most_so_many_values(opening: bytes, item: bytes, closing: bytes) -> None:
    around = opening.count(b"[") + opening.count(b"{") + opening.count(b",")
    allowed = [item] * (VALUES_MAX - around)
    parse_json(opening + b",".join(allowed) + closing)
    assert refusal(opening + b",".join([*allowed, item]) + closing) == (TOO_MANY, "")


def test_s3_4_keys_are_not_values_and_what_stands_in_strings_does_not_count() -> None:
    assert len(parse_json(b"{" + b",".join(b'"%d":1' % n for n in range(VALUES_MAX - 1)) + b"}")) == VALUES_MAX - 1  # type: ignore[arg-type]
    text = ',[{\\",' * 50_000
    assert parse_json(b'{"a":"' + text.encode() + b'","b":1}') == {"a": text.replace('\\"', '"'), "b": 1}
    assert parse_json(b'["\\\\", ' + b'"' + b"," * VALUES_MAX + b'"]') == ["\\", "," * VALUES_MAX]


def filled(item: bytes, opening: bytes = b'{"a":[', closing: bytes = b"]}", most: int = BODY_BYTES_MAX) -> bytes:
    count = min(most, (BODY_BYTES_MAX - len(opening) - len(closing)) // (len(item) + 1))
    return opening + b",".join([item] * count) + closing


@pytest.mark.parametrize(
    "body",
    [
        filled(b"12.00"),
        filled(b"0.0"),
        filled(b"1e5"),
        filled(b'""'),
        filled(b"{}"),
        filled(b"[" * 61 + b"]" * 61),
        filled(b'"\\\\"'),
        filled(b"0." + b"1" * 77, most=VALUES_MAX - 5),
        filled(b"{}", most=VALUES_MAX // 2 - 5),
        filled(b"[" * 61 + b"]" * 61, most=(VALUES_MAX - 5) // 62),
        filled(b'{"a":' * 60 + b"1.50" + b"}" * 60, most=(VALUES_MAX - 5) // 61),
        b'{"a":"' + b"\\u00e9" * 174_000 + b'"}',
        b'{"a":"' + b'\\"' * 524_000 + b'"}',
        b'{"a":"' + b'\\"' * 524_000,
        b'{"a":"' + b"x" * 1_048_000 + b'"}',
        b'{"a":' + b"1" * 1_048_000 + b"}",
        b'{"a":0.' + b"1" * 1_048_000 + b"}",
        b"[" * BODY_BYTES_MAX,
    ],
    ids=lambda body: f"{body[:14]!r}",
)
def test_no_body_within_the_limit_is_slow_to_read(body: bytes) -> None:
    """The slowest takes 50 ms of CPU on a quiet machine; without the limit on values the first seven take 200 to 900."""
    assert len(body) <= BODY_BYTES_MAX
    started = process_time()
    with suppress(BodyMalformed):
        parse_json(body)
    assert process_time() - started < 1.5  # wide, for busy machines: what it catches is reading that grows faster than the body


def case_of(case: dict[str, Any]) -> tuple[str, bytes]:
    return case["name"], base64.b64decode(case["b64"])


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b"application/json;charset=UTF-8",
        b'Application/JSON ; charset="utf-8"',
        b"application/json; profile=x",
    ],
)
def test_s3_4_json_is_taken(value: bytes) -> None:
    assert read([(b"content-type", value)], b"{}") == b"{}"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/jsonp")],
        [(b"content-type", b"application/problem+json")],
        [(b"content-type", b"application/json; charset=latin-1")],
        [(b"content-type", b"application/json; charset=utf-16")],
        [JSON, JSON],
        [JSON, (b"content-encoding", b"gzip")],
        [JSON, (b"content-encoding", b"identity, gzip")],
    ],
)
def test_s3_4_other_media_types_are_refused_unread(headers: list[tuple[bytes, bytes]]) -> None:
    client = Client([])
    with pytest.raises(UnsupportedMediaType):
        asyncio.run(read_body({"headers": headers}, client))
    assert client.taken == 0


def test_identity_is_no_encoding() -> None:
    assert read([JSON, (b"content-encoding", b"identity")], b"1") == b"1"


def test_ij_13_a_declared_length_over_the_limit_is_refused_unread() -> None:
    client = Client([])
    with pytest.raises(BodyTooLarge) as caught:
        asyncio.run(read_body({"headers": [JSON, (b"content-length", b"1048577")]}, client))
    assert client.taken == 0
    assert str(caught.value) == "the body is over 1048576 bytes; send a smaller one"


def test_ij_13_an_endless_chunked_body_is_left_at_the_limit() -> None:
    def endless() -> Iterable[dict[str, Any]]:
        while True:
            yield {"type": "http.request", "body": b"x" * 65_536, "more_body": True}

    client = Client(endless())
    with pytest.raises(BodyTooLarge):
        asyncio.run(read_body({"headers": [JSON]}, client))
    assert client.taken == 17


def test_ij_13_a_false_declared_length_is_not_believed() -> None:
    for length in (b"2", b"-1", b"x", b"9" * 30):
        with pytest.raises(BodyTooLarge):
            read([JSON, (b"content-length", length)], b"1234", b"5678", limit=7)


@pytest.mark.parametrize("chunks", [(b"12345678",), (b"1234", b"5678"), (b"", b"12345678", b"")])
def test_the_limit_itself_is_let_through(chunks: tuple[bytes, ...]) -> None:
    assert read([JSON, (b"content-length", b"8")], *chunks, limit=8) == b"12345678"
    with pytest.raises(BodyTooLarge):
        read([JSON], *chunks, limit=7)


def test_a_client_that_leaves_is_no_body() -> None:
    for before in ([], [{"type": "http.request", "body": b"{", "more_body": True}]):
        with pytest.raises(ClientDisconnected):
            asyncio.run(read_body({"headers": [JSON]}, Client([*before, {"type": "http.disconnect"}])))


def test_pointers_escape_and_bound_what_was_sent() -> None:
    assert pointer_of(("a/b", "c~d", 3, "")) == "/a~1b/c~0d/3/"
    assert shown("x\u202ey\n") == "x\\u202ey\\n"
    assert shown("k" * 65) == "k" * 64 + "…"
    # looked at before it is cut: the cut would hide what it is
    assert shown("x" * 40 + " https://user:" + "p" * 40 + "@host") == "x" * 40 + " https://[redacted]@host"
    assert math.isclose(len(pointer_of(("k" * 500,))), 66)


async def test_a_body_that_trickles_is_given_up() -> None:
    """S12.2: nobody holds a connection open with half a body."""

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b" ", "more_body": True}

    scope = {"headers": [(b"content-type", b"application/json")]}
    with pytest.raises(BodyTooSlow):
        await read_body(scope, receive, within_s=0.2)

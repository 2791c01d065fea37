"""Read a request's body: bounded bytes, then exactly one JSON document (SPEC S3.4, RFC 8259).

What comes out holds only null, booleans, strings without NUL or lone surrogates, whole numbers as int, others as Decimal, and lists and
objects no deeper than DEPTH_MAX, VALUES_MAX in all. Whatever is refused is refused by naming the place; a value from the body never goes
into a message.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from decimal import Decimal
from typing import Any

import jiter
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from app.domain.canonical import CanonicalError, normalise_number
from app.domain.credentials import without_credentials
from app.domain.errors import BodyMalformed, BodyTooLarge, BodyTooSlow, ClientDisconnected, PlacetError, UnsupportedMediaType

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_BYTES_MAX = 1_048_576
BODY_WITHIN_S = 10.0
DEPTH_MAX = 64
VALUES_MAX = 10_000
"""Values of one document. Measured: 1 MiB of short numbers or empty objects takes half a second to read, 10,000 of the worst 50 ms."""
SHOWN_MAX = 64
"""Characters of a key that an error shows."""

_SMALL = 10**18
_SETTLED_MAX = 20
_BINARY64_MAX = int(sys.float_info.max)
_JSON = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")
_PLACE = re.compile(r" at line (\d+) column (\d+)\Z")
# a string up to its end, or to the body's where it has none: possessive, so that no body makes it go back
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_DUPLICATE = 'Detected duplicate key "'
_MESSAGES = {
    "control character (\\u0000-\\u001F) found while parsing a string": "a string has a control character that isn't escaped",
    "EOF while parsing a list": "the document ends inside a list",
    "EOF while parsing a string": "the document ends inside a string",
    "EOF while parsing a value": "the document ends where a value was expected",
    "EOF while parsing an object": "the document ends inside an object",
    "expected `,` or `]`": "expected `,` or `]`",
    "expected `,` or `}`": "expected `,` or `}`",
    "expected `:`": "expected `:`",
    "expected ident": "expected `true`, `false` or `null`",
    "expected value": "expected a value (NaN and Infinity aren't JSON)",
    "invalid escape": "a string has an invalid escape",
    "invalid number": "invalid number (no leading zeros; NaN and Infinity aren't JSON)",
    "invalid unicode code point": "a string isn't valid UTF-8",
    "key must be a string": "a key must be a string",
    "lone leading surrogate in hex escape": "a string has a lone surrogate",
    "number out of range": "a number is out of range",
    "recursion limit exceeded": f"nested deeper than {DEPTH_MAX}",
    "trailing characters": "expected the end after one document",
    "trailing comma": "trailing comma",
    "unexpected end of hex escape": "a string has a lone surrogate or a cut escape",
}


async def read_body(scope: Scope, receive: Receive, limit: int = BODY_BYTES_MAX, within_s: float = BODY_WITHIN_S) -> bytes:
    """Read the body of an ASGI request, at most `limit` bytes of it and no longer than `within_s`.

    Raises:
        BodyTooSlow: it wasn't complete in time.
        UnsupportedMediaType: another type than JSON in UTF-8, or compressed; nothing was read.
        BodyTooLarge: more than `limit` bytes are declared (nothing was read) or came (nothing past the chunk that went over was read).
        ClientDisconnected: the client left first.
    """
    declared = _check_headers(scope["headers"])
    if declared > limit:
        raise BodyTooLarge(limit)
    try:
        async with asyncio.timeout(within_s):
            return await _receive_body(receive, limit)
    except TimeoutError:
        raise BodyTooSlow(within_s) from None


async def _receive_body(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):  # nearly every call: one message, no copy
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(limit)
        return body
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("the client left before its body was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()


def parse_json(body: bytes) -> object:
    """Read one exact JSON document; numbers come out by value (1.0 is int 1, -0.0 is int 0, 129.90 is Decimal 129.9).

    Raises:
        BodyMalformed: it isn't one exact document within the limits; `pointer` names the place where it is known, else the message says
            line and column.
    """
    brackets = body.count(b"{") + body.count(b"[")
    if brackets + body.count(b",") >= VALUES_MAX:
        _check_values(body)
    try:
        document = jiter.from_json(body, float_mode="decimal", catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="keys")
    except ValueError as error:
        raise _syntax_error(body, str(error)) from None
    kind = type(document)
    if kind is Decimal or kind is int:
        document = _number(document, ())
    elif kind is dict or kind is list:
        # a document with no more brackets than the limit can't be too deep, and one without this escape has no NUL
        if brackets > DEPTH_MAX or b"\\u0000" in body:
            _check_depth_and_text(document)
        _settle_numbers(document, ())
    elif kind is str and "\0" in document:
        raise BodyMalformed("a string has a NUL character; remove it")
    return document


def shown(key: str) -> str:
    """Give a key for an error message: at most SHOWN_MAX characters, what can't be seen escaped, without what is a credential."""
    key = without_credentials(key)
    if len(key) > SHOWN_MAX:
        key = key[:SHOWN_MAX] + "…"
    if key.isprintable():
        return key
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii") for char in key)


def pointer_of(path: tuple[str | int, ...]) -> str:
    """Give the JSON Pointer (RFC 6901) of a path, its keys as `shown` gives them."""
    return "".join(f"/{part}" if isinstance(part, int) else "/" + shown(part).replace("~", "~0").replace("/", "~1") for part in path)


class JsonRoute(APIRoute):
    """A route of the framework whose body is read as exactly as on the check routes (`APIRouter(route_class=JsonRoute)`).

    The framework's own reading takes duplicate keys, NaN and lone surrogates and has no depth limit. A body that is refused is told only to
    whoever may use the route (`require_read`), so that the refusal is recorded as that key's, as on the check routes.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Read the body first, where the route has one."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        assert self.body_field.field_info.is_required(), "or a body that is refused would be taken for one that isn't there"

        async def read_first(request: Request) -> Response:
            try:
                body = await read_body(request.scope, request.receive)
                read = _ReadRequest(request, body, parse_json(body))
            except (BodyMalformed, BodyTooLarge, UnsupportedMediaType) as refused:
                read = _ReadRequest(request, b"", None, refused)
            try:
                return await handler(read)
            except RequestValidationError:
                require_read(read)
                raise

        return read_first


class _ReadRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, body: bytes, document: object, refused: PlacetError | None = None) -> None:
        super().__init__(request.scope, request.receive)
        self._read = (body, document)
        self.refused = refused

    async def body(self) -> bytes:
        return self._read[0]

    async def json(self) -> Any:
        return self._read[1]


def require_read(request: Request) -> None:
    """Refuse a request whose body was refused.

    Raises:
        BodyMalformed, BodyTooLarge, UnsupportedMediaType: as `read_body` and `parse_json` said.
    """
    if isinstance(request, _ReadRequest) and request.refused is not None:
        raise request.refused


async def document_of_request(request: Request) -> object:
    """Give the document that a JsonRoute has read, None where the route takes none."""
    return await request.json() if isinstance(request, _ReadRequest) else None


def _check_headers(headers: list[tuple[bytes, bytes]]) -> int:
    """Check what the headers say about the body and give its declared length, 0 where they don't say."""
    media_type: bytes | None = None
    declared = 0
    for name, value in headers:
        if name == b"content-type":
            if media_type is not None:
                raise UnsupportedMediaType("two content types; send one, `application/json`")
            media_type = value
        elif name == b"content-length":
            declared = int(value) if value.isdigit() and len(value) < 19 else 0  # what the server let through; the bytes are counted too
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise UnsupportedMediaType("the body is encoded; send it without Content-Encoding")
    if media_type not in _JSON and not _is_json(media_type or b""):
        raise UnsupportedMediaType("send `Content-Type: application/json` in UTF-8")
    return declared


def _is_json(media_type: bytes) -> bool:
    essence, *parameters = media_type.lower().split(b";")
    if essence.strip() != b"application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in (b"utf-8", b"utf8"):
            return False
    return True


def _syntax_error(body: bytes, message: str) -> BodyMalformed:
    """Rebuild the parser's message from our own words: its text holds keys of the body."""
    place = _PLACE.search(message)
    where = f" at line {place[1]} column {place[2]}" if place else ""
    text = message[: place.start()] if place else message
    if body.startswith(b"\xef\xbb\xbf"):
        return BodyMalformed("the body starts with a byte order mark; leave it out")
    if text.startswith(_DUPLICATE):
        return BodyMalformed(f"duplicate key `{shown(text[len(_DUPLICATE) : -1])}`{where}")
    if text.startswith("Internal error"):  # only an exponent that no Decimal can hold leads here
        return BodyMalformed(f"a number is out of range{where}")
    if not body.strip(b" \t\r\n"):
        return BodyMalformed("the body is empty; send one JSON document")
    return BodyMalformed(f"{_MESSAGES.get(text, 'not valid JSON')}{where}")


def _check_values(body: bytes) -> None:
    """Count values before any is made: each follows a comma or an opening bracket outside strings (an empty list counts as one more).

    Raises:
        BodyMalformed: there are more than VALUES_MAX.
    """
    rest, strings = _STRING.subn(b"", body, 2 * VALUES_MAX + 1)  # no more strings than keys and values
    if strings > 2 * VALUES_MAX or rest.count(b",") + rest.count(b"[") + rest.count(b"{") >= VALUES_MAX:
        raise BodyMalformed(f"the document has more than {VALUES_MAX} values; send fewer")


def _number(value: int | Decimal, path: tuple[str | int, ...]) -> int | Decimal:
    try:
        number = normalise_number(value)
    except CanonicalError as error:
        raise BodyMalformed(str(error), pointer_of(path)) from None
    if not -_BINARY64_MAX <= number <= _BINARY64_MAX:
        raise BodyMalformed("a number is beyond the range of binary64", pointer_of(path))
    return number


def _settle_numbers(node: Any, path: tuple[str | int, ...]) -> None:
    """Replace each number by its one form, in place. The hot path: `path` grows only on the way down."""
    for key, item in node.items() if type(node) is dict else enumerate(node):
        kind = type(item)
        if kind is str:
            continue
        if kind is dict or kind is list:
            _settle_numbers(item, (*path, key))
        elif kind is Decimal:
            text = str(item)
            if len(text) < _SETTLED_MAX and "." in text and text[-1] != "0" and "E" not in text:
                continue  # 129.9 is its own form
            node[key] = _number(item, (*path, key))  # an existing key: the size doesn't change under the loop
        elif kind is int and not -_SMALL < item < _SMALL:
            node[key] = _number(item, (*path, key))


def _check_depth_and_text(document: Any) -> None:
    """Look at every key and string, and at the depth, without recursion."""
    waiting: list[tuple[Any, tuple[str | int, ...]]] = [(document, ())]
    while waiting:
        node, path = waiting.pop()
        if len(path) >= DEPTH_MAX:
            raise BodyMalformed(f"nested deeper than {DEPTH_MAX}", pointer_of(path))
        for key, item in node.items() if type(node) is dict else enumerate(node):
            if type(key) is str and "\0" in key:
                raise BodyMalformed("a key has a NUL character; remove it", pointer_of((*path, key)))
            kind = type(item)
            if kind is dict or kind is list:
                waiting.append((item, (*path, key)))
            elif kind is str and "\0" in item:
                raise BodyMalformed("a string has a NUL character; remove it", pointer_of((*path, key)))

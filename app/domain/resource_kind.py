"""How the text of each kind of resource is brought to its one form and cut into segments, before it is read (SPEC 5.1, S12.2).

What two parties could read differently (a dot segment, an encoded separator, another Unicode form, a user name in a URL) is refused and
never repaired, because the tool gets the argument as it was sent. Only what the kind itself calls equal is made equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal

from app.domain.echo import echo

RESOURCE_LENGTH_MAX = 512
SEGMENTS_MAX = 32
DOTS = frozenset({"", ".", ".."})
"""No segment is one of these."""

Reading = Literal["concrete", "pattern", "glob"]

_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters and lone surrogates
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_HOST = re.compile(r"(?!.{254})[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_URL_TEXT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATORS = frozenset({*range(0x20), 0x25, 0x2F, 0x5C, 0x7F})
_PORTS: Mapping[str, str] = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_PORT_MAX = 65_535


class ScopeError(ValueError):
    """A scope or resource can't be read. `pointer` is a JSON Pointer from the root of what was read; the message says what to do."""

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.detail, self.pointer = detail, pointer

    def below(self, prefix: str) -> ScopeError:
        """Give the same error, seen from further up."""
        return ScopeError(self.detail, prefix + self.pointer)


@dataclass(frozen=True, slots=True)
class Kind:
    """`parts` cuts the text behind the colon. `forbids_any_case`: a forbid counts whatever the case, as some file systems ignore it."""

    parts: Callable[[str, Reading], list[str]]
    forbids_any_case: bool = False
    question_is_text: bool = False  # `?` in a free glob is itself and not any character


def split(text: object, reading: Reading) -> tuple[str, list[str]]:
    """Give the kind and the segments of a resource or pattern, in the one form that the kind has.

    Raises:
        ScopeError: the text isn't a resource, or isn't in a form that means one thing only.
    """
    if not isinstance(text, str) or len(text) > RESOURCE_LENGTH_MAX:
        raise ScopeError(f"a resource is a string of at most {RESOURCE_LENGTH_MAX} characters, such as `order:A-1001`")
    if _UNFIT.search(text):
        raise ScopeError("a resource has a control character or a lone surrogate; remove it")
    if not is_settled(text):
        raise ScopeError(f"{echo(text)} isn't in the Unicode form NFC; normalise it")
    kind, colon, path = text.partition(":")
    if not colon or not _KIND.fullmatch(kind):
        raise ScopeError(f"{echo(text)} isn't a resource; write `kind:path`, such as `order:A-1001`")
    parts = kind_of(kind).parts(path, reading)
    if len(parts) > SEGMENTS_MAX:
        raise ScopeError(f"a resource has more than {SEGMENTS_MAX} segments")
    for part in parts:
        if part in DOTS:
            raise _dotted(text)
    return kind, parts


def kind_of(kind: str) -> Kind:
    return KINDS.get(kind, _EXACT)


def is_settled(text: str) -> bool:
    """Say whether a text is in the one Unicode form that resources have, NFC."""
    return text.isascii() or unicodedata.is_normalized("NFC", text)


def _dotted(text: str) -> ScopeError:
    return ScopeError(f"{echo(text)} has a segment that is empty, `.` or `..`; write the path that is meant")


def _plain_parts(path: str, reading: Reading) -> list[str]:
    return path.split("/")


def _file_parts(path: str, reading: Reading) -> list[str]:
    """Refuse what some file system reads as another path: separators, drives and streams, encodings, ends that it drops."""
    if "\\" in path or ":" in path:
        raise ScopeError(f"{echo('file:' + path)} has a `\\` or a second `:`; write a relative path with `/`")
    if _ENCODED.search(path):
        raise ScopeError(f"{echo('file:' + path)} is percent-encoded; write the path decoded")
    parts = path.split("/")
    if any(part[-1:] in (".", " ") and part not in DOTS for part in parts):
        raise ScopeError(f"{echo('file:' + path)} has a segment that ends with a dot or a space; some file systems drop it")
    return parts


def _url_parts(path: str, reading: Reading) -> list[str]:
    """Give `scheme://host:port` as the first segment, then those of the path; a query stays with the last one, its `/` encoded."""
    if reading != "concrete" and path in ("*", "**"):
        return [path]
    if reading == "glob" and path.startswith("**/"):
        return ["**", *(_url_text(part, "/") for part in path[3:].split("/"))]
    found = _URL.fullmatch(path)
    if found is None or "\\" in path:
        raise ScopeError(f"{echo('url:' + path)} isn't an absolute URL without a fragment; write `url:https://host/path`")
    scheme, rest, query = found[1].lower(), found[3], found[4]
    parts = [f"{scheme}://{_authority(scheme, found[2], reading)}"]
    if rest not in ("", "/"):
        for part in rest.split("/")[1:]:
            if part in DOTS:
                raise _dotted("url:" + path)
            parts.append(_url_text(part, "/"))
    if query is not None:
        last = parts.pop() if len(parts) > 1 else ""
        parts.append(f"{last}?{_url_text(query, '').replace('/', '%2F')}")
    return parts


def _authority(scheme: str, text: str, reading: Reading) -> str:
    if "@" in text:
        raise ScopeError("a URL has a user name or password before its host; leave it out")
    if not text.isascii():
        raise ScopeError("the host of a URL isn't ASCII; write its `xn--` form (IDNA)")
    found = _AUTHORITY.fullmatch(text)
    if found is None or int(found[2] or 1) > _PORT_MAX:
        raise ScopeError("the host or port of a URL can't be read; write `host` or `host:port`")
    port = "" if found[2] is None or _PORTS.get(scheme) == found[2] else f":{found[2]}"
    return _host(found[1].lower(), reading) + port


def _host(host: str, reading: Reading) -> str:
    if host.startswith("["):
        try:
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        except AddressValueError:
            raise ScopeError("the host of a URL isn't an IPv6 address") from None
    if reading != "concrete" and host.startswith("*"):
        if host != "*" and not (host.startswith("*.") and _HOST.fullmatch(host[2:])):
            raise ScopeError("the host of a URL pattern is a whole host, `*` or `*.example.com`")
        return host
    if not _HOST.fullmatch(host):
        raise ScopeError("the host of a URL isn't a host name; write letters, digits, `-` and dots, without a dot at the end")
    if _NUMERIC.fullmatch(host):
        try:
            IPv4Address(host)
        except AddressValueError:
            raise ScopeError("the host of a URL is a number; write an IPv4 address as four decimal numbers") from None
    return host


def _url_text(text: str, separators: str) -> str:
    if not _URL_TEXT.fullmatch(text):
        raise ScopeError("a URL has a character that isn't allowed in one; percent-encode it (RFC 3986)")
    for escape in _ENCODED.findall(text):
        code = int(escape[1:], 16)
        if code in _UNRESERVED or (separators and code in _SEPARATORS):
            raise ScopeError("a URL has a percent-encoded letter, digit, dot, separator or control character; write it plainly")
    return _ENCODED.sub(lambda found: found[0].upper(), text)


_EXACT = Kind(_plain_parts)
KINDS: Mapping[str, Kind] = {
    # relative, decoded, `/` only; exact in permits, in any case in forbids
    "file": Kind(_file_parts, forbids_any_case=True),
    # scheme and host in lower case, no default port, escapes in upper case; no user, fragment, encoded separator or trailing `/`
    "url": Kind(_url_parts, question_is_text=True),
}
"""The kinds with rules of their own. All others (order, tool, table, model, capability, …) are exact, case included; all are NFC."""

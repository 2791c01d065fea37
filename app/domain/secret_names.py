"""Which names say that what stands under them is a secret: `Authorization`, `X-Api-Key`, `pass word`, `token` with a character unseen.

A name is read as the words that it is made of, without accents and without what can't be seen. Names that count, measure or date a secret
(`token_count`, `cookie_consent`, `password_changed_at`) are plain. `kind_of` is cached for short names only: a caller chooses them.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum
from functools import lru_cache

NAME_CHARS_CACHED = 64


class NameKind(IntEnum):
    """What stands under a name; from SECRET_TEXT on, text and what holds text is a secret, and under SECRET a number too."""

    PLAIN = 0
    IDENTIFIER = 1
    SECRET_TEXT = 2
    SECRET = 3


# wherever they begin: no two harmless words that meet make one of these
_STRONG = re.compile(
    r"password|passwd|passphrase|passcode|secret(?!ar|ion)|credential|connectionstring|seedphrase|mnemonicphrase|recoverycode|onetimecode|"
    r"(?:api|private|access|session|signing|encryption|master|ssh|auth|account|shared|hmac|deploy|bootstrap|client|service)keys?(?![a-z])|"
    r"(?:api|private|secret|access)key|密码|密碼|密钥|密鑰|口令|令牌|私钥|私鑰|凭证|憑證|凭据|验证码|驗證碼"
)
_STRONG_TEXT = re.compile(r"authorization|authorisation|cookie|basicauth|proxyauth")
_WORDS = frozenset({"pwd", "cvv", "cvc", "otp", "totp", "jwt", "dsn", "psk", "creds"})
_NAMES = frozenset({"pass", "auth", "pin", "bearer"})
_MEASURES = frozenset({"max", "min", "num", "number", "total", "remaining", "count", "used", "prompt", "completion", "input", "output"})
_ABOUT = frozenset(
    {
        "count", "counts", "limit", "limits", "max", "min", "type", "kind", "consent", "policy", "length", "size", "budget",
        "usage", "used", "expires", "expiry", "expiration", "ttl", "at", "date", "status", "required", "enabled", "banner", "preferences",
        "strength",
        "attempts", "age", "format", "version", "amount", "currency", "name",
    }
)  # fmt: skip
"""Last words of a name that say something about a secret."""
_ABOUT_TOKENS = re.compile(r"tokens?(?:count|limit|usage|budget|type|length|size|expiry|ttl|used)\Z")
_IDENTIFYING = frozenset(
    {
        "id", "ids", "uuid", "guid", "digest", "hash", "checksum", "etag", "fingerprint", "cursor", "ref",
        "reference", "path", "paths", "file", "files", "filename", "folder", "dir", "url", "urls", "uri", "resource",
    }
)  # fmt: skip
_IDENTIFIER = re.compile(
    r"(?:order|customer|user|session|file|item|message|invoice|payment|refund|task|call|request|transaction|document|object)ids?\Z|(?:sha|md)\d{1,3}\Z"
)

_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W_A-Za-z\d]+")
_CAMEL = re.compile(r"[a-z]*(?:[A-Z][a-z]*)*\Z")
_SEPARATED = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"token(?!i[sz])")
# letters and symbols that can't be seen, though their categories don't say so: fillers of Hangul, and what only selects or joins
_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0\u17b4\u17b5")


def kind_of(name: str) -> NameKind:
    """Say what stands under a name."""
    return _kind_of_short(name) if len(name) <= NAME_CHARS_CACHED else _kind(name)


def _kind(name: str) -> NameKind:
    clean = _clean(name)
    words = [word.casefold() for word in _PIECE.findall(clean)]
    squashed = "".join(words)
    if not words:
        return NameKind.PLAIN
    strong = _STRONG.search(squashed) is not None or not _WORDS.isdisjoint(words) or squashed in _NAMES or squashed in _WORDS
    token = _names_token(clean, words)
    if not (strong or token or _STRONG_TEXT.search(squashed)):
        return NameKind.IDENTIFIER if words[-1] in _IDENTIFYING or _IDENTIFIER.search(squashed) else NameKind.PLAIN
    if words[-1] in _ABOUT or _ABOUT_TOKENS.search(squashed):
        return NameKind.PLAIN
    if words[-1] == "id" and "secret" not in squashed and "session" not in squashed:
        return NameKind.IDENTIFIER  # authorization_id, access_key_id, token_id
    if strong:
        return NameKind.SECRET
    counts = squashed.endswith("tokens") or words[0] in _MEASURES
    return NameKind.SECRET if token and not counts else NameKind.SECRET_TEXT


_kind_of_short = lru_cache(maxsize=4_096)(_kind)


def _clean(name: str) -> str:
    """Give a name in its plain letters: compatibility forms, accents and what can't be seen are gone."""
    if name.isascii() and name.isprintable():
        return name
    plain = unicodedata.normalize("NFKD", name)
    return "".join(c for c in plain if c not in _UNSEEN and unicodedata.category(c) not in ("Mn", "Me", "Cf", "Cc", "Co", "Cn"))


def _names_token(clean: str, words: list[str]) -> bool:
    """Say whether a name has `token` in one of its words, or in words that make it up: `to-ken` is one, `ship_to_kentucky` isn't."""
    if any(_TOKEN.search(word) for word in words):
        return True
    if _CAMEL.match(clean) is None and any(_TOKEN.search(word.casefold()) for word in _SEPARATED.findall(clean)):
        return True
    for start in range(len(words)):
        joined = ""
        for word in words[start : start + 6]:
            joined += word
            if joined in ("token", "tokens"):
                return True
    return False

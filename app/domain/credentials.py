"""Which texts have the form of a credential: keys of known services, JWTs, PEM, `Bearer …`, a password in a URL or behind its name.

Every form begins with a text that is searched for first, so that the many texts without any are done after a few searches of the C library.
No form looks further than a bounded distance before it decides, so no text makes it go back and forth: a megabyte takes milliseconds.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Callable, Iterator

from app.domain.secret_names import NameKind, kind_of

REDACTED = "[redacted]"
FORM_CHARS_MIN = 11
"""No form is shorter."""
DENSE_CHARS_MIN = 32
DENSE_CHARS_MAX = 512
"""A longer run of letters and digits is somebody's file."""

Spans = Iterator[tuple[int, int]]

_END = r"[^\s\"'`,;)\]}<>]"
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_RUN = re.compile(rf"[A-Za-z0-9+/_=-]{{{DENSE_CHARS_MIN},}}")
_TURN = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
_DIGIT_TURN = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_HARMLESS = frozenset({"true", "false", "null", "none", "required", "missing", "invalid", "expired", "redacted", "removed", "unknown"})


def looks_like_credential(text: str) -> bool:
    """Say whether a credential of a known form is in a text."""
    if len(text) < FORM_CHARS_MIN:
        return False
    return any(True for _ in _spans(_plain(text)))


def is_dense(text: str) -> bool:
    """Say whether a text has a run of letters of both cases and digits as only a generator makes them: a key of a form that isn't known."""
    return len(text) >= DENSE_CHARS_MIN and any(True for _ in _dense(text))


def without_credentials(text: str, *, dense: bool = True) -> str:
    """Give a sentence or a name with `[redacted]` in the place of each credential."""
    if len(text) < FORM_CHARS_MIN:
        return text
    plain = _plain(text)
    found = sorted([*_spans(plain), *(_dense(plain) if dense else ())])
    if not found:
        return text
    if len(plain) != len(text):
        return REDACTED  # the places are those of another text
    pieces, end = [], 0
    for start, stop in found:
        if start >= end:
            pieces += [text[end:start], REDACTED]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


def _plain(text: str) -> str:
    """Give a text in ASCII, one character for one, without what can't be seen."""
    if text.isascii():
        return text
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).encode("ascii", "replace").decode()


def _spans(text: str) -> Spans:
    low = text.lower()
    for sign, forms in _FORMS:
        if sign in low:
            for stems, find in forms:
                for stem in stems:
                    if stem in low:
                        yield from find(text, low)
                        break


def _dense(text: str) -> Spans:
    for found in _RUN.finditer(text):
        run = found[0]
        if len(run) > DENSE_CHARS_MAX or run.islower() or run.isupper():
            continue
        turns = len(_TURN.findall(run))
        if turns >= 0.5 * len(run) or (turns >= 0.3 * len(run) and len(_DIGIT_TURN.findall(run)) >= 2):
            yield found.span()


def _form(pattern: str, *, cased: bool = False) -> Callable[[str, str], Spans]:
    compiled = re.compile(pattern, re.DOTALL)

    def find(text: str, low: str) -> Spans:
        for found in compiled.finditer(text if cased else low):
            yield found.span(found.lastindex or 0)

    return find


_BEARER = re.compile(r"(?<![a-z0-9])bearer\s{1,8}([a-z0-9._~+/=-]{6,})")
_BASIC = re.compile(r"(?<![a-z0-9])basic\s{1,8}([a-z0-9+/]{6,}={0,2})")
_ASSIGNED = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|token|api[-_ ]?key|private[-_ ]?key|access[-_ ]?key|credential)[\w-]{0,20}"
    r"(?P<mark>\\{0,2}[\"']?\s{0,4}[=:]\s{0,4}\\{0,2}[\"']?)(?P<value>[^\s\"'&;,<>{}\[\]\\]{4,})"
)
_HEADER = re.compile(
    r"(?:authorization\\{0,2}[\"']?\s{0,4}[:=]\s{0,4}\\{0,2}[\"']?((?:bearer|basic|digest|token|apikey|negotiate|aws4-hmac-sha256)\s[^\r\n\"]{3,}|"
    r"(?=[^\s\d]{0,64}\d)[^\s\"']{8,})|cookie\\{0,2}[\"']?\s{0,4}[:=]\s{0,4}\\{0,2}[\"']?([^\s=;]{1,64}=[^\r\n\"]+))"
)


def _bearer(text: str, low: str) -> Spans:
    """A word after `bearer` is a credential if it isn't one of a sentence."""
    whole = low.strip()
    for found in _BEARER.finditer(low):
        word = text[found.start(1) : found.end(1)].rstrip(".")
        if len(word) >= 16 or not (word.isalpha() and word.islower()) or len(found[0]) == len(whole):
            yield found.span(1)


def _basic(text: str, low: str) -> Spans:
    """`Basic` and base64 of `user:password`."""
    for found in _BASIC.finditer(low):
        word = text[found.start(1) : found.end(1)].rstrip("=")[:1_024]
        try:
            decoded = base64.b64decode(word + "=" * (-len(word) % 4))
        except binascii.Error:
            continue
        if b":" in decoded:
            yield found.span(1)


def _assigned(text: str, low: str) -> Spans:
    """`password=…`, `"token": "…"`: behind a secret's name and a sign, what isn't a word of a sentence."""
    for found in _ASSIGNED.finditer(low):
        start = found.start()
        while start > 0 and found.start() - start < 40 and (low[start - 1].isalnum() or low[start - 1] in "_-"):
            start -= 1
        kind = kind_of(text[start : found.start("mark")])
        value = found["value"]
        if kind < NameKind.SECRET_TEXT or value.rstrip(".") in _HARMLESS:
            continue
        if kind is NameKind.SECRET_TEXT and value.replace(".", "", 1).isdigit():
            continue
        if "=" in found["mark"] or '"' in found["mark"] or "'" in found["mark"] or not value.rstrip(".!?").isalpha():
            yield found.span("value")


def _header(_text: str, low: str) -> Spans:
    for found in _HEADER.finditer(low):
        yield found.span(found.lastindex or 0)


_service_key = _form(
    rf"(?<![a-z0-9])[srp]k[-_](?:(?:live|test|prod|proj|ant|admin|svcacct|or)[-_]{_END}{{3,}}|[a-z0-9]{{12,}}{_END}*|"
    rf"(?=[a-z0-9_-]{{16}})(?=[a-z_-]{{0,40}}\d){_END}+)"
)

_FORMS: tuple[tuple[str, tuple[tuple[tuple[str, ...], Callable[[str, str], Spans]], ...]], ...] = (
    (
        "",
        (
            (("akia", "asia"), _form(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}", cased=True)),
            (("aiza",), _form(r"AIza[0-9A-Za-z_-]{30,}", cased=True)),
            (("bearer",), _bearer),
            (("basic",), _basic),
        ),
    ),
    (
        "_",
        (
            (
                ("sk_", "rk_", "pk_"),
                _service_key,
            ),
            (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _form(r"(?<![a-z0-9])gh[pousr]_[a-z0-9]{16,}")),
            (("github_pat_",), _form(rf"github_pat_{_END}{{10,}}")),
            (("npm_",), _form(r"(?<![a-z0-9])npm_[a-z0-9]{30,}")),
            (("hf_",), _form(r"(?<![a-z0-9])hf_[a-z0-9]{20,}")),
            (("shpat_", "shpca_", "shppa_", "shpss_"), _form(r"shp(?:at|ca|pa|ss)_[a-f0-9]{16,}")),
            (("dop_v1_",), _form(r"dop_v1_[a-f0-9]{20,}")),
            (("whsec_",), _form(rf"whsec_{_END}{{16,}}")),
            (("placet_",), _form(r"(?<![a-z0-9])placet_[a-z0-9-]{1,64}_[a-z0-9_-]{32,}")),
        ),
    ),
    (
        "-",
        (
            (
                ("sk-", "rk-", "pk-"),
                _service_key,
            ),
            (("xox",), _form(rf"(?<![a-z0-9])xox[abposre]-{_END}{{6,}}")),
            (("glpat-",), _form(rf"glpat-{_END}{{8,}}")),
            (("age-secret-key-",), _form(rf"age-secret-key-{_END}{{8,}}")),
            (("-----begin",), _form(r"-----begin.*?(?:-----end[^-]*-----|\Z)")),
        ),
    ),
    (
        ".",
        (
            (("ya29.",), _form(rf"ya29\.{_END}{{20,}}")),
            (("sg.",), _form(r"(?<![A-Za-z0-9])SG\.[\w-]{16,}\.[\w-]{16,}", cased=True)),
            (("hooks.slack.com/services/",), _form(rf"hooks\.slack\.com/services/({_END}{{8,}})")),
            (("eyj",), _form(rf"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{{8,}}\.{_END}*", cased=True)),
        ),
    ),
    (
        ":",
        (
            (("://",), _form(r"://([^/\s:@]{0,256}:[^/\s@]{1,1024})@")),
            (("authorization", "cookie"), _header),
            (("passw", "passphrase", "pwd", "secret", "token", "key", "credential"), _assigned),
        ),
    ),
    (
        "=",
        (
            (("authorization", "cookie"), _header),
            (("passw", "passphrase", "pwd", "secret", "token", "key", "credential"), _assigned),
        ),
    ),
)
"""By a sign that must be there, and by the texts that must, in lower case: what finds the places of a form in a text, given in lower case
besides. What has `:` and `=` is looked through twice, which finds the same places."""

"""What of a caller's value may be stored or shown again: enough to understand a call, never a secret (SPEC S10.3, CWE-532, CWE-209).

A value is a secret by the name that it stands under (`Authorization`, `x_api_key`, `pass word`; truth values and nothing aren't) or by its
form (`domain.credentials`). `redacted` is for what is stored, `shown` for what a hint or check repeats, `put_back` for a replay.

Two limits are part of the contract. What a call is found by (its ids, the names of its accounts and resources) is kept unless it has the
form of a credential, and a number is told from a secret by its name alone. Whoever adds an exit of what a caller sent passes it through
here first; the rule holds at every depth, so nothing here may look at top-level keys only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from app.domain.credentials import FORM_CHARS_MIN, REDACTED, is_dense, looks_like_credential, without_credentials
from app.domain.secret_names import NAME_CHARS_CACHED, NameKind, kind_of

TEXT_MAX = 120
SCRUBBED_MIN = 6
"""A shorter secret is replaced in other texts only where it is the whole text: `1234` is part of too many harmless ones."""

_EQUAL_MIN = 4
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_NAMING = ("name", "key", "header", "field")

# looked at for every value of every call
_SCALARS = frozenset({int, Decimal, bool, type(None), float})
_IDENTIFIER, _SECRET_TEXT = NameKind.IDENTIFIER, NameKind.SECRET_TEXT
NAMES_MAX = 4_096
_names: dict[str, tuple[NameKind, bool]] = {}


def is_secret_name(name: str) -> bool:
    """Say whether text under that name is a secret; case, separators, accents and invisible characters don't matter."""
    return kind_of(name) >= NameKind.SECRET_TEXT


def under_name(name: str, value: object) -> object:
    """Give what may be kept of a value that stands under that name: `[redacted]`, or the value itself."""
    kind = kind_of(name)
    return _hidden(value, kind) if kind >= NameKind.SECRET_TEXT else value


def redacted(value: object) -> object:
    """Give a JSON value with `[redacted]` in the place of every secret, at every depth; the very same object where there is none."""
    return _redacted(value, identifies=False)


def shown(value: object, pointer: str | None = None) -> object:
    """Give `value` as it may be shown to the one who sent it: the same number, a short clean text, or `[redacted]`.

    `pointer` says where it stands; a fact's path is given as one (`/order/token`).
    """
    kind = NameKind.PLAIN
    for part in _parts(pointer):
        if kind >= NameKind.SECRET_TEXT:
            return REDACTED
        kind = kind_of(part)
    if kind >= NameKind.SECRET_TEXT and (kept := _hidden(value, kind)) is not value:
        return kept
    if isinstance(value, str):
        if _is_secret_text(value, identifies=kind is NameKind.IDENTIFIER):
            return REDACTED
        cut = value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"
        return "".join(c if unicodedata.category(c) not in _HIDDEN else f"\\u{ord(c):04x}" for c in cut)
    if isinstance(value, Mapping | list | tuple):
        return f"[{'an object' if isinstance(value, Mapping) else 'a list'}]"
    return value


def shown_schema(expected: Mapping[str, object], pointer: str) -> Mapping[str, object]:
    """Give what a schema expects at `pointer`; under a secret's name without the values that it lists, they'd be the secret."""
    if not any(is_secret_name(part) for part in _parts(pointer)):
        return expected
    return {key: REDACTED if key in ("const", "enum", "default", "examples") else value for key, value in expected.items()}


def put_back(kept: object, sent: object) -> object:
    """Give a value that was kept, with what `sent` has in the places that `redacted` replaced."""
    if kept == REDACTED:
        return sent
    if isinstance(kept, Mapping) and isinstance(sent, Mapping):
        names = dict(_renamed(sent))
        return {names.get(name, name): put_back(item, sent[names[name]]) if name in names else item for name, item in kept.items()}
    if isinstance(kept, list) and isinstance(sent, list | tuple) and len(kept) == len(sent):
        return [put_back(item, original) for item, original in zip(kept, sent, strict=True)]
    return kept


def secrets_of(sent: object, kept: object) -> frozenset[str]:
    """Give the texts of `sent` that `redacted` replaced in `kept`."""
    return frozenset(_replaced(sent, kept))


def scrubbed(value: object, secrets: frozenset[str]) -> object:
    """Give a JSON value without any of these texts in its strings, for what was made of them, and without what has a credential's form."""
    if isinstance(value, str):
        if value in secrets and len(value) >= _EQUAL_MIN:
            return REDACTED
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= SCRUBBED_MIN:
                value = value.replace(secret, REDACTED)
        return without_credentials(value, dense=False)
    if isinstance(value, Mapping):
        return {name: scrubbed(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(item, secrets) for item in value]
    return value


def _redacted(value: object, *, identifies: bool) -> object:
    kind = type(value)
    if kind is str:
        text: str = value  # type: ignore[assignment]  # its type was just looked at: this runs for every value of every call
        return REDACTED if len(text) >= FORM_CHARS_MIN and _is_secret_text(text, identifies=identifies) else value
    if kind in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return _redacted_object(value)
    if isinstance(value, list | tuple):
        return _redacted_list(value, identifies=identifies)
    return value


def _redacted_object(value: Mapping[str, object]) -> object:
    changed: dict[str, object] = {}
    renamed = False
    for name, item in value.items():
        kind, is_credential = _names.get(name) or _read_name(name)
        if kind >= _SECRET_TEXT:
            kept = _hidden(item, kind)
        else:
            kept = item if type(item) in _SCALARS else _redacted(item, identifies=kind == _IDENTIFIER)
            renamed = renamed or is_credential
        if kept is not item:
            changed[name] = kept
    if "value" in value and any(is_secret_name(named) for key in _NAMING if isinstance(named := value.get(key), str)):
        kept = _hidden(value["value"], NameKind.SECRET)  # {"name": "Authorization", "value": …}
        if kept is not value["value"]:
            changed["value"] = kept
    if renamed:
        return {kept: changed.get(name, value[name]) for kept, name in _renamed(value)}
    return {**value, **changed} if changed else value


def _read_name(name: str) -> tuple[NameKind, bool]:
    """Say what stands under a name, and whether the name itself is a credential; short ones are kept, a caller chooses them."""
    read = kind_of(name), len(name) >= FORM_CHARS_MIN and _is_secret_text(name, identifies=False)
    if len(name) <= NAME_CHARS_CACHED:
        if len(_names) >= NAMES_MAX:
            _names.clear()
        _names[name] = read
    return read


def _redacted_list(value: Sequence[object], *, identifies: bool) -> object:
    kept = [_redacted(item, identifies=identifies) for item in value]
    if value and all(isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str) for item in value):
        for index, item in enumerate(value):  # [["Authorization", …], …]
            assert isinstance(item, list | tuple)
            if is_secret_name(item[0]) and (hidden := _hidden(item[1], NameKind.SECRET)) is not item[1]:
                kept[index] = [item[0], hidden]
    return value if all(new is old for new, old in zip(kept, value, strict=True)) else kept


def _hidden(value: object, kind: NameKind) -> object:
    """Give what stands under a secret's name: nothing and truth values as they are, numbers where the name may count or measure."""
    if value is None or isinstance(value, bool) or value == REDACTED:
        return value
    if isinstance(value, int | float | Decimal):
        return REDACTED if kind is NameKind.SECRET else value
    return REDACTED if value else value


def _is_secret_text(text: str, *, identifies: bool) -> bool:
    return looks_like_credential(text) or (not identifies and is_dense(text))


def _renamed(value: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Give the names of an object as they are kept, and as they are: one that has a credential's form is none to keep."""
    count = 0
    for name in value:
        if _read_name(name)[1]:
            count += 1
            yield REDACTED if count == 1 else f"{REDACTED} {count}", name
        else:
            yield name, name


def _replaced(sent: object, kept: object) -> Iterator[str]:
    if kept is sent:
        return
    if kept == REDACTED:
        yield from _texts(sent)
    elif isinstance(sent, Mapping) and isinstance(kept, Mapping):
        for name, original in _renamed(sent):
            if name != original:
                yield original
            yield from _replaced(sent[original], kept[name])
    elif isinstance(sent, list | tuple) and isinstance(kept, list | tuple):
        for old, new in zip(sent, kept, strict=True):
            yield from _replaced(old, new)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping | list | tuple):
        items: Iterable[object] = value.values() if isinstance(value, Mapping) else value
        for item in items:
            yield from _texts(item)


def _parts(pointer: str | None) -> tuple[str, ...]:
    return tuple(pointer.split("/")) if pointer is not None else ()

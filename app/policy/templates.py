"""Templates: documents whose strings may hold `{path}`s of typed variables (API.md 5).

A string that is one path becomes that value; inside a longer string the value is written into it. In a sentence, what a
caller wrote is quoted, escaped and cut, because a model reads it as the guard's words (IE-03); in an exact template (a
resource, an account) it is written as it is, because a cut name could stand for another thing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from app.domain.credentials import REDACTED, without_credentials
from app.domain.errors import PlacetError
from app.domain.quantity import Quantity
from app.domain.redaction import is_secret_name, shown
from app.policy.currencies import exponent_of
from app.policy.expressions import Bindings, ValueType

VALUE_CHARS_MAX = 120
TEXT_CHARS_MAX = 2_000
NODES_MAX = 500

_PARTS = re.compile(r"(\{\{|\}\}|\{[A-Za-z_][A-Za-z0-9_.]*\})")
_ALMOST = re.compile(r"\{\s*[A-Za-z_]")
_PLAIN_WORD = re.compile(r"[\w.@:/+#-]{1,64}\Z")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

Purpose = Literal["sentence", "exact"]


class TemplateInvalid(PlacetError):
    """A template names what isn't there; `path` says where in the document."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class TemplateFailed(PlacetError):
    """A value that the template needs isn't bound."""


@dataclass(frozen=True, slots=True)
class _Path:
    """A reference: a variable, or the money of `<name>.minor` and `<name>.currency`."""

    name: str
    money: bool

    @property
    def pointer(self) -> str:
        return "/" + self.name.replace(".", "/")


@dataclass(frozen=True, slots=True)
class _Text:
    parts: tuple[str | _Path, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. `uses` are the variables that it reads."""

    source: object
    uses: frozenset[str]
    purpose: Purpose
    _document: object

    def render(self, bindings: Bindings) -> object:
        """Give the document with its values; money is a `Quantity`, an absent optional value is None.

        Raises:
            TemplateFailed: a variable isn't bound, or a text needs a value that is null.
        """
        return _render(self._document, bindings.values, self.purpose, lambda quantity: quantity)

    def json(self, bindings: Bindings) -> object:
        """Give the document as JSON: money as an exact number, times as text. Raises as `render` does."""
        return _render(self._document, bindings.values, self.purpose, Quantity.as_number)

    def text(self, bindings: Bindings) -> str:
        """Give the sentence or name; anything else than a string is written as one. Raises as `render` does."""
        if isinstance(self._document, _Path):  # a sentence may be one value, and is the guard's all the same
            return _told(self._document, bindings.values, self.purpose)
        value = _render(self._document, bindings.values, self.purpose, lambda quantity: quantity)
        return value if isinstance(value, str) else _written(value, self.purpose)


def compile_template(document: object, variables: Mapping[str, ValueType], purpose: Purpose = "exact") -> Template:
    """Compile a document against the declared variables.

    Raises:
        TemplateInvalid: a path isn't a variable, a brace is left open, or the document is too large.
    """
    uses: set[str] = set()
    count = [0]
    compiled = _compile(document, variables, uses, (), count)
    return Template(document, frozenset(uses), purpose, compiled)


def _compile(document: object, variables: Mapping[str, ValueType], uses: set[str], path: tuple[str | int, ...], count: list[int]) -> object:
    count[0] += 1
    if count[0] > NODES_MAX:
        raise TemplateInvalid(f"a template has at most {NODES_MAX} values", path)
    if isinstance(document, Mapping):
        return {str(key): _compile(item, variables, uses, (*path, str(key)), count) for key, item in document.items()}
    if isinstance(document, list | tuple):
        return [_compile(item, variables, uses, (*path, index), count) for index, item in enumerate(document)]
    if not isinstance(document, str):
        return document
    if len(document) > TEXT_CHARS_MAX:
        raise TemplateInvalid(f"a text has at most {TEXT_CHARS_MAX} characters", path)
    parts: list[str | _Path] = []
    for piece in _PARTS.split(document):
        if piece in ("{{", "}}"):
            parts.append(piece[0])
        elif _PARTS.fullmatch(piece):
            parts.append(_reference(piece[1:-1], variables, uses, path))
        elif _ALMOST.search(piece):
            raise TemplateInvalid(f"`{piece[:80]}` has a brace that isn't closed; write `{{name}}`, or `{{{{` for a brace", path)
        elif piece:
            parts.append(piece)
    if len(parts) == 1 and isinstance(parts[0], _Path):
        return parts[0]
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    return _Text(tuple(parts))


def _reference(name: str, variables: Mapping[str, ValueType], uses: set[str], path: tuple[str | int, ...]) -> _Path:
    if name in variables:
        if variables[name] is ValueType.ROWS:
            raise TemplateInvalid(f"`{name}` is a table and can't be written into a template", path)
        uses.add(name)
        return _Path(name, money=False)
    if f"{name}.minor" in variables and f"{name}.currency" in variables:
        uses.update((f"{name}.minor", f"{name}.currency"))
        return _Path(name, money=True)
    near = sorted(each for each in variables if each.startswith(name.split(".")[0] + "."))
    raise TemplateInvalid(f"`{name}` isn't a variable" + (f"; there are {', '.join(near[:12])}" if near else ""), path)


def _render(document: object, values: Mapping[str, object], purpose: Purpose, money: Callable[[Quantity], object]) -> object:
    if isinstance(document, _Path):
        value = _value(document, values)
        if isinstance(value, Quantity):
            return money(value)
        return _time(value) if isinstance(value, datetime) else value
    if isinstance(document, _Text):
        return "".join(part if isinstance(part, str) else _told(part, values, purpose) for part in document.parts)
    if isinstance(document, dict):
        return {key: _render(item, values, purpose, money) for key, item in document.items()}
    if isinstance(document, list):
        return [_render(item, values, purpose, money) for item in document]
    return document


def _told(path: _Path, values: Mapping[str, object], purpose: Purpose) -> str:
    value = _value(path, values)
    if purpose == "sentence" and any(map(is_secret_name, path.name.split("."))) and shown(value, path.pointer) == REDACTED:
        return REDACTED
    return _written(value, purpose)


def _value(path: _Path, values: Mapping[str, object]) -> object:
    try:
        if not path.money:
            return values[path.name]
        minor, currency = values[path.name + ".minor"], values[path.name + ".currency"]
    except KeyError as missing:
        raise TemplateFailed(f"`{missing.args[0]}` has no value") from None
    if minor is None:
        return None
    exponent = exponent_of(currency) if isinstance(currency, str) else None
    if exponent is None or type(minor) is not int:
        raise TemplateFailed(f"`{path.name}` isn't an amount in a known currency")
    return Quantity(minor, str(currency), exponent)


def _written(value: object, purpose: Purpose) -> str:
    match value:
        case None:
            if purpose == "exact":
                raise TemplateFailed("a name can't be made of a value that isn't there")
            return "none"
        case bool():
            return "true" if value else "false"
        case Quantity():
            return value.text()
        case datetime():
            return _time(value)
        case list():
            return _cut(", ".join(_written(item, purpose) for item in value), purpose)
        case str():
            return value if purpose == "exact" else spoken(value)
        case int() | float() | Decimal():
            return str(value)
        case _:
            raise TemplateFailed(f"a value of type {type(value).__name__} can't be written into a text")


def spoken(value: str) -> str:
    """Make a caller's text safe inside a sentence: one plain word as it is, else quoted, escaped and cut to 120 characters.

    What has the form of a credential in it is `[redacted]`.
    """
    value = without_credentials(value)
    if value == REDACTED or _PLAIN_WORD.match(value):
        return value
    cut = value[:VALUE_CHARS_MAX]
    escaped = "".join(_escaped(character) for character in cut)
    return f'"{escaped}{"…" if len(value) > len(cut) else ""}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if unicodedata.category(character) in _HIDDEN:
        code = ord(character)
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return character


def _cut(text: str, purpose: Purpose) -> str:
    return text if purpose == "exact" or len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

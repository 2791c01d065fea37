"""A tool's arguments: validated against its JSON Schema, and read into the typed variables that rules see.

Numbers arrive as `int` and `Decimal` and never become a float. What a rule can't see exactly (a plain number, a list of
objects) has no variable, so that a rule that names it doesn't compile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from app.domain.canonical import MAGNITUDE_MAX, MAGNITUDE_MIN
from app.domain.decision import ABSENT
from app.domain.quantity import EXPONENT_MAX, to_minor
from app.policy.currencies import exponent_of
from app.policy.expressions import INT_MAX, INT_MIN, ValueType
from app.policy.schema import CheckedSchema, SchemaInvalid, check_schema, escape, lookup, resolve
from app.policy.violations import Violation, found_by_schema

DIGITS_MAX = 34
VIOLATIONS_MAX = 20
VISIBLE_BYTES_MAX = 65_536
VISIBLE_ITEMS_MAX = 1_000
VARIABLES_MAX = 200

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SCALARS: Mapping[str, ValueType] = {"string": ValueType.STRING, "boolean": ValueType.BOOL, "integer": ValueType.INT}
_LISTS: Mapping[str, ValueType] = {"string": ValueType.STRINGS, "boolean": ValueType.BOOLS, "integer": ValueType.INTS}
_SAMPLES: Mapping[str, object] = {"string": "a", "boolean": True, "integer": 1}


@dataclass(frozen=True, slots=True)
class MoneySource:
    """Where a money argument's currency is: `pointer` in the arguments, `constant`, or a `variable` such as order.paid.currency."""

    kind: Literal["pointer", "constant", "variable"]
    value: str


@dataclass(frozen=True, slots=True)
class InexactAmount:
    """An amount or number that has no exact value in its unit; `exponent` None: the currency isn't known, or it isn't money."""

    pointer: str
    actual: object
    currency: str | None
    exponent: int | None


@dataclass(frozen=True, slots=True)
class ArgumentReading:
    """Dotted variables and their values. What is inexact has no value."""

    values: dict[str, object]
    inexact: tuple[InexactAmount, ...] = ()


@dataclass(frozen=True, slots=True)
class _Slot:
    """One variable, or the two of a money argument, and where it is read from."""

    name: str
    pointer: str
    path: tuple[str, ...]
    kind: Literal["string", "boolean", "integer", "union", "list", "money", "scaled"]
    item: str = ""
    source: MoneySource | None = None
    scale: int = 0


class ArgumentReader:
    """Validates and reads one tool's arguments. Immutable; the order is `violations` first, `read` only if there are none."""

    __slots__ = ("_checked", "_late", "_slots", "annotations", "invisible", "misspellings", "samples", "variables")

    def __init__(
        self,
        schema: Mapping[str, object],
        money: Mapping[str, MoneySource] | None = None,
        scales: Mapping[str, int] | None = None,
    ) -> None:
        """Compile a schema; `money` and `scales` are by JSON Pointer.

        Raises:
            SchemaInvalid: the schema can't be used, or a pointer names no number in it.
        """
        self._checked: CheckedSchema = check_schema(schema)
        self.annotations = self._checked.annotations
        self.misspellings = self._checked.misspellings
        plan = _Plan(self._checked.document, dict(money or {}), dict(scales or {}))
        plan.walk(self._checked.document, (), required=True)
        plan.finish()
        self.variables: Mapping[str, ValueType] = plan.variables
        self.samples: Mapping[str, object] = plan.samples
        self.invisible: tuple[str, ...] = tuple(plan.invisible)
        self._slots = tuple(plan.slots)
        self._late = tuple(slot for slot in plan.slots if slot.source is not None and slot.source.kind == "variable")

    @property
    def schema(self) -> Mapping[str, object]:
        return self._checked.document

    def violations(self, arguments: Mapping[str, object]) -> tuple[Violation, ...]:
        """Say what breaks the schema, at most 20; nothing in a message is the caller's."""
        inexact: list[Violation] = []
        _find_inexact(arguments, "", inexact)
        if inexact:
            return tuple(inexact[:VIOLATIONS_MAX])
        if not self._checked.validator.is_valid(arguments):
            return found_by_schema(self._checked, arguments, VIOLATIONS_MAX)
        return tuple(self._too_large(arguments))[:VIOLATIONS_MAX]

    def read(self, arguments: Mapping[str, object]) -> ArgumentReading:
        """Read valid arguments into variables. Money whose currency a fact gives is read later, by `read_late`."""
        values: dict[str, object] = {}
        inexact: list[InexactAmount] = []
        for slot in self._slots:
            raw = _get(arguments, slot.path)
            if slot.kind == "money":
                assert slot.source is not None
                if slot.source.kind != "variable":
                    _read_money(slot, raw, _currency(slot.source, arguments), values, inexact)
            elif raw is None:
                values[slot.name] = None
            else:
                _read_plain(slot, raw, values, inexact)
        return ArgumentReading(values, tuple(inexact))

    def read_late(self, arguments: Mapping[str, object], values: Mapping[str, object]) -> ArgumentReading:
        """Read the money arguments whose currency is a variable, now that `values` has it; only the new variables are given."""
        found: dict[str, object] = {}
        inexact: list[InexactAmount] = []
        for slot in self._late:
            assert slot.source is not None
            currency = values.get(slot.source.value)
            if isinstance(currency, str):
                _read_money(slot, _get(arguments, slot.path), currency, found, inexact)
        return ArgumentReading(found, tuple(inexact))

    def _too_large(self, arguments: Mapping[str, object]) -> list[Violation]:
        found = []
        for slot in self._slots:
            raw = _get(arguments, slot.path)
            if isinstance(raw, str) and len(raw) > VISIBLE_BYTES_MAX // 4 and len(raw.encode("utf-8", "replace")) > VISIBLE_BYTES_MAX:
                found.append(Violation(slot.pointer, "visible_size", {"maxLength": VISIBLE_BYTES_MAX}, ABSENT, "too_long_for_rules"))
            if isinstance(raw, list) and len(raw) > VISIBLE_ITEMS_MAX:
                found.append(Violation(slot.pointer, "visible_size", {"maxItems": VISIBLE_ITEMS_MAX}, ABSENT, "too_many_for_rules"))
        return found


class _Plan:
    """Collects the variables of a schema."""

    def __init__(self, document: Mapping[str, object], money: dict[str, MoneySource], scales: dict[str, int]) -> None:
        self.document = document
        self.money, self.scales = money, scales
        self.slots: list[_Slot] = []
        self.variables: dict[str, ValueType] = {}
        self.samples: dict[str, object] = {}
        self.invisible: list[str] = []
        self.types: dict[str, tuple[frozenset[str], bool]] = {}
        self.seen: set[str] = set()

    def walk(self, schema: Mapping[str, object], path: tuple[str, ...], required: bool) -> None:
        properties = schema.get("properties")
        needed = schema.get("required")
        if not isinstance(properties, Mapping):
            return
        for key, child in properties.items():
            present = required and isinstance(needed, list | tuple) and key in needed
            self._property((*path, str(key)), resolve(self.document, child), present)

    def finish(self) -> None:
        for pointer in [*self.money, *self.scales]:
            if pointer not in self.seen:
                raise SchemaInvalid(f"`{pointer}` isn't a number among the arguments", pointer)
        for pointer, source in self.money.items():
            if source.kind == "pointer":
                types, required = self.types.get(source.value, (frozenset(), False))
                if types != {"string"} or not (required or not self.types[pointer][1]):
                    raise SchemaInvalid(f"the currency of `{pointer}` has to be a required string; `{source.value}` isn't", pointer)
            if source.kind == "constant" and exponent_of(source.value) is None:
                raise SchemaInvalid(f"`{source.value}` isn't a currency of ISO 4217 with minor units", pointer)
        for pointer, scale in self.scales.items():
            if not 0 <= scale <= EXPONENT_MAX:
                raise SchemaInvalid(f"the scale of `{pointer}` is a number of digits, 0 to {EXPONENT_MAX}", pointer)
        if len(self.variables) > VARIABLES_MAX:
            raise SchemaInvalid(f"more than {VARIABLES_MAX} variables; nest what rules don't need in a list", "")

    def _property(self, path: tuple[str, ...], schema: Mapping[str, object], required: bool) -> None:
        pointer = "".join(f"/{escape(part)}" for part in path)
        types = types_of(schema)
        self.types[pointer] = (types, required)
        if not all(_IDENTIFIER.match(part) for part in path):
            self.invisible.append(pointer)
            return
        name = ".".join(("args", *path))
        numeric = bool(types) and types <= {"number", "integer", "null"}
        if pointer in self.money and numeric:
            self.seen.add(pointer)
            self._declare(_Slot(name + ".minor", pointer, path, "money", source=self.money[pointer]), ValueType.INT, required, 1)
            self._name(name + ".currency", ValueType.STRING, required, "EUR")
        elif pointer in self.scales and numeric:
            self.seen.add(pointer)
            self._declare(_Slot(name + ".scaled", pointer, path, "scaled", scale=self.scales[pointer]), ValueType.INT, required, 1)
        elif types == {"object"}:
            before = len(self.variables)
            self.walk(schema, path, required)
            if len(self.variables) == before:
                self.invisible.append(pointer)
        elif types == {"array"} and (item := _item_type(self.document, schema)):
            self._declare(_Slot(name, pointer, path, "list", item=item), _LISTS[item], required, [_SAMPLES[item]])
        elif types and types <= {"string", "boolean", "integer", "null"}:
            only = next(iter(types)) if len(types) == 1 else ""
            kind = _SCALARS.get(only, ValueType.DYN)
            sample = next((_SAMPLES[each] for each in sorted(types - {"null"})), None)
            slot = _Slot(name, pointer, path, only if only in _SCALARS else "union")  # type: ignore[arg-type]  # the keys of _SCALARS
            self._declare(slot, kind, required, sample)
        else:
            self.invisible.append(pointer)

    def _declare(self, slot: _Slot, kind: ValueType, required: bool, sample: object) -> None:
        self.slots.append(slot)
        self._name(slot.name, kind, required, sample)

    def _name(self, name: str, kind: ValueType, required: bool, sample: object) -> None:
        if name in self.variables:
            raise SchemaInvalid(f"two arguments would both be `{name}` in rules; rename one", "")
        self.variables[name] = kind if required else ValueType.DYN
        if self.variables[name] is ValueType.DYN:
            self.samples[name] = sample


def types_of(schema: Mapping[str, object]) -> frozenset[str]:
    """Name the JSON types that a schema admits; empty where it doesn't say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list | tuple):
        return frozenset(str(each) for each in declared)
    if "const" in schema:
        return frozenset({_type_name(schema["const"])})
    if isinstance(options := schema.get("enum"), list | tuple) and options:
        return frozenset(_type_name(option) for option in options)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list | tuple) and branches:
            each = [types_of(branch) if isinstance(branch, Mapping) else frozenset[str]() for branch in branches]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return "number"


def _item_type(document: Mapping[str, object], schema: Mapping[str, object]) -> str:
    """Name the one scalar type of a list's items; "" where rules can't see the list."""
    types = types_of(resolve(document, schema.get("items")))
    only = next(iter(types)) if len(types) == 1 else ""
    return only if only in _LISTS and "prefixItems" not in schema else ""


def _get(arguments: object, path: tuple[str, ...]) -> object:
    for part in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(part)
    return arguments


def _currency(source: MoneySource, arguments: Mapping[str, object]) -> object:
    return source.value if source.kind == "constant" else lookup(arguments, source.value)


def _read_money(slot: _Slot, raw: object, currency: object, values: dict[str, object], inexact: list[InexactAmount]) -> None:
    other = slot.name.removesuffix(".minor") + ".currency"
    if raw is None:
        values[slot.name] = values[other] = None
        return
    code = currency if isinstance(currency, str) else None
    exponent = exponent_of(code) if code else None
    minor = to_minor(raw, exponent) if exponent is not None and isinstance(raw, int | Decimal) else None
    if minor is None:
        inexact.append(InexactAmount(slot.pointer, raw, code, exponent))
        return
    values[slot.name], values[other] = minor, code


def _read_plain(slot: _Slot, raw: object, values: dict[str, object], inexact: list[InexactAmount]) -> None:
    if slot.kind == "scaled":
        scaled = to_minor(raw, slot.scale) if isinstance(raw, int | Decimal) else None
        if scaled is None:
            inexact.append(InexactAmount(slot.pointer, raw, None, slot.scale))
        else:
            values[slot.name] = scaled
        return
    if slot.kind == "list" and isinstance(raw, list):
        items = [_whole(item) for item in raw] if slot.item == "integer" else list(raw)
        if any(item is ABSENT for item in items):
            inexact.append(InexactAmount(slot.pointer, ABSENT, None, None))
        else:
            values[slot.name] = items
        return
    value = _whole(raw)
    if value is ABSENT:
        inexact.append(InexactAmount(slot.pointer, raw, None, None))
    else:
        values[slot.name] = value


def _whole(raw: object) -> object:
    """Give a whole number as an int of 64 bits, ABSENT where it isn't one; other values as they are."""
    if isinstance(raw, bool) or not isinstance(raw, int | Decimal):
        return raw
    if isinstance(raw, Decimal):
        minor = to_minor(raw, 0)
        return ABSENT if minor is None else minor
    return raw if INT_MIN <= raw <= INT_MAX else ABSENT


def _find_inexact(value: object, pointer: str, found: list[Violation]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if type(item) is not str:
                _find_inexact(item, f"{pointer}/{escape(key)}", found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if type(item) is not str:
                _find_inexact(item, f"{pointer}/{index}", found)
    elif isinstance(value, int | Decimal | float) and not _is_exact(value):
        found.append(Violation(pointer, "number_not_exact", {"type": "number"}, ABSENT, "number_digits", DIGITS_MAX))


def _is_exact(number: int | Decimal | float) -> bool:
    if isinstance(number, float):
        return False  # a float was rounded before it came here
    if isinstance(number, int):
        if -(10**DIGITS_MAX) < number < 10**DIGITS_MAX:
            return True
        if number.bit_length() > 4 * MAGNITUDE_MAX:
            return False
        return len(str(abs(number)).rstrip("0")) <= DIGITS_MAX and abs(number) < 10 ** (MAGNITUDE_MAX + 1)
    if not number.is_finite():
        return False
    digits = number.as_tuple().digits
    if len(digits) > DIGITS_MAX and len("".join(map(str, digits)).strip("0")) > DIGITS_MAX:
        return False
    return not number or MAGNITUDE_MIN <= number.adjusted() <= MAGNITUDE_MAX

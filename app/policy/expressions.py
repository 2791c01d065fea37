"""CEL expressions over typed, dotted variables (`args.amount.minor`), compiled once and evaluated on values only.

An evaluation error of CEL is a *value* that is truthy in Python: nothing but `Expression.evaluate` may look at a
result, and it gives back only what is exactly of the declared type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cel_expr_python import cel  # type: ignore[import-untyped]  # ships a stub but no py.typed

from app.domain.errors import PlacetError

SOURCE_CHARS_MAX = 4096
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*)"
    r"|(?P<string>[rRbB]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<chain>\.?\s*[A-Za-z_][A-Za-z0-9_]*(?:\s*\.\s*[A-Za-z_][A-Za-z0-9_]*)*)"
    r"|(?P<number>[0-9][0-9A-Za-z_.]*)"
    r"|(?P<other>\S)",
    re.DOTALL,
)
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_TYPE_ERRORS = ("No matching overloads", "no such overload", "Applying SELECT", "invalid regular expression")

# `map` and concatenation can grow a value without bound, `filter` is built on concatenation; `has` reads a dotted name as dyn
_STANDARD_LIBRARY = """
stdlib:
  exclude_macros: [map, filter, has]
  exclude_functions:
    - name: "_+_"
      overloads: [{id: add_string}, {id: add_bytes}, {id: add_list}]
"""


class ValueType(StrEnum):
    """The types that variables are declared with and that results must have."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    TIMESTAMP = "timestamp"
    BOOLS = "list(bool)"
    INTS = "list(int)"
    STRINGS = "list(string)"
    ROWS = "map(string, list(dyn))"
    DYN = "dyn"


ResultType = ValueType

_YAML_TYPES: Mapping[ValueType, str] = {
    ValueType.BOOLS: "list, params: [{type_name: bool}]",
    ValueType.INTS: "list, params: [{type_name: int}]",
    ValueType.STRINGS: "list, params: [{type_name: string}]",
    ValueType.ROWS: "map, params: [{type_name: string}, {type_name: list, params: [{type_name: dyn}]}]",
}
_CEL_TYPES: Mapping[str, ValueType] = {
    "BOOL": ValueType.BOOL,
    "INT": ValueType.INT,
    "DOUBLE": ValueType.DOUBLE,
    "STRING": ValueType.STRING,
    "TIMESTAMP": ValueType.TIMESTAMP,
    "LIST<BOOL>": ValueType.BOOLS,
    "LIST<INT>": ValueType.INTS,
    "LIST<STRING>": ValueType.STRINGS,
    "MAP<STRING, LIST<DYN>>": ValueType.ROWS,
    "DYN": ValueType.DYN,
}
_SAMPLES: Mapping[ValueType, object] = {
    ValueType.BOOL: True,
    ValueType.INT: 1,
    ValueType.DOUBLE: 1.0,
    ValueType.STRING: "a",
    ValueType.TIMESTAMP: datetime(2026, 1, 1, tzinfo=UTC),
    ValueType.BOOLS: [True],
    ValueType.INTS: [1],
    ValueType.STRINGS: ["a"],
    ValueType.ROWS: {},
    ValueType.DYN: None,
}


class ExpressionInvalid(PlacetError):
    """An expression doesn't compile; `line` and `column` count from 1 inside its source."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class ExpressionFailed(PlacetError):
    """An evaluation gave no value of the declared type. The rule doesn't hold, whatever it says."""


def conforms(value: object, expected: ValueType) -> bool:
    """Say whether a Python value is exactly of a type: True is no int, a double is finite, an int fits 64 bits."""
    match expected:
        case ValueType.BOOL:
            return type(value) is bool
        case ValueType.INT:
            return type(value) is int and INT_MIN <= value <= INT_MAX
        case ValueType.DOUBLE:
            return type(value) is float and math.isfinite(value)
        case ValueType.STRING:
            return type(value) is str
        case ValueType.TIMESTAMP:
            return isinstance(value, datetime) and value.tzinfo is not None
        case ValueType.BOOLS:
            return type(value) is list and all(type(item) is bool for item in value)
        case ValueType.INTS:
            return type(value) is list and all(conforms(item, ValueType.INT) for item in value)
        case ValueType.STRINGS:
            return type(value) is list and all(type(item) is str for item in value)
        case ValueType.ROWS:
            return isinstance(value, dict) and all(type(key) is str and type(rows) is list for key, rows in value.items())
        case ValueType.DYN:
            return True


def names_used(source: str, declared: Collection[str]) -> frozenset[str]:
    """Name the declared variables that a source reads, found outside string literals and comments.

    May name one too many (a comprehension variable that is called like a variable), never one too few.
    """
    found: set[str] = set()
    after_value = False  # a dot after a value selects a member; a dot elsewhere names the root
    for token in _TOKENS.finditer(source):
        kind, text = token.lastgroup, token.group()
        if kind == "comment":
            continue
        if kind == "chain" and not (text.startswith(".") and after_value):
            parts = [part.strip() for part in text.lstrip(".").split(".")]
            for length in range(len(parts), 0, -1):
                if (name := ".".join(parts[:length])) in declared:
                    found.add(name)
                    break
        after_value = kind in ("chain", "string", "number") or text in (")", "]", "}")
    return frozenset(found)


class Bindings:
    """The values of one evaluation; the CEL activation is built at the first expression that needs it."""

    __slots__ = ("_activation", "_environment", "values")

    def __init__(self, environment: cel.Env, values: Mapping[str, object]) -> None:
        self.values = values
        self._environment = environment
        self._activation: cel.Activation | None = None

    @property
    def activation(self) -> cel.Activation:
        if self._activation is None:
            try:
                self._activation = self._environment.Activation(dict(self.values))
            except (RuntimeError, TypeError, ValueError) as error:
                raise ExpressionFailed(f"the values can't be bound: {error}") from None
        return self._activation


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled, typed expression. `uses` are the declared variables that it reads."""

    source: str
    result: ValueType
    uses: frozenset[str]
    _variable: str | None
    _program: cel.Expression

    def evaluate(self, bindings: Bindings) -> object:
        """Give the value, exactly of the type `result`.

        Raises:
            ExpressionFailed: a variable isn't bound, CEL reports an error or a limit, or the value is of another type.
        """
        if self._variable is not None:
            if self._variable not in bindings.values:
                raise ExpressionFailed(f"`{self._variable}` has no value")
            value = bindings.values[self._variable]
        else:
            value = self._run(bindings)
        if not conforms(value, self.result):
            raise ExpressionFailed(f"`{self.source}` gave {type(value).__name__}, not {self.result}")
        return value

    def _run(self, bindings: Bindings) -> object:
        try:
            answer = self._program.eval(bindings.activation)
            value: object = answer.plain_value()
            # an error is a text: where the declared type isn't one, `conforms` refuses it, and asking for the type would cost as much again
            if (type(value) is str or self.result is ValueType.DYN) and answer.type() in (cel.Type.ERROR, cel.Type.UNKNOWN):
                raise ExpressionFailed(str(value)[:500])
            return value
        except RuntimeError as error:  # the iteration budget and the like
            raise ExpressionFailed(str(error)[:500]) from None


class Environment:
    """Declared variables and the one CEL environment that knows them. Immutable."""

    __slots__ = ("_cel", "_samples", "variables")

    def __init__(self, variables: Mapping[str, ValueType], samples: Mapping[str, object] | None = None) -> None:
        """Declare variables; `samples` give dyn variables a value that their schema allows, for the dry run.

        Raises:
            ExpressionInvalid: a name isn't made of identifiers, or can't be declared.
        """
        for name in variables:
            if not _NAME.match(name):
                raise ExpressionInvalid(f"`{name}` can't be the name of a variable; use letters, digits, _ and dots")
        self.variables: Mapping[str, ValueType] = dict(variables)
        self._samples = dict(samples or {})
        lines = [f"  - {{name: {name}, type_name: {_YAML_TYPES.get(kind, kind.value)}}}" for name, kind in self.variables.items()]
        text = "name: policy" + _STANDARD_LIBRARY + ("variables:\n" + "\n".join(lines) + "\n" if lines else "")
        try:
            self._cel = cel.NewEnv(config=cel.NewEnvConfigFromYaml(text))
        except RuntimeError as error:
            raise ExpressionInvalid(f"the variables can't be declared: {error}") from None

    def compile(self, source: str, expected: ValueType | Collection[ValueType]) -> Expression:
        """Compile and dry-run a source whose result has the expected type, or one of several.

        Raises:
            ExpressionInvalid: with CEL's message and place.
        """
        wanted = (expected,) if isinstance(expected, ValueType) else tuple(expected)
        if not source.strip() or len(source) > SOURCE_CHARS_MAX:
            raise ExpressionInvalid(f"an expression has 1 to {SOURCE_CHARS_MAX} characters, this one has {len(source)}")
        stripped = source.strip()
        try:
            program = self._cel.compile(source)
        except RuntimeError as error:
            raise _invalid(str(error)) from None
        result = _CEL_TYPES.get(program.return_type().name())
        if result not in wanted or result is None:
            names = " or ".join(kind.value for kind in wanted)
            raise ExpressionInvalid(f"the result has to be {names}, and is {program.return_type().name().lower()}")
        expression = Expression(
            source=source,
            result=result,
            uses=names_used(source, self.variables),
            _variable=stripped if stripped in self.variables else None,
            _program=program,
        )
        self._dry_run(expression)
        return expression

    def bind_used(self, values: Mapping[str, object], expression: Expression) -> Bindings:
        """Bind what one expression reads: cheaper than all where the values are still growing."""
        return Bindings(self._cel, {name: values[name] for name in expression.uses if name in values})

    def bind(self, values: Mapping[str, object]) -> Bindings:
        """Bind values by their dotted names. The mapping is kept, not copied, until CEL first needs it."""
        return Bindings(self._cel, values)

    def sample(self, name: str) -> object:
        """Give the value that a dyn variable's schema allows; None where nothing is known."""
        return self._samples.get(name)

    def _dry_run(self, expression: Expression) -> None:
        """Try type-conform values; what fails by type then would fail for a caller. Other errors depend on values."""
        null = {name: _SAMPLES[kind] for name, kind in self.variables.items()}
        for values in (null, {**null, **self._samples}):
            try:
                expression.evaluate(self.bind(values))
            except ExpressionFailed as error:
                if any(mark in str(error) for mark in _TYPE_ERRORS):
                    raise ExpressionInvalid(
                        f"fails on values of the declared types: {error}; "
                        "an optional argument is null when absent, so compare it with null first"
                    ) from None


def _invalid(text: str) -> ExpressionInvalid:
    place = _PLACE.search(text)
    if place is None:
        return ExpressionInvalid(text.splitlines()[0][:500])
    return ExpressionInvalid(place[3].replace(" (in container '')", "")[:500], int(place[1]), int(place[2]))

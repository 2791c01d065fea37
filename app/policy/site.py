"""The place where a tool is compiled: its file, its variables, and the faults that are found on the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from app.policy.expressions import Environment, Expression, ExpressionInvalid, ValueType
from app.policy.reading import Faults, Path_, Source
from app.policy.schema import resolve
from app.policy.templates import Purpose, Template, TemplateInvalid, compile_template

BASE_VARIABLES: Mapping[str, ValueType] = {
    "on_behalf_of.id": ValueType.STRING,
    "on_behalf_of.segment": ValueType.STRING,
    "principal.subject": ValueType.STRING,
    "principal.roles": ValueType.STRINGS,
    "tenant": ValueType.STRING,
    "session_id": ValueType.STRING,
    "task_id": ValueType.STRING,
    "now": ValueType.TIMESTAMP,
}
"""What every expression of every tool sees besides its arguments; what a request leaves out is an empty string."""

RESERVED_NAMES = frozenset(
    {name.split(".")[0] for name in BASE_VARIABLES}
    | {"args", "history", "account", "before", "after", "risk", "result"}
    | {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "in", "let", "loop", "package", "namespace"}
    | {"return", "var", "void", "while", "true", "false", "null", "int", "uint", "double", "bool", "string", "bytes", "list", "map"}
    | {"type", "dyn", "timestamp", "duration", "optional"}
)
"""Names that a fact or a value can't have: CEL and the other variables use them."""


@dataclass(frozen=True, slots=True)
class Site:
    """One tool's file while it is compiled. `early` are the variables that have a value before any state is read."""

    source: Source
    faults: Faults
    environment: Environment
    early: frozenset[str]
    schema: Mapping[str, object]
    locales: frozenset[str]
    tools: Collection[str]
    levels: tuple[str, ...] = ()  # of sensitivity, lowest first
    reasons: set[str] = field(default_factory=set)

    def fault(self, path: Path_, message: str, expected: str) -> None:
        self.faults.at(self.source, path, message, expected)

    def expression(
        self, path: Path_, text: str, expected: ValueType, allowed: Collection[str] | None = None, why: str = ""
    ) -> Expression | None:
        """Compile CEL at a place; with `allowed`, it may read only these variables."""
        try:
            expression = self.environment.compile(text, expected)
        except ExpressionInvalid as error:
            line = self.source.text_line(path, error.line)
            self.faults.at(self.source, path, str(error), f"a CEL expression of type {expected}", line)
            return None
        return expression if self._may_read(path, expression.uses, allowed, why) else None

    def template(
        self, path: Path_, document: object, purpose: Purpose = "exact", allowed: Collection[str] | None = None, why: str = ""
    ) -> Template | None:
        """Compile a template at a place; with `allowed`, it may read only these variables."""
        try:
            template = compile_template(document, self.environment.variables, purpose)
        except TemplateInvalid as error:
            self.fault((*path, *error.path), str(error), "`{path}`s of variables")
            return None
        return template if self._may_read(path, template.uses, allowed, why) else None

    def has_argument(self, pointer: str) -> bool:
        """Say whether the tool's schema declares an argument at a pointer."""
        return declares(self.schema, pointer)

    def _may_read(self, path: Path_, uses: frozenset[str], allowed: Collection[str] | None, why: str) -> bool:
        if allowed is None or not (others := sorted(uses - frozenset(allowed))):
            return True
        self.fault(path, f"reads `{others[0]}`, which {why}", f"only {', '.join(sorted(allowed)[:20])}")
        return False


def declares(schema: Mapping[str, object], pointer: str) -> bool:
    """Say whether a schema has a property at a JSON Pointer."""
    return property_at(schema, pointer) is not None


def property_at(schema: Mapping[str, object], pointer: str) -> Mapping[str, object] | None:
    """Give the schema of the property at a JSON Pointer, references followed."""
    here: Mapping[str, object] = schema
    for part in pointer.split("/")[1:]:
        properties = here.get("properties")
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(properties, Mapping) or name not in properties:
            return None
        here = resolve(schema, properties[name])
    return here

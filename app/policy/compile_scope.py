"""A tool's `scope` -> the need of its calls: the resource and the limits that its arguments make (SPEC S3.1, API.md 0.3).

What a call touches or how much can't be left out by its caller, and what could never be read as a limit is a fault: a constraint that got
lost would make every call look harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from app.domain.algebra import comparable
from app.domain.quantity import UNITS, QuantityError, parse_quantity
from app.domain.scope import SENSITIVITY, TIME, Ceiling, Constraint, LevelCeiling, OneOf, ScopeError, parse_level
from app.policy.currencies import exponent_of
from app.policy.document import ToolDocument
from app.policy.expressions import ValueType
from app.policy.model import Grant, Need, NeedLimit, Tool
from app.policy.reading import Faults, Path_, Source
from app.policy.site import Site, property_at
from app.policy.templates import Template

NO_STATE = "has no value before the state is read"

_ONE_PATH = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}\Z")
_RESOURCE = re.compile(r"[a-z][a-z0-9_]{0,31}:.")
_CEILING = 'an amount such as `"{args.amount}"`, a count such as `{amount: "{args.limit}", unit: rows}`, or, for `sensitivity`, a level'
_VALUES = "one string, one list of strings, or a required argument that is one"


def compile_need(site: Site, document: ToolDocument) -> Need | None:
    """Compile `scope`; None where the resource has faults."""
    scope = document.scope
    path: Path_ = ("scope", "resource")
    resource = site.template(path, scope.resource, "exact", site.early, NO_STATE)
    refuse_optional(site, path, resource)
    if not _RESOURCE.match(scope.resource):
        site.fault(path, f"`{scope.resource}` isn't a resource", "`kind:path` such as `order:{args.order_id}`")
    limits: dict[str, NeedLimit] = {}
    for name, constraint in scope.constraints.items():
        limit = _limit(site, document, str(name), constraint)
        if limit is not None:
            limits[str(name)] = limit
    if resource is None:
        return None
    named = [field for name in resource.uses if (field := _field(site, name)) is not None]
    return Need(scope.action, resource, limits, named[0] if len(named) == 1 == len(resource.uses) else None)


def check_limits(rest: Source, grants: Sequence[Grant], tools: Sequence[Tool], faults: Faults) -> None:
    """Refuse constraints that no call could be compared with: a permit with one grants nothing, and a forbid forbids at random (PS-15)."""
    for index, grant in enumerate(grants):
        for entry in grant.scope:
            needs = [tool.need for tool in tools if tool.need.action == entry.action]
            for key, constraint in ((key, limit) for each in (entry, *entry.excluded) for key, limit in each.constraints.items()):
                if key == TIME or not needs:
                    continue
                limits = [need.limits[key] for need in needs if key in need.limits]
                if not limits:
                    known = ", ".join(sorted({name for need in needs for name in need.limits})) or "no constraint but `time`"
                    message = f"no tool that needs `{entry.action}` says its `{key}`"
                    faults.at(rest, ("grants", index, "scope"), message, known)
                elif not any(_is_like(limit, constraint) for limit in limits):
                    message = f"`{key}` isn't of the kind that calls of `{entry.action}` have"
                    faults.at(rest, ("grants", index, "scope"), message, "the kind of constraint that is in the tool's `scope`")


def _is_like(limit: NeedLimit, constraint: Constraint) -> bool:
    match limit.kind, constraint:
        case "constant", _:
            return limit.constant is not None and comparable(limit.constant, constraint)
        case "money", Ceiling(quantity):
            return quantity.is_currency
        case "count", Ceiling(quantity):
            return quantity.unit == limit.unit
        case "level", LevelCeiling():
            return True
        case kind, OneOf():
            return kind == "in"
    return False


def refuse_optional(site: Site, path: Path_, template: Template | None) -> None:
    """What names a thing or limits a call can't be left out by the caller."""
    for name in sorted(template.uses) if template else ():
        if site.environment.variables[name] is ValueType.DYN:
            site.fault(path, f"`{name}` is optional, and what a call touches can't be left out", "a required argument")


def is_money(site: Site, value: object) -> bool:
    """Say whether a value of the file is one `{path}` of an amount of money."""
    name, variables = _path(value), site.environment.variables
    return name is not None and f"{name}.minor" in variables and f"{name}.currency" in variables


def _limit(site: Site, document: ToolDocument, name: str, constraint: Mapping[Literal["max", "in"], Any]) -> NeedLimit | None:
    path: Path_ = ("scope", "constraints", name)
    if name == TIME:
        site.fault(path, "`time` is the moment of the decision and not of the call", "no constraint `time`; grants have it")
        return None
    if len(constraint) != 1:
        site.fault(path, "has not exactly one of `max` and `in`", '`{max: "{args.amount}"}` or `{in: "{args.cause}"}`')
        return None
    ((kind, value),) = constraint.items()
    path = (*path, kind)
    if name == SENSITIVITY:
        if kind != "max":
            site.fault(path, "`sensitivity` is a ceiling", "`max` with a level")
            return None
        return _level(site, path, value)
    if kind == "in":
        return _values(site, path, value)
    if isinstance(value, Mapping):
        return _quantity(site, path, value)
    template = _template(site, path, value)
    if template is not None and not is_money(site, value):
        site.fault(path, "isn't a ceiling", _CEILING)
        return None
    field = _field(site, f"{_path(value)}.minor", ".minor")
    currency = document.money[field].currency if field in document.money else ""
    return NeedLimit("money", template, "", field, currency if currency.startswith("/") else None) if template is not None else None


def _quantity(site: Site, path: Path_, value: Mapping[str, object]) -> NeedLimit | None:
    """Read `{amount, unit}`, whose amount may be a whole number among the arguments, or a constant quantity."""
    counted = _path(value.get("amount"))
    if counted is None:
        try:
            return _constant(Ceiling(parse_quantity(value, exponent_of)))
        except QuantityError as error:
            site.fault(path, str(error), _CEILING)
            return None
    unit = value.get("unit")
    if set(value) != {"amount", "unit"} or not isinstance(unit, str) or unit not in UNITS:
        site.fault(path, "a count has an `amount` and a `unit`", f"a unit of {', '.join(sorted(UNITS))}")
        return None
    template = _template(site, (*path, "amount"), value["amount"])
    if template is None:
        return None
    if site.environment.variables[counted] is not ValueType.INT:
        site.fault((*path, "amount"), f"`{counted}` isn't a whole number", "a required argument of type integer")
        return None
    return NeedLimit("count", template, unit, _field(site, counted))


def _level(site: Site, path: Path_, value: object) -> NeedLimit | None:
    levels = site.levels
    known = f"one of {', '.join(levels)}, or a required argument that is one" if levels else "`bundle.sensitivity` with the levels"
    name = _path(value)
    if name is None:
        try:
            return _constant(LevelCeiling(parse_level(value, levels)))
        except ScopeError as error:
            site.fault(path, str(error), known)
            return None
    template = _template(site, path, value)
    if template is None:
        return None
    if site.environment.variables[name] is not ValueType.STRING:
        site.fault(path, f"`{name}` isn't a string", known)
        return None
    field = _field(site, name)
    options = (property_at(site.schema, field) or {}).get("enum") if field is not None else None
    if not levels or (isinstance(options, list | tuple) and (others := [each for each in options if each not in levels])):
        site.fault(path, f"`{name}` may be `{others[0]}`, which isn't a level" if levels else "the bundle names no levels", known)
        return None
    return NeedLimit("level", template, "", field)


def _values(site: Site, path: Path_, value: object) -> NeedLimit | None:
    name = _path(value)
    if name is None and _is_constant(value):
        values = [value] if isinstance(value, str) else value
        assert isinstance(values, list)
        return _constant(OneOf(frozenset(values)))
    template = _template(site, path, value)
    if template is None:
        return None
    if not _is_texts(site, value):
        site.fault(path, "isn't made of strings", _VALUES)
        return None
    return NeedLimit("in", template, "", _field(site, name) if name is not None else None)


def _is_constant(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) and _is_constant(each) for each in value)
    return isinstance(value, str) and "{" not in value and "}" not in value


def _is_texts(site: Site, value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) and _type(site, each) is ValueType.STRING for each in value)
    return isinstance(value, str) and _type(site, value) in (ValueType.STRING, ValueType.STRINGS)


def _type(site: Site, value: str) -> ValueType | None:
    """Say what a string of the file becomes: one path its value, a longer one a text."""
    name = _path(value)
    return ValueType.STRING if name is None else site.environment.variables.get(name)


def _template(site: Site, path: Path_, value: object) -> Template | None:
    template = site.template(path, value, "exact", site.early, NO_STATE)
    before = len(site.faults.found)
    refuse_optional(site, path, template)
    return template if len(site.faults.found) == before else None


def _constant(constraint: Constraint) -> NeedLimit:
    return NeedLimit("constant", None, constant=constraint)


def _path(value: object) -> str | None:
    found = _ONE_PATH.match(value) if isinstance(value, str) else None
    return found[1] if found is not None else None


def _field(site: Site, variable: str, ending: str = "") -> str | None:
    """Give the JSON Pointer of the argument that a variable is; None where it is none."""
    pointer = "/" + variable.removesuffix(ending).removeprefix("args.").replace(".", "/")
    return pointer if variable.startswith("args.") and site.has_argument(pointer) else None

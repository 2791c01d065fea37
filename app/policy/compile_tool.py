"""One tool's file -> a compiled `Tool`. The layers follow from the effect class; a file may ask for more and never for less (S3.3)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Decimal

from app.domain.canonical import CanonicalError, digest
from app.domain.decision import Layer
from app.policy.arguments import ArgumentReader, MoneySource
from app.policy.compile_compensation import compile_compensation
from app.policy.compile_effects import compile_risk, compile_sandbox, watched
from app.policy.compile_rules import check_locales, compile_refusal, compile_rules
from app.policy.compile_scope import NO_STATE, compile_need, is_money, refuse_optional
from app.policy.document import FactDocument, MoneyColumnDocument, ToolDocument
from app.policy.expressions import Environment, ExpressionInvalid, ValueType
from app.policy.model import Fact, FactColumn, HistoryQuery, HoldRule, Tool, Value
from app.policy.notes import PolicyNote
from app.policy.reading import Faults, Path_, Source
from app.policy.schema import SchemaInvalid
from app.policy.shape import read_shape
from app.policy.site import BASE_VARIABLES, RESERVED_NAMES, Site, declares, property_at
from app.policy.statements import StatementInvalid, compile_fact

_ALWAYS = frozenset({Layer.STATIC, Layer.SCOPE})
_ALL = _ALWAYS | {Layer.SEMANTIC, Layer.SANDBOX, Layer.RISK}
_IMPLIED: Mapping[str, frozenset[Layer]] = {
    "read": _ALWAYS,
    "write": _ALWAYS | {Layer.SEMANTIC},
    "money": _ALL,
    "permission": _ALL,
    "irreversible": _ALL,
}
_COLUMN_TYPES: Mapping[str, ValueType] = {
    "string": ValueType.STRING,
    "int": ValueType.INT,
    "bool": ValueType.BOOL,
    "timestamp": ValueType.TIMESTAMP,
}
_CURRENCY = re.compile(r"[A-Z]{3}\Z")
_VARIABLE = re.compile(r"\{([a-z_][A-Za-z0-9_.]*)\}\Z")
_ACCOUNT = re.compile(r"[a-z][a-z0-9_]{0,31}:.")


def compile_tool(
    source: Source,
    document: ToolDocument,
    locales: frozenset[str],
    schemas: Mapping[str, Mapping[str, object]],
    faults: Faults,
    levels: tuple[str, ...] = (),
) -> Tool | None:
    """Compile a tool; None where it has faults, which are added. `schemas` are the argument schemas of all tools, `levels` the bundle's."""
    before = len(faults.found)
    columns = {name: _columns(source, ("facts", name, "columns"), fact, faults) for name, fact in document.facts.items()}
    facts = _fact_variables(columns)
    reader = _reader(source, document, facts, faults)
    if reader is None or len(faults.found) > before:
        return None
    late = {name for pointer, money in _money(document).items() if money.kind == "variable" for name in _names_of(pointer)}
    environment = _environment(source, document, reader, facts, faults)
    if environment is None:
        return None
    early = frozenset(BASE_VARIABLES) | (frozenset(reader.variables) - late)
    site = Site(source, faults, environment, early, reader.schema, locales, schemas.keys(), levels)
    tool = _build(site, document, reader, columns, schemas)
    return tool if len(faults.found) == before else None


def layers_of(site: Site, document: ToolDocument) -> frozenset[Layer]:
    """Say which layers judge the tool: what its class implies, what it asks for, and what its sections need."""
    implied = _IMPLIED[document.effect_class]
    asked = frozenset(Layer(name) for name in document.layers) if document.layers is not None else implied
    if missing := sorted(implied - asked):
        message = f"a {document.effect_class} tool can't do without {', '.join(missing)}"
        site.fault(("layers",), message, f"{', '.join(sorted(implied))}, and more if wanted")
    layers = implied | asked
    if document.facts or document.rules or document.history or document.values:
        layers |= {Layer.SEMANTIC}
    if document.sandbox is not None:
        layers |= {Layer.SANDBOX}
    if document.risk is not None:
        layers |= {Layer.RISK}
    for layer, section, there in (
        (Layer.SEMANTIC, "rules", bool(document.rules)),
        (Layer.SANDBOX, "sandbox", document.sandbox is not None),
        (Layer.RISK, "risk", document.risk is not None),
    ):
        if layer in layers and not there:
            site.fault((), f"a {document.effect_class} tool with the layer {layer} has no `{section}`", f"the key `{section}`")
    if document.effect_class == "money" and not document.money and not document.holds:
        site.fault((), "a money tool doesn't say what money it moves", "`money: {/amount: {currency: /currency}}`, or `holds`")
    if document.effect_class == "read" and document.sandbox is not None:
        site.fault(("sandbox",), "a read tool has effects", "`effect_class: write` or more, or no `sandbox`")
    return layers


def _build(
    site: Site,
    document: ToolDocument,
    reader: ArgumentReader,
    columns: Mapping[str, tuple[FactColumn, ...]],
    schemas: Mapping[str, Mapping[str, object]],
) -> Tool | None:
    check_locales(site, ("description",), document.description)
    layers = layers_of(site, document)
    variables = frozenset(site.environment.variables)
    stored = variables - {"before", "after"}
    taken: set[str] = set()
    static = compile_rules(site, ("static_rules",), document.static_rules, taken, reader.variables.keys() & site.early, "isn't an argument")
    for name in (*document.facts, *document.values):
        if name in taken:
            path: Path_ = ("facts" if name in document.facts else "values", name)
            site.fault(path, f"the name `{name}` is taken", "a name for each rule, fact and value of the tool")
        taken.add(name)
    facts = tuple(filter(None, (_fact(site, name, fact, columns[name]) for name, fact in document.facts.items())))
    values = _values(site, document, stored)
    rules = compile_rules(site, ("rules",), document.rules, taken, stored, "is only there after the dry run")
    need = compile_need(site, document)
    for pointer in document.unbound:
        if not site.has_argument(pointer):
            site.fault(("unbound",), f"`{pointer}` isn't an argument of the tool", "JSON Pointers to arguments")
        elif pointer.count("/") != 1:
            site.fault(("unbound",), f"`{pointer}` is a part of an argument", "whole arguments, such as `/note`")
        elif pointer in document.money or re.search(
            rf"args\.{re.escape(pointer[1:])}\b", str((document.scope, document.holds, document.facts, document.sandbox))
        ):
            site.fault(
                ("unbound",), f"`{pointer}` decides what the call does, so an approval has to cover it", "arguments that nothing rests on"
            )
    history = tuple(filter(None, (_history(site, name, document, schemas) for name in document.history)))
    holds = tuple(filter(None, (_hold(site, name, document, stored) for name in document.holds)))
    sandbox = compile_sandbox(site, document.sandbox, stored) if document.sandbox else None
    risk = compile_risk(site, document.risk, stored) if document.risk else ()
    compensation = compile_compensation(site, document.compensation, schemas)
    try:
        own = digest(site.source.document)
    except CanonicalError as error:
        site.fault((), str(error), "values that JSON can hold")
        return None
    if need is None:
        return None
    return Tool(
        name=document.tool, description=document.description, effect_class=document.effect_class, layers=layers, arguments=reader,
        money=tuple(document.money), unbound=frozenset(document.unbound), need=need, environment=site.environment, static_rules=static,
        facts=facts, history=history, values=values, rules=rules, holds=holds, sandbox=sandbox, risk=risk,
        outcome_within_s=document.outcome.within_s, digest=own, compensation=compensation,
    )  # fmt: skip


def _money(document: ToolDocument) -> dict[str, MoneySource]:
    sources = {}
    for pointer, money in document.money.items():
        if money.currency.startswith("/"):
            sources[pointer] = MoneySource("pointer", money.currency)
        elif found := _VARIABLE.match(money.currency):
            sources[pointer] = MoneySource("variable", found[1])
        else:
            sources[pointer] = MoneySource("constant", money.currency)
    return sources


def _names_of(pointer: str) -> tuple[str, str]:
    name = "args" + pointer.replace("/", ".")
    return f"{name}.minor", f"{name}.currency"


def _reader(source: Source, document: ToolDocument, facts: Mapping[str, ValueType], faults: Faults) -> ArgumentReader | None:
    money = _money(document)
    for pointer, origin in money.items():
        if origin.kind == "variable" and facts.get(origin.value) is not ValueType.STRING:
            message = f"`{origin.value}` isn't a column of a fact"
            faults.at(source, ("money", pointer, "currency"), message, "a fact's currency such as `{order.paid.currency}`")
            return None
    try:
        reader = ArgumentReader(document.arguments, money, document.scales)
    except SchemaInvalid as error:
        where: Path_ = ("money", error.pointer) if error.pointer in document.money else ("scales", error.pointer)
        if error.pointer not in (*document.money, *document.scales):
            where = ("arguments", *_parts(error.pointer))
        faults.at(source, where, str(error), "a JSON Schema of draft 2020-12 that can be checked in linear time")
        return None
    for pointer in document.money:
        amount = property_at(reader.schema, pointer) or {}
        least = [each for key in ("minimum", "exclusiveMinimum") if isinstance(each := amount.get(key), int | Decimal)]
        if not least or max(least) < 0:  # a negative amount would give back to a budget what nobody spent
            faults.at(source, _in_schema(pointer), f"`{pointer}` is money and may be negative", "`minimum: 0` or `exclusiveMinimum: 0`")
    for misspelling in reader.misspellings:
        where = ("arguments", *_parts(misspelling.pointer))
        faults.at(source, where, f"`{where[-1]}` isn't a keyword of JSON Schema", f"{misspelling.meant}, or a name with `x-`")
    for each in reader.annotations:
        where = ("arguments", *_parts(each.pointer))
        faults.notes.add(PolicyNote(source.file, source.line(where), each.pointer, each.message))
    return reader


def _in_schema(pointer: str) -> Path_:
    """Give the place of an argument's own schema, where it isn't a reference."""
    return ("arguments", *(each for part in pointer.split("/")[1:] for each in ("properties", part)))


def _parts(pointer: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _columns(source: Source, path: Path_, document: FactDocument, faults: Faults) -> tuple[FactColumn, ...]:
    columns = []
    for name, kind in document.columns.items():
        if isinstance(kind, Mapping):
            money = read_shape(source, kind, (*path, name), MoneyColumnDocument, faults)
            if money is not None:
                columns.append(FactColumn(name, "money", money.money, money.currency))
        elif kind in _COLUMN_TYPES:
            columns.append(FactColumn(name, kind))
        else:
            known = f"{', '.join(_COLUMN_TYPES)} or {{money: …, currency: …}}"
            faults.at(source, (*path, name), f"`{kind}` isn't a type of a column", known)
    return tuple(columns)


def _fact_variables(facts: Mapping[str, tuple[FactColumn, ...]]) -> dict[str, ValueType]:
    variables: dict[str, ValueType] = {}
    for name, columns in facts.items():
        for column in columns:
            if column.type == "money":
                variables |= {f"{name}.{column.name}.minor": ValueType.INT, f"{name}.{column.name}.currency": ValueType.STRING}
            else:
                variables[f"{name}.{column.name}"] = _COLUMN_TYPES[column.type]
    return variables


def _environment(
    source: Source, document: ToolDocument, reader: ArgumentReader, facts: Mapping[str, ValueType], faults: Faults
) -> Environment | None:
    """Declare everything that some expression of the tool may see."""
    names: dict[str, str] = {}
    for section, keys in (("facts", document.facts), ("values", document.values)):
        for name in keys:
            if name in RESERVED_NAMES or name in names:
                faults.at(source, (section, name), f"`{name}` can't be the name of a fact or value", "a name that nothing else has")
                return None
            names[name] = section
    variables = {**BASE_VARIABLES, **reader.variables, **facts}
    variables |= {f"history.{name}.count": ValueType.INT for name in document.history}
    for name in document.holds:
        variables |= {f"account.{name}.held.minor": ValueType.INT, f"account.{name}.spent.minor": ValueType.INT}
    for name in document.values:
        variables |= {f"{name}.minor": ValueType.INT, f"{name}.currency": ValueType.STRING}
    variables |= {"before": ValueType.ROWS, "after": ValueType.ROWS}
    tables: dict[str, list[object]] = {table: [] for table in watched(document.sandbox)} if document.sandbox else {}
    try:
        return Environment(variables, {**reader.samples, "before": tables, "after": tables})
    except ExpressionInvalid as error:
        faults.at(source, ("facts",), str(error), "names of letters, digits and _")
        return None


def _fact(site: Site, name: str, document: FactDocument, columns: tuple[FactColumn, ...]) -> Fact | None:
    path: Path_ = ("facts", name)
    selected = {each for column in columns for each in (column.minor_column, column.currency_column) if each}
    selected |= {column.name for column in columns if column.type != "money"}
    missing = compile_refusal(site, (*path, "missing"), document.missing, site.early, NO_STATE)
    try:
        statement = compile_fact(document.sql, document.bind, site.environment, frozenset(selected), document.shared)
    except StatementInvalid as error:
        where = (*path, "bind", error.bind) if error.bind else (*path, "sql")
        line = None if error.bind else site.source.text_line(where, error.line)
        site.faults.at(site.source, where, str(error), "one SELECT with `:name` binds", line)
        return None
    for bind, expression in statement.binds:
        if others := sorted(expression.uses - site.early):
            message = f"reads `{others[0]}`, which {NO_STATE}"
            site.fault((*path, "bind", bind), message, "arguments and the principal; all facts are read at once")
    return Fact(name, statement, columns, missing) if missing is not None else None


def _values(site: Site, document: ToolDocument, stored: Collection[str]) -> tuple[Value, ...]:
    """Compile the named amounts in their order; one may use those above it."""
    later = {each for name in document.values for each in (f"{name}.minor", f"{name}.currency")}
    values = []
    for name, value in document.values.items():
        allowed = frozenset(stored) - later
        why = "is defined further down or by itself"
        minor = site.expression(("values", name, "minor"), value.minor, ValueType.INT, allowed, why)
        currency = site.expression(("values", name, "currency"), value.currency, ValueType.STRING, allowed, why)
        if minor is not None and currency is not None:
            values.append(Value(name, minor, currency))
        later -= {f"{name}.minor", f"{name}.currency"}
    return tuple(values)


def _hold(site: Site, name: str, document: ToolDocument, stored: Collection[str]) -> HoldRule | None:
    hold, path = document.holds[name], ("holds", name)
    on = site.template((*path, "on"), hold.on, "exact", site.early, NO_STATE)
    refuse_optional(site, (*path, "on"), on)
    if not _ACCOUNT.match(hold.on):
        site.fault((*path, "on"), f"`{hold.on}` isn't an account", "`kind:path` such as `order:{args.order_id}`")
    elif on is not None and not on.uses and not hold.shared:
        message = f"all calls would hold on the one account `{hold.on}`"
        site.fault((*path, "on"), message, "an account such as `order:{args.order_id}`, or `shared: true`")
    quantity = site.template((*path, "quantity"), hold.quantity, "exact", stored, "is only there after the dry run")
    limit = site.template((*path, "limit"), hold.limit, "exact", stored, "is only there after the dry run")
    for key, value in (("quantity", hold.quantity), ("limit", hold.limit)):
        if not is_money(site, value):
            site.fault((*path, key), f"`{value}` isn't an amount of money", "one `{path}` such as `{args.amount}`")
    return HoldRule(name, on, quantity, limit) if on and quantity and limit else None


def _history(site: Site, name: str, document: ToolDocument, schemas: Mapping[str, Mapping[str, object]]) -> HistoryQuery | None:
    query, path = document.history[name], ("history", name)
    counted = schemas.get(query.tool)
    if counted is None:
        site.fault((*path, "tool"), f"there is no tool `{query.tool}`", f"one of {', '.join(sorted(schemas))}")
        return None
    for pointer in query.match:
        if not site.has_argument(pointer) or not declares(counted, pointer):
            site.fault((*path, "match"), f"`{pointer}` isn't an argument of both tools", "JSON Pointers to arguments that both have")
    return HistoryQuery(name, query.tool, tuple(query.match), frozenset(query.statuses), query.within_s, query.level)

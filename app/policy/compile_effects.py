"""The dry run and the risk of a tool. Every table that an effect writes is watched and limited: what nobody sees nobody approves."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from app.policy.document import PredictionDocument, RiskDocument, SandboxDocument
from app.policy.expressions import ValueType
from app.policy.model import Effect, Invariant, Prediction, RiskFactor, SandboxPlan, Watch
from app.policy.reading import Path_
from app.policy.site import Site
from app.policy.statements import ROWS_MAX, StatementInvalid, compile_effect

_TABLE_READ = re.compile(r"\b(?:before|after)\s*\[\s*[\"']([^\"']+)[\"']\s*\]")
_ROWS_READ = re.compile(r"\b(?:before|after)\b")
_SIDES: Mapping[str, tuple[bool, bool]] = {"insert": (False, True), "update": (True, True), "delete": (True, False)}
_CLOCK = "now"


def compile_sandbox(site: Site, document: SandboxDocument, stored: Collection[str]) -> SandboxPlan:
    """Compile the plan; faults are added."""
    _check_strategy(site, document)
    watch = watched(document)
    limits = {table: {str(verb): most for verb, most in verbs.items()} for table, verbs in document.limits.items()}
    many = {table: (*each.key, *each.columns) for table, each in watch.items() if sum(limits.get(table, {}).values()) > ROWS_MAX}
    effects = tuple(filter(None, (_effect(site, document, index, stored, many) for index in range(len(document.statements)))))
    predictions = tuple(filter(None, (_prediction(site, each, index, stored) for index, each in enumerate(document.predict))))
    written = {effect.table for effect in effects} | {each.table for each in document.predict}
    for table in sorted(written):
        for key, there in (("watch", watch), ("limits", limits)):
            if table not in there:
                site.fault(("sandbox", key), f"`{key}` doesn't name `{table}`, which a statement writes", f"`{table}` in `{key}`")
    for table in document.watch:
        if effects and table not in written:
            site.fault(("sandbox", "watch", table), f"no statement writes `{table}`", f"one of {', '.join(sorted(written))}")
    invariants = _invariants(site, document, watch, limits)
    return SandboxPlan(document.strategy, effects, predictions, watch, invariants, limits)


def watched(document: SandboxDocument) -> dict[str, Watch]:
    """Give the tables that the dry run shows, with their columns; of predictions, what they predict."""
    watch = {table: Watch(tuple(each.key), tuple(each.columns)) for table, each in document.watch.items()}
    for each in document.predict:
        known = watch.get(each.table, Watch((), ()))
        keys = (*known.key, *(name for name in each.key if name not in known.key))
        columns = dict.fromkeys((*known.columns, *(each.before or {}), *(each.after or {})))
        watch[each.table] = Watch(keys, tuple(columns))
    return watch


def compile_risk(site: Site, document: RiskDocument, stored: Collection[str]) -> tuple[RiskFactor, ...]:
    """Compile the factors; a negative weight lowers the score."""
    factors = []
    names: set[str] = set()
    for index, factor in enumerate(document.factors):
        path: Path_ = ("risk", "factors", index)
        if factor.factor in names:
            site.fault((*path, "factor"), f"the name `{factor.factor}` is taken", "a name for each factor")
        names.add(factor.factor)
        value = site.expression((*path, "value"), factor.value, ValueType.DOUBLE, stored, "a factor can't read")
        if value is not None:
            factors.append(RiskFactor(factor.factor, factor.weight, value))
    if not any(factor.weight > 0 for factor in document.factors):
        site.fault(("risk", "factors"), "no factor raises the score, so nothing is ever asked or refused", "a factor with a weight above 0")
    return tuple(factors)


def _check_strategy(site: Site, document: SandboxDocument) -> None:
    """Refuse a plan that says what it changes in the other strategy's words, or not at all."""
    own, other = ("predict", ("statements", "watch")) if document.strategy == "mock" else ("statements", ("predict",))
    if not getattr(document, own):
        site.fault(("sandbox",), f"a sandbox with the strategy `{document.strategy}` has no `{own}`", f"the key `{own}`")
    for key in other:
        if getattr(document, key):
            site.fault(("sandbox", key), f"`{key}` isn't of the strategy `{document.strategy}`", f"`{own}` only")


def _invariants(
    site: Site, document: SandboxDocument, watch: Mapping[str, Watch], limits: Mapping[str, Mapping[str, int]]
) -> tuple[Invariant, ...]:
    found = []
    names: set[str] = set()
    for index, invariant in enumerate(document.invariants):
        path: Path_ = ("sandbox", "invariants", index)
        if invariant.invariant in names:
            site.fault((*path, "invariant"), f"the name `{invariant.invariant}` is taken", "a name for each invariant")
        names.add(invariant.invariant)
        for table in _TABLE_READ.findall(invariant.require):
            if table not in watch:
                site.fault((*path, "require"), f"reads `{table}`, which isn't watched", f"one of {', '.join(sorted(watch))}")
            elif sum(limits.get(table, {}).values()) > ROWS_MAX:
                message = f"reads `{table}`, of which up to {sum(limits[table].values())} rows may change; a dry run keeps {ROWS_MAX}"
                site.fault((*path, "require"), message, f"a limit of at most {ROWS_MAX} rows, or no invariant over the table")
        require = site.expression((*path, "require"), invariant.require, ValueType.BOOL)
        if require is not None:
            tables = _TABLE_READ.findall(invariant.require)
            certain = len(tables) == len(_ROWS_READ.findall(invariant.require))
            found.append(Invariant(invariant.invariant, require, frozenset(tables) if certain else None))
    return tuple(found)


def _effect(
    site: Site, document: SandboxDocument, index: int, stored: Collection[str], many: Mapping[str, tuple[str, ...]]
) -> Effect | None:
    path: Path_ = ("sandbox", "statements", index)
    statement = document.statements[index]
    try:
        effect = compile_effect(statement.sql, statement.bind, site.environment, statement.shared, many)
    except StatementInvalid as error:
        where = (*path, "bind", error.bind) if error.bind else (*path, "sql")
        line = None if error.bind else site.source.text_line(where, error.line)
        site.faults.at(site.source, where, str(error), "one INSERT, UPDATE, DELETE or MERGE with `:name` binds", line)
        return None
    for bind, expression in effect.statement.binds:
        if others := sorted(expression.uses - frozenset(stored)):
            site.fault((*path, "bind", bind), f"reads `{others[0]}`, which is only there after the dry run", "arguments, facts and values")
    return effect


def _prediction(site: Site, document: PredictionDocument, index: int, stored: Collection[str]) -> Prediction | None:
    path: Path_ = ("sandbox", "predict", index)
    allowed = frozenset(stored) - {_CLOCK}
    why = "isn't the same when the call is tried again"
    wanted = dict(zip(("before", "after"), _SIDES[document.operation], strict=True))
    for side, there in wanted.items():
        if (getattr(document, side) is not None) is not there:
            message = f"a predicted {document.operation} has {'a' if there else 'no'} `{side}`"
            site.fault((*path, side) if not there else path, message, f"{'the' if there else 'no'} key `{side}`")
    key = site.template((*path, "key"), dict(document.key), "exact", allowed, why)
    sides = [
        None if columns is None else site.template((*path, side), dict(columns), "exact", allowed, why)
        for side, columns in (("before", document.before), ("after", document.after))
    ]
    if key is None:
        return None
    return Prediction(document.table, document.operation, key, sides[0], sides[1])

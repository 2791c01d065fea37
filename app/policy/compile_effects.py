"""The dry run and the risk of a tool. Every table that an effect writes is watched and limited: what nobody sees nobody approves."""

from __future__ import annotations

import re
from collections.abc import Collection

from app.policy.document import RiskDocument, SandboxDocument
from app.policy.expressions import ValueType
from app.policy.model import Effect, Invariant, RiskFactor, SandboxPlan, Watch
from app.policy.reading import Path_
from app.policy.site import Site
from app.policy.statements import StatementInvalid, compile_effect

_TABLE_READ = re.compile(r"\b(?:before|after)\s*\[\s*[\"']([^\"']+)[\"']\s*\]")


def compile_sandbox(site: Site, document: SandboxDocument, stored: Collection[str]) -> SandboxPlan:
    """Compile the plan; faults are added."""
    effects = tuple(filter(None, (_effect(site, document, index, stored) for index in range(len(document.statements)))))
    written = {effect.table for effect in effects}
    for table in sorted(written):
        for key in ("watch", "limits"):
            if table not in getattr(document, key):
                site.fault(("sandbox", key), f"`{key}` doesn't name `{table}`, which a statement writes", f"`{table}` in `{key}`")
    for table in document.watch:
        if effects and table not in written:
            site.fault(("sandbox", "watch", table), f"no statement writes `{table}`", f"one of {', '.join(sorted(written))}")
    invariants = []
    names: set[str] = set()
    for index, invariant in enumerate(document.invariants):
        path: Path_ = ("sandbox", "invariants", index)
        if invariant.invariant in names:
            site.fault((*path, "invariant"), f"the name `{invariant.invariant}` is taken", "a name for each invariant")
        names.add(invariant.invariant)
        for table in _TABLE_READ.findall(invariant.require):
            if table not in document.watch:
                site.fault((*path, "require"), f"reads `{table}`, which isn't watched", f"one of {', '.join(sorted(document.watch))}")
        require = site.expression((*path, "require"), invariant.require, ValueType.BOOL)
        if require is not None:
            invariants.append(Invariant(invariant.invariant, require))
    watch = {table: Watch(tuple(each.key), tuple(each.columns)) for table, each in document.watch.items()}
    limits = {table: {str(verb): most for verb, most in verbs.items()} for table, verbs in document.limits.items()}
    return SandboxPlan(document.strategy, effects, watch, tuple(invariants), limits)


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


def _effect(site: Site, document: SandboxDocument, index: int, stored: Collection[str]) -> Effect | None:
    path: Path_ = ("sandbox", "statements", index)
    statement = document.statements[index]
    try:
        effect = compile_effect(statement.sql, statement.bind, site.environment, statement.shared)
    except StatementInvalid as error:
        where = (*path, "bind", error.bind) if error.bind else (*path, "sql")
        line = None if error.bind else site.source.text_line(where, error.line)
        site.faults.at(site.source, where, str(error), "one INSERT, UPDATE, DELETE or MERGE with `:name` binds", line)
        return None
    for bind, expression in effect.statement.binds:
        if others := sorted(expression.uses - frozenset(stored)):
            site.fault((*path, "bind", bind), f"reads `{others[0]}`, which is only there after the dry run", "arguments, facts and values")
    return effect

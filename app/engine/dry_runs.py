"""From a tool's sandbox plan to the effects that the database tries, and from what it says back to a value."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.decision import Layer
from app.engine.prepare_call import statement_values
from app.guards.context import DryRun, Evidence
from app.guards.pipeline import Prepared
from app.guards.semantic import check_semantic
from app.policy.expressions import Bindings, ExpressionFailed
from app.storage import decision_batch as stored

TIMED_OUT = "57014"
"""The SQLSTATE of a statement that was cancelled: what wasn't reached counts as it, and may be tried again."""

VALUE_MISSING = "22004"
"""The SQLSTATE of a null where none is allowed: a bind has no value."""


def dry_run_ask(index: int, prepared: Prepared, evidence: Evidence, tenant: str) -> stored.DryRunAsk | None:
    """Give a call's effects with their values, or None where a value isn't there."""
    plan = prepared.context.tool.sandbox
    assert plan is not None and prepared.bindings is not None
    bindings = effect_bindings(prepared, evidence)
    try:
        binds = tuple(statement_values(effect.statement, bindings, tenant) for effect in plan.effects)
    except ExpressionFailed:
        return None
    return stored.DryRunAsk(index, tenant, tuple(effect.statement.sql for effect in plan.effects), binds)


def effect_bindings(prepared: Prepared, evidence: Evidence) -> Bindings:
    """Give the bindings that effects read: arguments, and facts where the semantic layer read them."""
    assert prepared.bindings is not None
    if Layer.SEMANTIC not in prepared.context.tool.layers:
        return prepared.bindings
    return check_semantic(prepared.context, prepared.bindings, evidence, prepared.accounts.resources).bindings


def dry_run_of(found: Mapping[str, object] | None) -> DryRun:
    """Read what the database says of one call's effects; one that wasn't reached counts as busy."""
    if found is None:
        return DryRun(failed=TIMED_OUT)
    if "failed" in found:
        names = (str(found.get(name) or "") for name in ("constraint", "table", "column"))
        return DryRun((), None, str(found["failed"]), *names)
    rows, counts = found["rows"], found["counts"]
    assert isinstance(rows, list) and isinstance(counts, dict)
    pairs = tuple(tuple((pair[0], pair[1]) for pair in statement) for statement in rows)
    return DryRun(pairs, {table: (numbers[0], numbers[1], numbers[2]) for table, numbers in counts.items()})

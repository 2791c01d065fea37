"""From a tool's sandbox plan to the effects that the database tries, and from what it says back to a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from app.engine.prepare_call import statement_values
from app.guards.context import DryRun
from app.guards.pipeline import Prepared
from app.guards.semantic import SemanticVerdict
from app.policy.expressions import ExpressionFailed
from app.storage import decision_batch as stored

TIMED_OUT = "57014"
"""The SQLSTATE of a statement that was cancelled: what wasn't reached counts as it, and may be tried again."""

VALUE_MISSING = "22004"
"""The SQLSTATE of a null where none is allowed: a bind has no value."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A batch's open transaction, with what its connection has prepared."""

    connection: asyncpg.Connection
    prepared: stored.Prepared
    tables: stored.CountedTables


def dry_run_ask(index: int, prepared: Prepared, semantic: SemanticVerdict | None, tenant: str) -> stored.DryRunAsk | None:
    """Give a call's effects with their values, or None where a value isn't there. `semantic` brings the facts that effects may read."""
    plan, bindings = prepared.context.tool.sandbox, semantic.bindings if semantic is not None else prepared.bindings
    assert plan is not None
    assert bindings is not None
    try:
        binds = tuple(statement_values(effect.statement, bindings, tenant) for effect in plan.effects)
    except ExpressionFailed:
        return None
    return stored.DryRunAsk(index, tenant, tuple(effect.statement.sql for effect in plan.effects), binds)


def dry_run_of(found: Mapping[str, object] | None) -> DryRun:
    """Read what the database says of one call's effects; one that wasn't reached counts as busy."""
    if found is None:
        return DryRun(failed=TIMED_OUT)
    if "failed" in found:
        constraint, table, column = (str(found.get(name) or "") for name in ("constraint", "table", "column"))
        return DryRun(failed=str(found["failed"]), constraint=constraint, table=table, column=column)
    rows, counts = found["rows"], found["counts"]
    assert isinstance(rows, list) and isinstance(counts, dict)
    omitted = {}
    for index, statement in enumerate(rows):
        if statement and isinstance(statement[-1], dict):  # what the SQL says of the rows that it leaves out
            left_out = statement.pop()
            omitted[index] = (int(left_out["omitted"]), str(left_out["digest"]))
    pairs = tuple(tuple((pair[0], pair[1]) for pair in statement) for statement in rows)
    return DryRun(pairs, {table: (numbers[0], numbers[1], numbers[2]) for table, numbers in counts.items()}, omitted=omitted)

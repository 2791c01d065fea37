"""The `transaction` strategy: judges what the effects did before they were rolled back (SPEC S3.6).

The engine runs the effects; here their result becomes the side effects of the answer, and limits and invariants decide. Nothing that the
database said in words goes into an answer: it may hold values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.encoding import canonical_digest
from app.guards.context import DryRun, LayerVerdict, Refused
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import SandboxPlan, Tool, Watch

RETRY_AFTER_MS = 500
BUSY_STATES = frozenset({"57014", "55P03", "40P01", "40001", "53300"})
_VERBS = ("inserted", "updated", "deleted")

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SandboxVerdict:
    verdict: LayerVerdict
    side_effects: Mapping[str, object] | None = None


def check_transaction(tool: Tool, bindings: Bindings, dry_run: DryRun) -> SandboxVerdict:
    """Judge a dry run: did it run, did it touch only what the tool may touch, do the invariants hold afterwards."""
    plan = tool.sandbox
    assert plan is not None
    if dry_run.failed is not None:
        return SandboxVerdict(_failed(dry_run))
    counts = dict(dry_run.counts or {})
    touched = _touched(plan, dry_run)
    side_effects = _side_effects(touched, counts)
    checks = [accepted("dry_run")]
    refused: Refused | None = None
    for check in _limit_checks(plan, counts):
        checks.append(check)
        if check.outcome is Outcome.DENIED:
            refused = refused or _refuse(check, DenialClass.STATE, Retryable.AFTER_CHANGE)
    values = {**bindings.values, "before": _rows(touched, 0), "after": _rows(touched, 1)}
    for invariant in plan.invariants:
        try:
            holds = invariant.require.evaluate(tool.environment.bind_used(values, invariant.require)) is True
            reason, message = Reason.INVARIANT_BROKEN, f"the call would break the invariant {invariant.name}"
        except ExpressionFailed:
            holds, reason, message = (
                False,
                Reason.RULE_ERROR,
                f"the invariant {invariant.name} could not be evaluated, so the call is refused",
            )
        if holds:
            checks.append(accepted(invariant.name))
        else:
            check = Check(invariant.name, Outcome.DENIED, reason, message=message)
            checks.append(check)
            refused = refused or _refuse(check, DenialClass.STATE, Retryable.AFTER_CHANGE)
    outcome = Outcome.DENIED if refused else Outcome.ACCEPTED
    return SandboxVerdict(LayerVerdict(LayerResult(Layer.SANDBOX, outcome, tuple(checks)), refused), side_effects)


@dataclass(frozen=True, slots=True)
class _Touched:
    table: str
    watch: Watch
    before: Row | None
    after: Row | None

    @property
    def key(self) -> dict[str, object]:
        row = self.after if self.after is not None else self.before
        assert row is not None
        return {name: row.get(name) for name in self.watch.key}


def _touched(plan: SandboxPlan, dry_run: DryRun) -> list[_Touched]:
    found: list[_Touched] = []
    for effect, pairs in zip(plan.effects, dry_run.rows, strict=True):
        watch = plan.watch.get(effect.table)
        if watch is not None:
            found.extend(_Touched(effect.table, watch, old, new) for old, new in pairs if old is not None or new is not None)
    return found


def _side_effects(touched: list[_Touched], counts: Mapping[str, tuple[int, int, int]]) -> Mapping[str, object]:
    rows = []
    for each in touched:
        operation = "insert" if each.before is None else "delete" if each.after is None else "update"
        columns = [name for name in each.watch.columns if name not in each.watch.key]
        if each.before is not None and each.after is not None:
            columns = [name for name in columns if each.before.get(name) != each.after.get(name)]
        rows.append(
            {
                "table": each.table,
                "operation": operation,
                "key": each.key,
                "before": None if each.before is None else {name: each.before.get(name) for name in columns},
                "after": None if each.after is None else {name: each.after.get(name) for name in columns},
            }
        )
    effects: dict[str, object] = {
        "strategy": "transaction",
        "rows": rows,
        "counts": {table: dict(zip(_VERBS, numbers, strict=True)) for table, numbers in sorted(counts.items())},
    }
    return {**effects, "digest": canonical_digest(effects)}


def _rows(touched: list[_Touched], side: int) -> dict[str, list[dict[str, object]]]:
    tables: dict[str, list[dict[str, object]]] = {}
    for each in touched:
        row = (each.before, each.after)[side]
        rows = tables.setdefault(each.table, [])
        if row is not None:
            rows.append({name: _plain(row.get(name)) for name in (*each.watch.key, *each.watch.columns)})
    return tables


def _plain(value: object) -> object:
    """Give a value that CEL takes: a whole Decimal as an int; another one as text, so that comparing it fails instead of rounding."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    return value


def _limit_checks(plan: SandboxPlan, counts: Mapping[str, tuple[int, int, int]]) -> list[Check]:
    checks = []
    for table in sorted({*plan.limits, *counts}):
        allowed = plan.limits.get(table, {})
        for verb, number in zip(_VERBS, counts.get(table, (0, 0, 0)), strict=True):
            most = allowed.get(verb, 0)
            if number > most:
                message = f"the call would change more than it may: {number} rows {verb} in {table}, at most {most} are allowed"
                checks.append(
                    Check(
                        f"{table}.{verb}", Outcome.DENIED, Reason.BLAST_RADIUS_EXCEEDED, fact=f"effects.{table}.{verb}", actual=number,
                        expected={"maximum": most}, message=message,
                    )
                )  # fmt: skip
    return checks or [accepted("limits")]


def _failed(dry_run: DryRun) -> LayerVerdict:
    if dry_run.failed in BUSY_STATES:
        message = "the effects could not be tried just now because the data is in use; send the same call again in a moment"
        check = Check("dry_run", Outcome.DENIED, Reason.SANDBOX_BUSY, message=message)
        refused = _refuse(check, DenialClass.TRANSIENT, Retryable.AFTER_DELAY)
    else:
        where = ", ".join(
            f"{word} {name}"
            for word, name in (("constraint", dry_run.constraint), ("table", dry_run.table), ("column", dry_run.column))
            if name
        )
        message = f"trying the call failed{f' at {where}' if where else ''} (SQLSTATE {dry_run.failed}); the call would not have worked"
        check = Check("dry_run", Outcome.DENIED, Reason.SANDBOX_FAILED, message=message)
        refused = _refuse(check, DenialClass.STATE, Retryable.AFTER_CHANGE)
    return LayerVerdict(LayerResult(Layer.SANDBOX, Outcome.DENIED, (check,)), refused)


def _refuse(check: Check, denial_class: DenialClass, retryable: Retryable) -> Refused:
    delayed = retryable is Retryable.AFTER_DELAY
    hint = FixHint(
        denial_class,
        retryable,
        check.message or "",
        NextAction(NextActionKind.WAIT if delayed else NextActionKind.CALL_AGAIN),
        fact=check.fact,
        actual=check.actual,
        expected=check.expected,
        retry_after_ms=RETRY_AFTER_MS if delayed else None,
    )
    return Refused(Decision.DENIED, Layer.SANDBOX, str(check.reason), hint, check.name)

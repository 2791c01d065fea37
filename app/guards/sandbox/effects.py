"""Judges what a call would change, whichever strategy saw it: limits and invariants decide, and the answer shows the rows (SPEC S3.6).

The digest covers every row, shown or not: an approval is bound to it. An invariant over rows that aren't all here doesn't hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from app.domain.decision import Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass
from app.domain.wording import Locales, say
from app.encoding import canonical_digest, canonical_text
from app.guards.context import LayerVerdict, Refused
from app.guards.refusal import refusal_of
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import Invariant, SandboxPlan, Tool, Watch

ROWS_SHOWN_MAX = 100
_VERBS = ("inserted", "updated", "deleted")

Row = Mapping[str, object]
Counts = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Touched:
    """One row before and after; None for the side that isn't there."""

    table: str
    watch: Watch
    before: Row | None
    after: Row | None

    @property
    def key(self) -> dict[str, object]:
        row = self.after if self.after is not None else self.before
        assert row is not None
        return {name: row.get(name) for name in self.watch.key}


@dataclass(frozen=True, slots=True)
class SeenEffects:
    """What a strategy saw. `counts` are exact: table -> (inserted, updated, deleted); `cut` are the tables of which rows are left out,
    with the digests that stand for them."""

    strategy: str
    rows: Sequence[Touched]
    counts: Counts
    cut: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxVerdict:
    verdict: LayerVerdict
    side_effects: Mapping[str, object] | None = None


def judge_effects(tool: Tool, bindings: Bindings, seen: SeenEffects, locales: Locales) -> SandboxVerdict:
    """Say whether the call touches only what the tool may touch, and whether the invariants hold afterwards."""
    plan = tool.sandbox
    assert plan is not None
    checks = [accepted("dry_run"), *_limit_checks(plan, seen.counts, locales)]
    if plan.invariants:
        values = {**bindings.values, "before": _by_table(seen.rows, 0), "after": _by_table(seen.rows, 1)}
        checks += [_invariant_check(tool, each, values, seen.cut, locales) for each in plan.invariants]
    refused = _first_refusal(checks)
    outcome = Outcome.DENIED if refused else Outcome.ACCEPTED
    return SandboxVerdict(LayerVerdict(LayerResult(Layer.SANDBOX, outcome, tuple(checks)), refused), _side_effects(seen))


def in_order(rows: Iterable[Touched]) -> list[Touched]:
    """Sort rows by their key, because a database gives them in any order and the digest must be the same on the next try."""
    found = list(rows)
    return sorted(found, key=lambda each: canonical_text(each.key)) if len(found) > 1 else found


def _first_refusal(checks: Sequence[Check]) -> Refused | None:
    denied = next((check for check in checks if check.outcome is Outcome.DENIED), None)
    return refusal_of(Layer.SANDBOX, denied, DenialClass.STATE) if denied is not None else None


def _limit_checks(plan: SandboxPlan, counts: Counts, locales: Locales) -> list[Check]:
    checks = []
    for table in sorted({*plan.limits, *counts}):
        allowed = plan.limits.get(table, {})
        for verb, number in zip(_VERBS, counts.get(table, (0, 0, 0)), strict=True):
            most = allowed.get(verb, 0)
            if number > most:
                message = say(
                    locales, "over_blast_radius", number=number, verb=say(locales, f"rows_{verb}"), table=table, most=most
                )  # fmt: skip
                checks.append(
                    Check(
                        f"{table}.{verb}", Outcome.DENIED, Reason.BLAST_RADIUS_EXCEEDED, fact=f"effects.{table}.{verb}", actual=number,
                        expected={"maximum": most}, message=message,
                    )
                )  # fmt: skip
    return checks or [accepted("limits")]


def _invariant_check(tool: Tool, invariant: Invariant, values: Mapping[str, object], cut: Mapping[str, object], locales: Locales) -> Check:
    try:
        if cut and (invariant.reads is None or invariant.reads & cut.keys()):
            raise ExpressionFailed("rows that the invariant is about are left out")
        if invariant.require.evaluate(tool.environment.bind_used(values, invariant.require)) is True:
            return accepted(invariant.name)
        reason, sentence = Reason.INVARIANT_BROKEN, "invariant_broken"
    except ExpressionFailed:
        reason, sentence = Reason.RULE_ERROR, "invariant_error"
    return Check(invariant.name, Outcome.DENIED, reason, message=say(locales, sentence, name=invariant.name))


def _side_effects(seen: SeenEffects) -> Mapping[str, object]:
    rows = [_shown(each) for each in seen.rows]
    effects: dict[str, object] = {
        "strategy": seen.strategy,
        "rows": rows,
        "counts": {table: dict(zip(_VERBS, numbers, strict=True)) for table, numbers in sorted(seen.counts.items())},
    }
    if not seen.cut and len(rows) <= ROWS_SHOWN_MAX:
        return {**effects, "digest": canonical_digest(effects)}
    digests = {table: list(each) for table, each in sorted(seen.cut.items())}
    total = max(len(rows), sum(sum(seen.counts.get(table, ())) for table in {each.table for each in seen.rows}))
    shown = rows[:ROWS_SHOWN_MAX]
    return {**effects, "rows": shown, "rows_omitted": total - len(shown), "digest": canonical_digest({**effects, "omitted": digests})}


def _shown(each: Touched) -> dict[str, object]:
    columns = [name for name in each.watch.columns if name not in each.watch.key]
    if each.before is not None and each.after is not None:
        columns = [name for name in columns if each.before.get(name) != each.after.get(name)]
    return {
        "table": each.table,
        "operation": "insert" if each.before is None else "delete" if each.after is None else "update",
        "key": each.key,
        "before": None if each.before is None else {name: each.before.get(name) for name in columns},
        "after": None if each.after is None else {name: each.after.get(name) for name in columns},
    }


def _by_table(touched: Iterable[Touched], side: int) -> dict[str, list[dict[str, object]]]:
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

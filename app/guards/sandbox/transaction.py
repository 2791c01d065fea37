"""The `transaction` strategy: what the effects did before they were rolled back (SPEC S3.6).

The engine runs the effects; here their result is read. Nothing that the database said in words goes into an answer: it may hold values.
"""

from __future__ import annotations

from app.domain.decision import Check, Layer, Outcome, Reason
from app.domain.hint import WAIT, DenialClass, Retryable
from app.domain.wording import Locales, say
from app.guards.context import DryRun, LayerVerdict
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.sandbox.effects import SandboxVerdict, SeenEffects, Touched, in_order, judge_effects
from app.policy.expressions import Bindings
from app.policy.model import SandboxPlan, Tool
from app.policy.statements import ROWS_MAX

RETRY_AFTER_MS = 500
BUSY_STATES = frozenset({"57014", "55P03", "40P01", "40001", "53300"})


def check_transaction(tool: Tool, bindings: Bindings, dry_run: DryRun, locales: Locales) -> SandboxVerdict:
    """Judge a dry run: did it run, and may the tool do what it did."""
    assert tool.sandbox is not None
    if dry_run.failed is not None:
        return SandboxVerdict(_failed(dry_run, locales))
    return judge_effects(tool, bindings, _seen(tool.sandbox, dry_run), locales)


def _seen(plan: SandboxPlan, dry_run: DryRun) -> SeenEffects:
    rows: list[Touched] = []
    cut: dict[str, list[str]] = {}
    for index, (effect, pairs) in enumerate(zip(plan.effects, dry_run.rows, strict=True)):
        watch = plan.watch.get(effect.table)
        if watch is None:
            continue
        rows += in_order(Touched(effect.table, watch, old, new) for old, new in pairs if old is not None or new is not None)
        if index in dry_run.omitted:
            cut.setdefault(effect.table, []).append(dry_run.omitted[index][1])
        elif len(pairs) > ROWS_MAX:  # more than any limit that its SQL was made for: refused, whatever the rest of the rows are
            cut.setdefault(effect.table, [])
    return SeenEffects("transaction", rows, dict(dry_run.counts or {}), cut)


def _failed(dry_run: DryRun, locales: Locales) -> LayerVerdict:
    if dry_run.failed in BUSY_STATES:
        check = Check("dry_run", Outcome.DENIED, Reason.SANDBOX_BUSY, message=say(locales, "sandbox_busy"))
        return layer_refuses(
            refusal_of(Layer.SANDBOX, check, DenialClass.TRANSIENT, Retryable.AFTER_DELAY, WAIT, retry_after_ms=RETRY_AFTER_MS), (check,)
        )
    names = (("constraint", dry_run.constraint), ("table", dry_run.table), ("column", dry_run.column))
    place = ", ".join(f"{word} {name}" for word, name in names if name)
    message = say(locales, "sandbox_failed_at" if place else "sandbox_failed", place=place, state=dry_run.failed)
    check = Check("dry_run", Outcome.DENIED, Reason.SANDBOX_FAILED, message=message)
    return layer_refuses(refusal_of(Layer.SANDBOX, check, DenialClass.STATE), (check,))

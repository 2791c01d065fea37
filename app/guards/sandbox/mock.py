"""The `mock` strategy: a pure function of the call and what was read for it says what the effects would be (SPEC S3.6).

For what can't be tried, such as a message that is sent. Nothing is asked of a database, and the clock isn't read: the same call has the
same digest on every try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from app.domain.decision import Check, Layer, Outcome, Reason
from app.domain.hint import STOP, DenialClass
from app.domain.wording import Locales, say
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.sandbox.effects import SandboxVerdict, SeenEffects, Touched, judge_effects
from app.policy.expressions import Bindings
from app.policy.model import Prediction, SandboxPlan, Tool
from app.policy.templates import Template, TemplateFailed


def check_mock(tool: Tool, bindings: Bindings, locales: Locales) -> SandboxVerdict:
    """Predict the effects and judge them; what can't be predicted is refused."""
    assert tool.sandbox is not None
    try:
        seen = predict(tool.sandbox, bindings)
    except TemplateFailed:
        check = Check("dry_run", Outcome.DENIED, Reason.SANDBOX_FAILED, message=say(locales, "sandbox_unpredicted"))
        return SandboxVerdict(layer_refuses(refusal_of(Layer.SANDBOX, check, DenialClass.STATE, action=STOP), (check,)))
    return judge_effects(tool, bindings, seen, locales)


def predict(plan: SandboxPlan, bindings: Bindings) -> SeenEffects:
    """Give the rows that a call would change.

    Raises:
        TemplateFailed: a row needs a value that the call doesn't have.
    """
    rows = [_row(plan, each, bindings) for each in plan.predictions]
    verbs = Counter((each.table, each.operation) for each in plan.predictions)
    counts = {table: (verbs[table, "insert"], verbs[table, "update"], verbs[table, "delete"]) for table in {each.table for each in rows}}
    return SeenEffects("mock", rows, counts)


def _row(plan: SandboxPlan, prediction: Prediction, bindings: Bindings) -> Touched:
    key = _columns(prediction.key, bindings)
    before = {**key, **_columns(prediction.before, bindings)} if prediction.before is not None else None
    after = {**key, **_columns(prediction.after, bindings)} if prediction.after is not None else None
    return Touched(prediction.table, plan.watch[prediction.table], before, after)


def _columns(template: Template, bindings: Bindings) -> Mapping[str, object]:
    found = template.json(bindings)
    assert isinstance(found, dict)
    return found

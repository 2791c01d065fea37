"""Evaluates an author's rules: all of them, so that a refusal names every fault at once; the first one gives the hint.

A rule holds only if it is exactly true. What can't be evaluated refuses, unless it only waits for a fact that has no row, whose own
refusal then stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.decision import ABSENT, Check, Decision, Layer, Outcome, Reason, accepted, skipped
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.json_pointer import value_at, with_value
from app.domain.quantity import Quantity
from app.domain.redaction import shown
from app.guards.context import Refused
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import Refusal, Rule
from app.policy.templates import Template, TemplateFailed

LOCALE = "en"


@dataclass(frozen=True, slots=True)
class RulesVerdict:
    checks: tuple[Check, ...]
    refused: Refused | None


def check_rules(
    rules: tuple[Rule, ...],
    bindings: Bindings,
    arguments: Mapping[str, object],
    absent: frozenset[str],
    layer: Layer,
    denial_class: DenialClass,
) -> RulesVerdict:
    """Evaluate `rules`; `absent` are variables that have no value because a fact has no row or a value rests on one."""
    checks: list[Check] = []
    refused: Refused | None = None
    for rule in rules:
        uses = rule.require.uses | (rule.when.uses if rule.when else frozenset())
        if uses & absent:
            checks.append(skipped(rule.name))
            continue
        try:
            if rule.when is not None and rule.when.evaluate(bindings) is not True:
                checks.append(skipped(rule.name))
                continue
            if rule.require.evaluate(bindings) is True:
                checks.append(accepted(rule.name))
                continue
        except ExpressionFailed:
            failed = rule_error(rule.name, layer)
            checks.append(failed[0])
            refused = refused or failed[1]
            continue
        check, found = refuse(rule.name, rule.refuse, bindings, arguments, layer, denial_class)
        checks.append(check)
        refused = refused or found
    return RulesVerdict(tuple(checks), refused)


def refuse(
    name: str, refusal: Refusal, bindings: Bindings, arguments: Mapping[str, object], layer: Layer, denial_class: DenialClass
) -> tuple[Check, Refused]:
    """Render what the author says of a refusal: the check, the hint and the arguments to try instead."""
    try:
        message = refusal.message[LOCALE].text(bindings)
        expected = refusal.expected.json(bindings) if refusal.expected else ABSENT
        suggested = _suggested(refusal.suggest, bindings, arguments)
    except TemplateFailed:
        return rule_error(name, layer)
    actual = _actual(refusal, bindings, arguments)
    check = Check(name, Outcome.DENIED, refusal.reason, refusal.field, refusal.fact, actual, expected, message)
    action = NextAction(NextActionKind.CALL_AGAIN)
    if refusal.next_tool is not None:
        action = NextAction(NextActionKind.CALL_FIRST, tool=refusal.next_tool)
    hint = FixHint(denial_class, Retryable.AFTER_CHANGE, message, action, refusal.field, refusal.fact, actual, expected)
    return check, Refused(Decision.DENIED, layer, refusal.reason, hint, name, suggested)


def rule_error(name: str, layer: Layer) -> tuple[Check, Refused]:
    """Refuse because a rule couldn't be evaluated: unknown never becomes yes."""
    message = f"the rule {name} could not be evaluated, so the call is refused; tell the policy's author"
    check = Check(name, Outcome.DENIED, Reason.RULE_ERROR, message=message)
    hint = FixHint(DenialClass.STATE, Retryable.AFTER_CHANGE, message, NextAction(NextActionKind.STOP))
    return check, Refused(Decision.DENIED, layer, Reason.RULE_ERROR, hint, name)


def _actual(refusal: Refusal, bindings: Bindings, arguments: Mapping[str, object]) -> object:
    if refusal.fact is None:
        return shown(value_at(arguments, refusal.field), refusal.field) if refusal.field is not None else ABSENT
    value = bindings.values.get(refusal.fact, ABSENT)
    return shown(value) if value is not ABSENT else ABSENT


def _suggested(
    suggest: tuple[tuple[str, Template], ...], bindings: Bindings, arguments: Mapping[str, object]
) -> Mapping[str, object] | None:
    if not suggest:
        return None
    changed = arguments
    for pointer, template in suggest:
        value = template.json(bindings)
        if isinstance(value, Quantity):
            value = value.as_number()
        changed = with_value(changed, pointer, value)
    return changed

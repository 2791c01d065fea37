"""Evaluates an author's rules: all of them, so that a refusal names every fault at once; the first one gives the hint.

A rule holds only if it is exactly true. What can't be evaluated refuses, unless it only waits for a fact that has no row, whose own
refusal then stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.decision import ABSENT, Check, Layer, Outcome, Reason, accepted, skipped
from app.domain.hint import STOP, DenialClass, NextActionKind, Retryable
from app.domain.json_pointer import value_at, with_value
from app.domain.quantity import Quantity
from app.domain.redaction import is_secret_name, scrubbed, shown, shown_schema
from app.domain.tool_call import ToolCall
from app.domain.wording import Locales, chosen, say
from app.guards.context import Refused
from app.guards.refusal import refusal_of
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.model import Refusal, Rule
from app.policy.templates import Template, TemplateFailed

_RETRYABLE: Mapping[NextActionKind, Retryable] = {NextActionKind.WAIT: Retryable.AFTER_DELAY, NextActionKind.STOP: Retryable.NEVER}
"""By what the author says is to be done next; a change of the arguments helps where it is a call."""


@dataclass(frozen=True, slots=True)
class RulesVerdict:
    checks: tuple[Check, ...]
    refused: Refused | None


def check_rules(
    rules: tuple[Rule, ...],
    bindings: Bindings,
    call: ToolCall,
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
            failed = rule_error(rule.name, layer, call.locales)
            checks.append(failed[0])
            refused = refused or failed[1]
            continue
        check, found = refuse(rule.name, rule.refuse, bindings, call, layer, denial_class)
        checks.append(check)
        refused = refused or found
    return RulesVerdict(tuple(checks), refused)


def refuse(
    name: str, refusal: Refusal, bindings: Bindings, call: ToolCall, layer: Layer, denial_class: DenialClass
) -> tuple[Check, Refused]:
    """Render what the author says of a refusal, in the caller's locale: the check, the hint and the arguments to try instead."""
    try:
        message = chosen(refusal.message, call.locales).text(bindings)
        expected = _expected(refusal, bindings)
        suggested = _suggested(refusal.suggest, bindings, call.arguments)
    except TemplateFailed:
        return rule_error(name, layer, call.locales)
    actual = _actual(refusal, bindings, call.arguments)
    check = Check(name, Outcome.DENIED, refusal.reason, refusal.field, refusal.fact, actual, expected, message)
    action = refusal.next_action
    retryable = _RETRYABLE.get(action.kind, Retryable.AFTER_CHANGE)
    return check, refusal_of(layer, check, denial_class, retryable, action, suggested=suggested)


def rule_error(name: str, layer: Layer, locales: Locales) -> tuple[Check, Refused]:
    """Refuse because a rule couldn't be evaluated: unknown never becomes yes."""
    check = Check(name, Outcome.DENIED, Reason.RULE_ERROR, message=say(locales, "rule_error", name=name))
    return check, refusal_of(layer, check, DenialClass.STATE, action=STOP)


def _actual(refusal: Refusal, bindings: Bindings, arguments: Mapping[str, object]) -> object:
    if refusal.fact is None:
        return shown(value_at(arguments, refusal.field), refusal.field) if refusal.field is not None else ABSENT
    value = bindings.values.get(refusal.fact, ABSENT)
    return shown(value, _pointer(refusal)) if value is not ABSENT else ABSENT


def _expected(refusal: Refusal, bindings: Bindings) -> object:
    if refusal.expected is None:
        return ABSENT
    expected = refusal.expected.json(bindings)
    secret = {bindings.values.get(name) for name in refusal.expected.uses if any(map(is_secret_name, name.split(".")))}
    if secret:
        expected = scrubbed(expected, frozenset(value for value in secret if isinstance(value, str)))
    assert isinstance(expected, dict)
    return shown_schema(expected, pointer) if (pointer := _pointer(refusal)) is not None else expected


def _pointer(refusal: Refusal) -> str | None:
    return refusal.field if refusal.fact is None else "/" + refusal.fact.replace(".", "/")


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

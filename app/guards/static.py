"""The static layer: a pure function of the arguments. Schema, exact amounts, and the author's rules over arguments alone (SPEC S3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.domain.decision import ABSENT, Check, Decision, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.redaction import shown
from app.guards.context import CallContext, LayerVerdict, Refused, base_values
from app.guards.rules import check_rules
from app.policy.arguments import InexactAmount
from app.policy.expressions import Bindings
from app.policy.violations import Violation

MESSAGES_MAX = 5
"""Of the faults of one call, how many the hint's sentence names."""


@dataclass(frozen=True, slots=True)
class StaticVerdict:
    """The layer's verdict; `bindings` are there unless the schema refused."""

    verdict: LayerVerdict
    bindings: Bindings | None = None


def check_static(context: CallContext) -> StaticVerdict:
    """Check the arguments against the tool's schema, its money and its static rules, in that order."""
    tool, arguments = context.tool, context.call.arguments
    violations = tool.arguments.violations(arguments)
    if violations:
        return StaticVerdict(_refuse([_violated(v) for v in violations]))
    schema = accepted("schema")
    reading = tool.arguments.read(arguments)
    if reading.inexact:
        return StaticVerdict(_refuse([schema, *(inexact_check(tool.money, each) for each in reading.inexact)]))
    checks = [schema]
    if tool.money:
        checks.append(accepted("amount_exact"))
    bindings = tool.environment.bind(base_values(context, reading))
    if tool.static_rules:
        found = check_rules(tool.static_rules, bindings, arguments, frozenset(), Layer.STATIC, DenialClass.STRUCTURAL)
        checks.extend(found.checks)
        if found.refused is not None:
            return StaticVerdict(LayerVerdict(LayerResult(Layer.STATIC, Outcome.DENIED, tuple(checks)), found.refused))
    return StaticVerdict(LayerVerdict(LayerResult(Layer.STATIC, Outcome.ACCEPTED, tuple(checks))), bindings)


def refuse_unknown_tool(*, has_policy: bool) -> LayerVerdict:
    """Refuse a call of a tool that the policy doesn't have, or of a tenant that has no policy."""
    reason = Reason.TOOL_UNKNOWN if has_policy else Reason.NO_POLICY
    message = "there is no such tool" if has_policy else "no policy is active, so nothing is allowed; an operator has to activate one"
    retryable = Retryable.AFTER_CHANGE if has_policy else Retryable.AFTER_DELAY
    hint = FixHint(DenialClass.PERMISSION, retryable, message, NextAction(NextActionKind.STOP))
    check = Check("tool", Outcome.DENIED, reason, message=message)
    return LayerVerdict(LayerResult(Layer.STATIC, Outcome.DENIED, (check,)), Refused(Decision.DENIED, Layer.STATIC, reason, hint, "tool"))


def _violated(violation: Violation) -> Check:
    number = violation.rule == "number_not_exact"
    return Check(
        violation.rule if number else "schema",
        Outcome.DENIED,
        Reason.NUMBER_NOT_EXACT if number else Reason.SCHEMA_INVALID,
        field=violation.pointer,
        actual=violation.actual if violation.actual is ABSENT else shown(violation.actual, violation.pointer),
        expected=violation.expected,
        message=f"{violation.pointer or 'the arguments'}: {violation.message}",
    )


def inexact_check(money: tuple[str, ...], inexact: InexactAmount) -> Check:
    """Give the check of an amount that its currency can't hold exactly."""
    if inexact.pointer not in money:
        expected: Mapping[str, object] = {"type": "integer"}
        message, reason = f"{inexact.pointer}: the number is too large or has too many digits", Reason.NUMBER_NOT_EXACT
    elif inexact.exponent is None:
        expected, reason = {"type": "number"}, Reason.AMOUNT_NOT_EXACT
        message = f"{inexact.pointer}: the currency isn't known, so the amount has no exact value"
    else:
        expected, reason = {"multipleOf": _step(inexact.exponent)}, Reason.AMOUNT_NOT_EXACT
        digits = f"at most {inexact.exponent} digits after the point" if inexact.exponent else "no digits after the point"
        message = f"{inexact.pointer}: an amount in {inexact.currency} has {digits} and fits 64 bits of minor units"
    actual = shown(inexact.actual, inexact.pointer)
    return Check("amount_exact", Outcome.DENIED, reason, field=inexact.pointer, actual=actual, expected=expected, message=message)


def _step(exponent: int) -> object:
    return 1 if exponent == 0 else Decimal(1).scaleb(-exponent)


def _refuse(checks: list[Check]) -> LayerVerdict:
    denied = [check for check in checks if check.outcome is Outcome.DENIED]
    first = denied[0]
    hint = FixHint(
        DenialClass.STRUCTURAL,
        Retryable.AFTER_CHANGE,
        "; ".join(check.message for check in denied[:MESSAGES_MAX] if check.message) or "the arguments break the tool's schema",
        NextAction(NextActionKind.CALL_AGAIN),
        field=first.field,
        actual=first.actual,
        expected=first.expected,
    )
    refused = Refused(Decision.DENIED, Layer.STATIC, str(first.reason), hint, first.name)
    return LayerVerdict(LayerResult(Layer.STATIC, Outcome.DENIED, tuple(checks)), refused)

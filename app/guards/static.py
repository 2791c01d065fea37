"""The static layer: a pure function of the arguments. Schema, exact amounts, and the author's rules over arguments alone (SPEC S3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.domain.decision import ABSENT, Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import STOP, DenialClass, Retryable
from app.domain.redaction import shown, shown_schema
from app.domain.wording import ENGLISH, Locales, joined, say
from app.guards.context import CallContext, LayerVerdict, base_values
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.rules import check_rules
from app.policy.arguments import InexactAmount
from app.policy.expressions import Bindings
from app.policy.templates import spoken
from app.policy.violations import Violation

MESSAGES_MAX = 5
"""Of the faults of one call, how many the hint's sentence names."""

FIELD_CHARS_MAX = 256
"""Of a field's pointer, how much is told: an argument that the tool doesn't have has a name of the caller's, of any length (IE-03)."""


@dataclass(frozen=True, slots=True)
class StaticVerdict:
    """The layer's verdict; `bindings` are there unless the schema refused."""

    verdict: LayerVerdict
    bindings: Bindings | None = None


def check_static(context: CallContext) -> StaticVerdict:
    """Check the arguments against the tool's schema, its money and its static rules, in that order."""
    tool, arguments, locales = context.tool, context.call.arguments, context.call.locales
    violations = tool.arguments.violations(arguments)
    if violations:
        return StaticVerdict(_refuse(locales, [_violated(v, locales) for v in violations]))
    schema = accepted("schema")
    reading = tool.arguments.read(arguments)
    if reading.inexact:
        return StaticVerdict(_refuse(locales, [schema, *(inexact_check(tool.money, each, locales) for each in reading.inexact)]))
    checks = [schema]
    if tool.money:
        checks.append(accepted("amount_exact"))
    bindings = tool.environment.bind(base_values(context, reading))
    if tool.static_rules:
        found = check_rules(tool.static_rules, bindings, context.call, frozenset(), Layer.STATIC, DenialClass.STRUCTURAL)
        checks.extend(found.checks)
        if found.refused is not None:
            return StaticVerdict(layer_refuses(found.refused, checks))
    return StaticVerdict(LayerVerdict(LayerResult(Layer.STATIC, Outcome.ACCEPTED, tuple(checks))), bindings)


def refuse_unknown_tool(*, has_policy: bool, locales: Locales = ENGLISH) -> LayerVerdict:
    """Refuse a call of a tool that the policy doesn't have, or of a tenant that has no policy.

    Another tool is another call, so an unknown one is `after_change`, and nothing that this call could change helps: stop. A tenant without
    a policy may have one in a moment, and the same call is decided then.
    """
    reason = Reason.TOOL_UNKNOWN if has_policy else Reason.NO_POLICY
    check = Check("tool", Outcome.DENIED, reason, message=say(locales, reason))
    retryable = Retryable.AFTER_CHANGE if has_policy else Retryable.AFTER_DELAY
    return layer_refuses(refusal_of(Layer.STATIC, check, DenialClass.PERMISSION, retryable, STOP), (check,))


def _violated(violation: Violation, locales: Locales) -> Check:
    number = violation.rule == "number_not_exact"
    place = spoken(violation.pointer) if violation.pointer else say(locales, "the_arguments")  # a pointer may hold a caller's key
    return Check(
        violation.rule if number else "schema",
        Outcome.DENIED,
        Reason.NUMBER_NOT_EXACT if number else Reason.SCHEMA_INVALID,
        field=violation.pointer if len(violation.pointer) <= FIELD_CHARS_MAX else violation.pointer[:FIELD_CHARS_MAX] + "…",
        actual=violation.actual if violation.actual is ABSENT else shown(violation.actual, violation.pointer),
        expected=shown_schema(violation.expected, violation.pointer),
        message=say(locales, "at_place", place=place, found=violation.message(locales)),
    )


def inexact_check(money: tuple[str, ...], inexact: InexactAmount, locales: Locales) -> Check:
    """Give the check of an amount that its currency can't hold exactly."""
    pointer, exponent = inexact.pointer, inexact.exponent
    reason = Reason.AMOUNT_NOT_EXACT if pointer in money else Reason.NUMBER_NOT_EXACT
    if pointer not in money:
        expected: Mapping[str, object] = {"type": "integer"}
        message = say(locales, "number_inexact", place=pointer)
    elif exponent is None:
        expected, message = {"type": "number"}, say(locales, "amount_without_currency", place=pointer)
    else:
        expected = {"multipleOf": _step(exponent)}
        message = say(locales, "amount_digits" if exponent else "amount_whole", place=pointer, currency=inexact.currency, digits=exponent)
    actual = shown(inexact.actual, pointer)
    return Check("amount_exact", Outcome.DENIED, reason, field=pointer, actual=actual, expected=expected, message=message)


def _step(exponent: int) -> object:
    return 1 if exponent == 0 else Decimal(1).scaleb(-exponent)


def _refuse(locales: Locales, checks: list[Check]) -> LayerVerdict:
    denied = [check for check in checks if check.outcome is Outcome.DENIED]
    message = joined(locales, [check.message for check in denied[:MESSAGES_MAX] if check.message])
    return layer_refuses(refusal_of(Layer.STATIC, denied[0], DenialClass.STRUCTURAL, message=message), checks)

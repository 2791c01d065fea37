"""The semantic layer: facts, history and accounts become variables, then the author's rules decide (SPEC S3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.decision import Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import WAIT, DenialClass, Retryable
from app.domain.wording import Locales, say
from app.guards.context import CallContext, Evidence, LayerVerdict, Refused
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.rules import check_rules, refuse, rule_error
from app.guards.static import inexact_check
from app.policy.expressions import Bindings, ExpressionFailed
from app.policy.facts import FactUnreadable, read_row, variables_of
from app.policy.model import Tool

RETRY_AFTER_MS = 500


@dataclass(frozen=True, slots=True)
class SemanticVerdict:
    """The layer's verdict, and the bindings with all that was read, for the layers behind it."""

    verdict: LayerVerdict
    bindings: Bindings


def check_semantic(context: CallContext, bindings: Bindings, evidence: Evidence, accounts: Mapping[str, str]) -> SemanticVerdict:
    """Evaluate facts and rules; `accounts` are the stored accounts of the tool's holds, by the hold's name."""
    tool, call = context.tool, context.call
    values = dict(bindings.values)
    if evidence.facts.failed is not None:
        return SemanticVerdict(fact_unavailable(call.locales), bindings)
    for name, account in accounts.items():
        balance = evidence.balances[account]
        values[f"account.{name}.held.minor"] = balance.held
        values[f"account.{name}.spent.minor"] = balance.spent
    for query in tool.history:
        values[f"history.{query.name}.count"] = evidence.history[query.name]
    checks: list[Check] = []
    refused: Refused | None = None
    absent: set[str] = set()
    for fact in tool.facts:
        row = evidence.facts.rows[fact.name]
        if row is None:
            check, found = refuse(fact.name, fact.missing, tool.environment.bind(values), call, Layer.SEMANTIC, DenialClass.STATE)
            refused = refused or found
            absent |= variables_of(fact)
        else:
            try:
                values |= read_row(fact, row)
            except FactUnreadable:
                return SemanticVerdict(fact_unavailable(call.locales), bindings)
            check = accepted(fact.name)
        checks.append(check)
    late = tool.arguments.read_late(call.arguments, values)
    values |= late.values
    if late.inexact:
        inexact = [inexact_check(tool.money, each, call.locales) for each in late.inexact]
        checks.extend(inexact)
        refused = refused or refusal_of(Layer.SEMANTIC, inexact[0], DenialClass.STRUCTURAL)
        absent |= {name for name in tool.environment.variables if name.startswith("args.") and name not in values}
    broken = _add_values(tool, values, absent, call.locales)
    if broken is not None:
        checks.append(broken[0])
        refused = refused or broken[1]
    full = tool.environment.bind(values)
    found_rules = check_rules(tool.rules, full, call, frozenset(absent), Layer.SEMANTIC, DenialClass.STATE)
    checks.extend(found_rules.checks)
    refused = refused or found_rules.refused
    outcome = Outcome.DENIED if refused else Outcome.ACCEPTED
    return SemanticVerdict(LayerVerdict(LayerResult(Layer.SEMANTIC, outcome, tuple(checks)), refused), full)


def _add_values(tool: Tool, values: dict[str, object], absent: set[str], locales: Locales) -> tuple[Check, Refused] | None:
    """Compute the named amounts in their order; one that rests on what is absent is absent too."""
    for value in tool.values:
        names = {f"{value.name}.minor", f"{value.name}.currency"}
        if (value.minor.uses | value.currency.uses) & absent:
            absent |= names
            continue
        try:
            values[f"{value.name}.minor"] = value.minor.evaluate(tool.environment.bind_used(values, value.minor))
            values[f"{value.name}.currency"] = value.currency.evaluate(tool.environment.bind_used(values, value.currency))
        except ExpressionFailed:
            absent |= names
            return rule_error(value.name, Layer.SEMANTIC, locales)
    return None


def fact_unavailable(locales: Locales) -> LayerVerdict:
    """Refuse because a fact couldn't be read in time: it may be there on the next try (SPEC S3.10)."""
    check = Check("facts", Outcome.DENIED, Reason.FACT_UNAVAILABLE, message=say(locales, "fact_unavailable"))
    refused = refusal_of(Layer.SEMANTIC, check, DenialClass.TRANSIENT, Retryable.AFTER_DELAY, WAIT, retry_after_ms=RETRY_AFTER_MS)
    return layer_refuses(refused, (check,))

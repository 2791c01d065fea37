"""The walk through the layers: static → scope, and with the evidence read, semantic → sandbox → risk → holds (SPEC S3.3).

Pure: the same call, policy and evidence give the same verdict. The first refusal ends the walk; a layer that isn't needed isn't
entered; and what needs a person goes on until every layer that could refuse outright has spoken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns

from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome, Reason
from app.domain.hint import STOP, DenialClass
from app.domain.scope import Entry
from app.domain.wording import Locales, say
from app.guards.compensation import plan_compensation
from app.guards.context import CallContext, Evidence, LayerVerdict, NewHold, Refused
from app.guards.holds import Accounts, accounts_of, check_holds
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.risk import check_risk
from app.guards.sandbox.mock import check_mock
from app.guards.sandbox.transaction import check_transaction
from app.guards.scope import check_scope
from app.guards.semantic import SemanticVerdict, check_semantic
from app.guards.static import check_static
from app.policy.expressions import Bindings
from app.policy.templates import TemplateFailed

NO_ACCOUNTS = Accounts({}, ())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call after the layers that need no state. `refused` ends it; else `bindings` and `accounts` are what the rest works with."""

    context: CallContext
    layers: tuple[LayerResult, ...]
    refused: Refused | None
    bindings: Bindings | None = None
    accounts: Accounts = NO_ACCOUNTS
    need: Entry | None = None
    rests_on: tuple[str, ...] = ()
    cuts: tuple[Mapping[str, object], ...] = ()
    needs_approval: Refused | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one call, as values."""

    decision: Decision
    reason: str
    layers: tuple[LayerResult, ...]
    refused: Refused | None = None
    holds: tuple[NewHold, ...] = ()
    side_effects: Mapping[str, object] | None = None
    risk: Mapping[str, object] | None = None
    need: Entry | None = None
    rests_on: tuple[str, ...] = ()
    cuts: tuple[Mapping[str, object], ...] = ()
    compensation: Mapping[str, object] | None = None
    bindings: Bindings | None = field(default=None, repr=False, compare=False)  # with what was read for the call, where it got that far


def prepare(context: CallContext, requested: tuple[Entry, ...] | None) -> Prepared:
    """Walk static and scope, and name the accounts that the call will need."""
    started = perf_counter_ns()
    static = check_static(context)
    layers = [_timed(static.verdict.result, started)]
    if static.verdict.refused is not None or static.bindings is None:
        return Prepared(context, tuple(layers), static.verdict.refused)
    started = perf_counter_ns()
    scope = check_scope(context, static.bindings, requested)
    layers.append(_timed(scope.verdict.result, started))
    if scope.verdict.refused is not None:
        return Prepared(context, tuple(layers), scope.verdict.refused, need=scope.need, cuts=scope.cuts)
    try:
        accounts = accounts_of(context, static.bindings)
    except TemplateFailed:
        refused = _hold_without_name(context.call.locales)
        return Prepared(context, (*layers, refused.result), refused.refused, need=scope.need)
    return Prepared(context, tuple(layers), None, static.bindings, accounts, scope.need, scope.rests_on, scope.cuts, scope.needs_approval)


def judge_semantic(prepared: Prepared, evidence: Evidence) -> SemanticVerdict | None:
    """Walk the semantic layer alone, so that only effects that it lets on are tried; None where the tool has no such layer."""
    assert prepared.bindings is not None
    if Layer.SEMANTIC not in prepared.context.tool.layers:
        return None
    started = perf_counter_ns()
    found = check_semantic(prepared.context, prepared.bindings, evidence, prepared.accounts.resources)
    timed = _timed(found.verdict.result, started, evidence.facts_us)
    return SemanticVerdict(LayerVerdict(timed, found.verdict.refused), found.bindings)


def decide(prepared: Prepared, evidence: Evidence, semantic: SemanticVerdict | None = None) -> Verdict:
    """Walk the rest of the layers over what was read and give the decision.

    `semantic` is what `judge_semantic` said of the same evidence, where that is known already.
    """
    if prepared.refused is not None:
        return _refusal(prepared, list(prepared.layers), prepared.refused)
    assert prepared.bindings is not None
    context, tool, bindings = prepared.context, prepared.context.tool, prepared.bindings
    layers = list(prepared.layers)
    side_effects: Mapping[str, object] | None = None
    risk: Mapping[str, object] | None = None
    asked = prepared.needs_approval
    if Layer.SEMANTIC in tool.layers:
        semantic = semantic or judge_semantic(prepared, evidence)
        assert semantic is not None
        bindings = semantic.bindings
        layers.append(semantic.verdict.result)
        if semantic.verdict.refused is not None:
            return _refusal(prepared, layers, semantic.verdict.refused, bindings=bindings)
    if Layer.SANDBOX in tool.layers:
        started = perf_counter_ns()
        if tool.tries_effects:
            assert evidence.dry_run is not None, "a call that semantic lets on was tried"
            sandbox = check_transaction(tool, bindings, evidence.dry_run, context.call.locales)
            layers.append(_timed(sandbox.verdict.result, started, evidence.dry_run_us))
        else:
            sandbox = check_mock(tool, bindings, context.call.locales)
            layers.append(_timed(sandbox.verdict.result, started))
        side_effects = sandbox.side_effects
        if sandbox.verdict.refused is not None:
            return _refusal(prepared, layers, sandbox.verdict.refused, side_effects, bindings=bindings)
    if Layer.RISK in tool.layers:
        started = perf_counter_ns()
        judged = check_risk(context, bindings)
        risk = judged.risk
        layers.append(_timed(judged.verdict.result, started))
        if judged.verdict.refused is not None:
            if judged.verdict.refused.decision is Decision.DENIED:
                return _refusal(prepared, layers, judged.verdict.refused, side_effects, risk, bindings)
            asked = asked or judged.verdict.refused
    if asked is not None:
        return _refusal(prepared, layers, asked, side_effects, risk, bindings)
    started = perf_counter_ns()
    held = check_holds(context, bindings, prepared.accounts, evidence.balances)
    if held.verdict.result.checks:
        layers.append(_timed(held.verdict.result, started))
    if held.verdict.refused is not None:
        return _refusal(prepared, layers, held.verdict.refused, side_effects, risk, bindings)
    return Verdict(
        Decision.ACCEPTED,
        Reason.WITHIN_POLICY,
        tuple(layers),
        None,
        held.holds,
        side_effects,
        risk,
        prepared.need,
        prepared.rests_on,
        compensation=plan_compensation(tool.compensation, bindings) if tool.compensation is not None else None,
        bindings=bindings,
    )


def _refusal(
    prepared: Prepared,
    layers: list[LayerResult],
    refused: Refused,
    side_effects: Mapping[str, object] | None = None,
    risk: Mapping[str, object] | None = None,
    bindings: Bindings | None = None,
) -> Verdict:
    return Verdict(
        refused.decision,
        refused.reason,
        tuple(layers),
        refused,
        (),
        side_effects,
        risk,
        prepared.need,
        prepared.rests_on,
        prepared.cuts,
        bindings=bindings,
    )


def _timed(result: LayerResult, started_ns: int, waited_us: int = 0) -> LayerResult:
    return LayerResult(result.name, result.outcome, result.checks, (perf_counter_ns() - started_ns) // 1000 + waited_us)


def _hold_without_name(locales: Locales) -> LayerVerdict:
    check = Check("accounts", Outcome.DENIED, Reason.RULE_ERROR, message=say(locales, "hold_without_name"))
    return layer_refuses(refusal_of(Layer.HOLDS, check, DenialClass.STATE, action=STOP), (check,))

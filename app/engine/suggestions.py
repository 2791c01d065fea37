"""Verifies suggested arguments with the same layers: a suggestion is shown only if no layer refuses it, with the decision that it
would get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.decision import Decision, Layer
from app.domain.hint import Suggestion
from app.engine.dry_runs import Transaction, dry_run_ask, dry_run_of
from app.engine.lane import give_way
from app.engine.ledger import Ledger
from app.engine.prepare_call import Work, facts_wanted, history_asks, prepare_call
from app.engine.record_decisions import Decided
from app.guards.context import Evidence
from app.guards.pipeline import decide, judge_semantic
from app.guards.semantic import SemanticVerdict
from app.storage import decision_batch as stored


@dataclass(slots=True)
class _Try:
    decided: Decided
    work: Work
    arguments: Mapping[str, object]
    evidence: Evidence | None = None
    semantic: SemanticVerdict | None = None


async def verify_suggestions(database: Transaction, decided: Sequence[Decided], ledger: Ledger) -> None:
    """Give each refusal whose rule suggests arguments its verified suggestion; one that can't be verified isn't shown."""
    tries = [found for each in decided if (found := _candidate(each)) is not None]
    if not tries:
        return
    asks = [ask for index, each in enumerate(tries) for ask in history_asks(index, each.work)]
    read = await stored.read_facts(database.connection, asks, (), (), database.prepared) if asks else stored.Read({}, {}, {})
    dry_runs: list[stored.DryRunAsk] = []
    for index, each in enumerate(tries):
        await give_way(index)
        prepared = each.work.prepared
        assert prepared is not None and each.decided.evidence is not None
        each.evidence = ledger.evidence(index, each.work, read, each.decided.evidence.facts, None, 0, 0)
        each.semantic = judge_semantic(prepared, each.evidence)
        refused = each.semantic is not None and each.semantic.verdict.refused is not None
        if Layer.SANDBOX in prepared.context.tool.layers and not refused:
            ask = dry_run_ask(index, prepared, each.semantic, each.work.principal.tenant)
            if ask is not None:
                dry_runs.append(ask)
    tried = await stored.dry_run(database.connection, dry_runs, database.prepared, database.tables) if dry_runs else {}
    for index, each in enumerate(tries):
        await give_way(index)
        _settle(index, each, tried)


def _candidate(decided: Decided) -> _Try | None:
    """Give the suggested call, if it passes static and scope and reads the same facts from the same accounts."""
    refused, work = decided.verdict.refused, decided.work
    if refused is None or refused.suggested is None or work.prepared is None or decided.evidence is None:
        return None
    suggested = replace(work, call=replace(work.call, arguments=refused.suggested), prepared=None, refused_early=None)
    prepare_call(suggested)
    if suggested.prepared is None or suggested.prepared.refused is not None:
        return None
    if suggested.prepared.accounts.names() != work.prepared.accounts.names() or facts_wanted(suggested) != facts_wanted(work):
        return None
    return _Try(decided, suggested, refused.suggested)


def _settle(index: int, each: _Try, tried: Mapping[int, Mapping[str, object]]) -> None:
    prepared = each.work.prepared
    assert prepared is not None and each.evidence is not None
    if Layer.SANDBOX in prepared.context.tool.layers:
        if index not in tried:
            return
        each.evidence = replace(each.evidence, dry_run=dry_run_of(tried[index]))
    verdict = decide(prepared, each.evidence, each.semantic)
    if verdict.decision is not Decision.DENIED:
        each.decided.suggestion = Suggestion(each.arguments, verdict.decision.value)

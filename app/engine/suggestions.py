"""Verifies suggested arguments with the same layers: a suggestion is shown only if no layer refuses it, with the decision that it
would get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from app.domain.decision import Decision
from app.domain.hint import Suggestion
from app.engine.decided import Decided
from app.engine.dry_runs import TIMED_OUT, VALUE_MISSING, Transaction, dry_run_ask, dry_run_of
from app.engine.lane import give_way
from app.engine.ledger import Ledger
from app.engine.prepare_call import Work, facts_wanted, history_asks, suggested_call
from app.guards.context import Evidence, FactsRead
from app.guards.pipeline import decide, judge_semantic
from app.guards.semantic import SemanticVerdict
from app.storage import decision_batch as stored


@dataclass(slots=True)
class _Try:
    decided: Decided
    work: Work
    arguments: Mapping[str, object]
    facts: FactsRead | None  # None: they have to be read, because the call was refused before its own were
    evidence: Evidence | None = None
    semantic: SemanticVerdict | None = None


async def verify_suggestions(
    database: Transaction, decided: Sequence[Decided], ledger: Ledger, slow_down: Callable[[UUID, str], None]
) -> None:
    """Give each refusal that suggests arguments its verified suggestion; one that can't be verified isn't shown."""
    tries = [found for each in decided if (found := _candidate(each)) is not None]
    if not tries:
        return
    asks = [ask for index, each in enumerate(tries) for ask in history_asks(index, each.work)]
    wanted = {index: facts_wanted(each.work) for index, each in enumerate(tries) if each.facts is None}
    facts = [stored.FactsAsk(index, tries[index].work.principal.tenant, sql) for index, sql in wanted.items() if sql]
    read = stored.Read({}, {}, {})
    if asks or facts:
        read = await stored.read_facts(database.connection, asks, (), facts, database.prepared)
    for index in wanted:
        tries[index].facts = _facts(index, tries[index], wanted, read, slow_down)
    dry_runs: list[stored.DryRunAsk] = []
    for index, each in enumerate(tries):
        await give_way(index)
        prepared = each.work.prepared
        assert prepared is not None and each.facts is not None
        each.evidence = ledger.evidence(index, each.work, read, each.facts, None, 0, 0)
        each.semantic = judge_semantic(prepared, each.evidence)
        refused = each.semantic is not None and each.semantic.verdict.refused is not None
        if prepared.context.tool.tries_effects and not refused:
            ask = dry_run_ask(index, prepared, each.semantic, each.work.principal.tenant)
            if ask is not None:
                dry_runs.append(ask)
    tried = await stored.dry_run(database.connection, dry_runs, database.prepared, database.tables) if dry_runs else {}
    for index, each in enumerate(tries):
        await give_way(index)
        _settle(index, each, tried)


def _candidate(decided: Decided) -> _Try | None:
    """Give the suggested call, if it passes static and scope and its accounts are locked: as the call's own, or, where that was refused
    before it had any, since they were claimed for the suggestion."""
    refused, work = decided.verdict.refused, decided.work
    if refused is None or refused.suggested is None or work.prepared is None or decided.evidence is None:
        return None
    if work.prepared.refused is not None:
        return _Try(decided, work.suggested, refused.suggested, None) if work.suggested is not None else None
    suggested = suggested_call(work, refused.suggested)
    if suggested is None or suggested.prepared is None:
        return None
    if suggested.prepared.accounts.names() != work.prepared.accounts.names() or facts_wanted(suggested) != facts_wanted(work):
        return None
    return _Try(decided, suggested, refused.suggested, decided.evidence.facts)


def _facts(
    index: int,
    each: _Try,
    wanted: Mapping[int, Mapping[str, object] | None],
    read: stored.Read,
    slow_down: Callable[[UUID, str], None],
) -> FactsRead:
    """Give what was read for a suggestion; what could not be read refuses it."""
    if not wanted[index]:
        return FactsRead({}, VALUE_MISSING if wanted[index] is None else None)
    found = read.facts.get(index)
    if found is None or found.failed == TIMED_OUT:
        if found is not None:
            slow_down(each.work.principal.tenant_id, each.work.call.tool)
        return FactsRead({}, TIMED_OUT)
    return FactsRead(found.rows, found.failed)


def _settle(index: int, each: _Try, tried: Mapping[int, Mapping[str, object]]) -> None:
    prepared = each.work.prepared
    assert prepared is not None and each.evidence is not None
    if prepared.context.tool.tries_effects:
        if index not in tried:
            return
        each.evidence = replace(each.evidence, dry_run=dry_run_of(tried[index]))
    verdict = decide(prepared, each.evidence, each.semantic)
    if verdict.decision is not Decision.DENIED:
        each.decided.suggestion = Suggestion(each.arguments, verdict.decision.value)

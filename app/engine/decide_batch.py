"""One decision transaction, from claim to COMMIT (docs/transaction.md): all control flow of a decision.

Its SQL is in `storage`, its rules in `guards`.
Nothing is decided on what another call of the batch has changed since it was read or tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from uuid import UUID

import asyncpg
import structlog

from app.domain.decision import Check, Decision, Layer, Outcome, Reason
from app.domain.hint import STOP, DenialClass, Retryable
from app.domain.tool_call import ToolCall
from app.domain.wording import say
from app.engine.clock import Clock
from app.engine.decided import Decided
from app.engine.dry_runs import TIMED_OUT, VALUE_MISSING, Transaction, dry_run_ask, dry_run_of
from app.engine.kept_documents import replayed_answer
from app.engine.lane import give_way
from app.engine.ledger import Ledger, Place, loop_limit_of, loop_task
from app.engine.prepare_call import Work, facts_wanted, history_asks, needs_state
from app.engine.record_decisions import place_answers, record, record_balances
from app.engine.stored_answer import CheckAnswer
from app.engine.suggestions import verify_suggestions
from app.guards.context import DryRun, Evidence, FactsRead, Refused
from app.guards.pipeline import Verdict, decide, judge_semantic
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.semantic import SemanticVerdict
from app.policy.templates import spoken
from app.storage import decision_batch as stored
from app.storage.database import BatchConnection

NOT_READ = FactsRead({}, TIMED_OUT)
NOTHING_READ = FactsRead({})

_log = structlog.get_logger(__name__)

SlowDown = Callable[[UUID, str], None]


class AuthorityMoved(Exception):
    """Keys or policy of these tenants changed since the calls were prepared; nothing was kept."""

    def __init__(self, tenants: frozenset[UUID]) -> None:
        super().__init__(f"the authority of {len(tenants)} tenants moved")
        self.tenants = tenants


@dataclass(slots=True)
class Findings:
    """What the batch read, by the call's index."""

    read: stored.Read = field(default_factory=lambda: stored.Read({}, {}, {}))
    facts: dict[int, FactsRead] = field(default_factory=dict)
    semantic: dict[int, SemanticVerdict | None] = field(default_factory=dict)  # judged before this batch decided anything
    tried: dict[int, stored.DryRunAsk] = field(default_factory=dict)
    dry_runs: dict[int, DryRun] = field(default_factory=dict)
    facts_us: int = 0
    dry_run_us: int = 0


async def decide_batch(
    connection: BatchConnection, works: Sequence[Work], clock: Clock, slow_down: SlowDown
) -> list[Decided | CheckAnswer]:
    """Decide `works` in their order in one transaction; for each the new decision, or the stored answer that is replayed.

    Raises:
        AuthorityMoved: prepare the calls again; nothing was kept.
        Whatever the driver raises: nothing was kept, but for a connection lost during COMMIT.
    """
    prepared = await _prepare_statements(connection, works)
    tables = await connection.counted_tables()
    async with connection.transaction({work.principal.tenant_id for work in works}) as transaction:
        database = Transaction(transaction, prepared, tables)
        opened = await stored.open_batch(transaction, [_claim(index, work) for index, work in enumerate(works) if work.frozen is None])
        _confirm(works, opened.authority)
        ledger = Ledger(works, opened)
        findings = await _find(database, works, ledger, slow_down)
        decided: list[Decided | CheckAnswer] = []
        for index, work in enumerate(works):
            await give_way(index)
            place = ledger.places[index]
            if place.standing == "replay":
                assert place.known is not None
                decided.append(replayed_answer(work, place.known))
            else:
                decided.append(_decide_one(index, work, place, ledger, findings, clock))
        new = sorted((each for each in decided if isinstance(each, Decided)), key=lambda each: each.work.principal.tenant_id)
        if new:
            await verify_suggestions(database, new, ledger, slow_down)
            try:
                places = await stored.record_batch(transaction, await _rows(new, ledger, clock))
            except asyncpg.PostgresError as failure:
                if failure.sqlstate == stored.AUTHORITY_MOVED:
                    raise AuthorityMoved(frozenset({UUID(failure.detail)})) from None
                raise
            place_answers(new, places)
    return decided


async def _prepare_statements(connection: BatchConnection, works: Sequence[Work]) -> stored.Prepared:
    tools = {work.prepared.context.tool.digest: work.prepared.context.tool for work in works if work.prepared is not None}
    prepared: stored.Prepared = {}
    for tool in tools.values():
        prepared = await connection.prepare(stored.FACTS_ROLE, (fact.statement.sql for fact in tool.facts))
        if tool.sandbox is not None:
            prepared = await connection.prepare(stored.SANDBOX_ROLE, (effect.statement.sql for effect in tool.sandbox.effects))
    return prepared


async def _rows(decided: Sequence[Decided], ledger: Ledger, clock: Clock) -> stored.BatchWrite:
    write = stored.BatchWrite()
    mark = clock.salt().hex()
    for index, each in enumerate(decided):
        await give_way(index)
        record(write, each, clock, mark)
    record_balances(write, ledger)
    return write


def _claim(index: int, work: Work) -> stored.ClaimAsk:
    judged = work.suggested or work  # what is verified needs its accounts as what is decided does
    accounts = judged.prepared.accounts.names() if judged.prepared is not None and judged.prepared.refused is None else ()
    call = work.call
    return stored.ClaimAsk(
        index, work.principal.tenant_id, work.principal.subject, call.session_id, call.call_id, work.digest, tuple(sorted(set(accounts)))
    )


def _confirm(works: Iterable[Work], versions: Mapping[UUID, int]) -> None:
    moved = set()
    for work in works:
        assert work.authority is not None
        if work.frozen is not None and work.principal.tenant_id not in versions:
            continue  # nothing of that tenant was opened; the write confirms it
        if versions.get(work.principal.tenant_id) != work.authority.version:
            moved.add(work.principal.tenant_id)
    if moved:
        raise AuthorityMoved(frozenset(moved))


async def _find(database: Transaction, works: Sequence[Work], ledger: Ledger, slow_down: SlowDown) -> Findings:
    """Read facts, history and refusals, then try the effects of the calls that the semantic layer lets on."""
    findings = Findings()
    todo = {index: work for index, work in enumerate(works) if ledger.places[index].standing == "decide"}
    started = perf_counter_ns()
    await _read(database, todo, findings, slow_down)
    findings.facts_us = (perf_counter_ns() - started) // 1000
    await _try_effects(database, todo, ledger, findings, slow_down)
    return findings


def _tool(work: Work) -> tuple[UUID, str]:
    return work.principal.tenant_id, work.call.tool


async def _try_effects(database: Transaction, todo: Mapping[int, Work], ledger: Ledger, findings: Findings, slow_down: SlowDown) -> None:
    asks: list[stored.DryRunAsk] = []
    for index, work in todo.items():
        prepared = work.prepared
        if prepared is None or prepared.refused is not None or not prepared.context.tool.tries_effects:
            continue
        await give_way(index)
        facts = findings.facts.get(index, NOTHING_READ)
        semantic = judge_semantic(prepared, ledger.evidence(index, work, findings.read, facts, None, findings.facts_us, 0))
        findings.semantic[index] = semantic
        if semantic is None or semantic.verdict.refused is None:
            ask = dry_run_ask(index, prepared, semantic, work.principal.tenant)
            if ask is None:
                findings.dry_runs[index] = DryRun(failed=VALUE_MISSING)
            else:
                asks.append(ask)
    if not asks:
        return
    findings.tried = {ask.index: ask for ask in asks}
    started = perf_counter_ns()
    tried = dict(await stored.dry_run(database.connection, asks, database.prepared, database.tables))
    slow = {_tool(todo[index]) for index, found in tried.items() if found.get("failed") == TIMED_OUT}
    missed = [ask for ask in asks if ask.index not in tried and _tool(todo[ask.index]) not in slow]
    if missed:
        tried |= await stored.dry_run(database.connection, missed, database.prepared, database.tables)
    findings.dry_run_us = (perf_counter_ns() - started) // 1000
    for ask in asks:
        findings.dry_runs[ask.index] = dry_run_of(tried.get(ask.index))
    for tenant_id, tool in slow | {_tool(todo[index]) for index, found in tried.items() if found.get("failed") == TIMED_OUT}:
        slow_down(tenant_id, tool)


async def _read(database: Transaction, todo: Mapping[int, Work], findings: Findings, slow_down: SlowDown) -> None:
    history, refusals, facts = [], [], []
    for index, work in todo.items():
        limit = loop_limit_of(work)
        if limit is not None:
            refusals.append(
                stored.RefusalsAsk(index, work.principal.tenant_id, work.call.session_id, loop_task(work, limit), work.call.tool)
            )
        if not needs_state(work):
            continue
        history += history_asks(index, work)
        wanted = facts_wanted(work)
        if wanted is None:
            findings.facts[index] = FactsRead({}, VALUE_MISSING)
        elif wanted:
            facts.append(stored.FactsAsk(index, work.principal.tenant, wanted))
    if not (history or refusals or facts):
        return
    findings.read = await stored.read_facts(database.connection, history, refusals, facts, database.prepared)
    found = dict(findings.read.facts)
    slow = {_tool(todo[index]) for index, each in found.items() if each.failed == TIMED_OUT}
    missed = [ask for ask in facts if ask.index not in found and _tool(todo[ask.index]) not in slow]
    if missed:  # what stood behind a call that timed out; calls of its tool aren't worth another wait
        found |= (await stored.read_facts(database.connection, (), (), missed, database.prepared)).facts
    for index, failed in ((index, each.failed) for index, each in found.items()):
        if failed is not None and failed != TIMED_OUT:  # the author's to mend: no retry will
            _log.warning("fact_failed", tool=todo[index].call.tool, tenant=todo[index].principal.tenant, sqlstate=failed)
    for ask in facts:
        each = found.get(ask.index)
        findings.facts[ask.index] = FactsRead(each.rows, each.failed) if each is not None else NOT_READ
    for tenant_id, tool in slow | {_tool(todo[index]) for index, each in found.items() if each.failed == TIMED_OUT}:
        slow_down(tenant_id, tool)


def _decide_one(index: int, work: Work, place: Place, ledger: Ledger, findings: Findings, clock: Clock) -> Decided:
    verdict, evidence = _verdict(index, work, place, ledger, findings)
    limit = loop_limit_of(work) if place.standing == "decide" else None
    refused_before = ledger.refusals(index, work, findings.read, limit, verdict.refused.rule) if limit and verdict.refused else 0
    decided = Decided(work, place, verdict, evidence, clock.new_id(), tuple(clock.new_id() for _ in verdict.holds), limit, refused_before)
    if place.standing == "decide":
        ledger.note(work, verdict)
        if decided.counts_as_attempt:
            assert limit is not None and verdict.refused is not None
            decided.refusal_row = ledger.note_refusal(work, limit, verdict.refused.rule)
        decided.balances = dict(ledger.balances(work))
    return decided


def _verdict(index: int, work: Work, place: Place, ledger: Ledger, findings: Findings) -> tuple[Verdict, Evidence | None]:
    match place.standing:
        case "frozen":
            assert work.frozen is not None and work.frozen.refused is not None
            return Verdict(Decision.DENIED, work.frozen.refused.reason, (work.frozen.result,), work.frozen.refused), None
        case "reused":
            return _reused(work.call), None
        case "foreign":
            return _foreign(work.call), None
    if work.call.approval_id is not None and not _is_of(place, work.call.approval_id):
        return _wrong_approval(work.call), None
    if work.refused_early is not None:
        result, refused = work.refused_early
        return Verdict(refused.decision, refused.reason, (result,), refused), None
    prepared = work.prepared
    assert prepared is not None
    facts = findings.facts.get(index, NOTHING_READ)
    dry_run = findings.dry_runs.get(index)
    evidence = ledger.evidence(index, work, findings.read, facts, dry_run, findings.facts_us, findings.dry_run_us)
    if prepared.refused is not None:
        return decide(prepared, evidence), evidence
    if ledger.is_untouched(work):
        return decide(prepared, evidence, findings.semantic.get(index)), evidence
    semantic = judge_semantic(prepared, evidence)
    lets_on = semantic is None or semantic.verdict.refused is None
    if prepared.context.tool.tries_effects and lets_on:
        ask = dry_run_ask(index, prepared, semantic, work.principal.tenant)
        if dry_run is None or (ask is not None and ask != findings.tried.get(index)):
            # what this batch decided before lets it on now, or with other effects than were tried: a later try will see it
            evidence, semantic = replace(evidence, facts=NOT_READ), None
    return decide(prepared, evidence, semantic), evidence


def _is_of(place: Place, approval_id: str) -> bool:
    approval = place.known.approval if place.known is not None else None
    return approval is not None and str(approval.approval_id) == approval_id


def _wrong_approval(call: ToolCall) -> Verdict:
    """Refuse an `approval_id` that isn't this call's; it doesn't settle the call id, because without it the call may pass."""
    check = Check("approval_id", Outcome.DENIED, Reason.APPROVAL_MISMATCH, message=say(call.locales, "approval_mismatch"))
    return _only(check, refusal_of(Layer.SCOPE, check, DenialClass.PERMISSION, Retryable.AFTER_APPROVAL))


def _reused(call: ToolCall) -> Verdict:
    message = say(call.locales, "call_id_reused", call_id=spoken(call.call_id))
    check = Check("call_id", Outcome.DENIED, Reason.CALL_ID_REUSED, message=message)
    return _only(check, refusal_of(Layer.IDEMPOTENCY, check, DenialClass.STRUCTURAL))


def _foreign(call: ToolCall) -> Verdict:
    """Refuse a session of somebody else: another session may do the same, but the runtime chooses it, so the model has to stop."""
    check = Check("session", Outcome.DENIED, Reason.SESSION_NOT_YOURS, message=say(call.locales, "session_not_yours"))
    return _only(check, refusal_of(Layer.IDEMPOTENCY, check, DenialClass.PERMISSION, action=STOP))


def _only(check: Check, refused: Refused) -> Verdict:
    return Verdict(refused.decision, refused.reason, (layer_refuses(refused, (check,)).result,), refused)

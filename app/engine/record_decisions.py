"""What a batch stores of its decisions: from verdicts to rows (docs/transaction.md).

What a caller sent comes here whole and is stored without secrets: documents of `kept_documents` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from app.domain.decision import Decision
from app.domain.hint import FixHint, Retryable
from app.encoding import canonical_text
from app.engine.answer import answer_document, finished_hint, limits_document
from app.engine.chain import Event, open_link
from app.engine.clock import Clock
from app.engine.decided import Decided
from app.engine.kept_documents import clean_answer, clean_name, clean_suggestion, clean_verdict, kept_answer, kept_call, kept_request
from app.engine.ledger import STATUS_OF, Ledger
from app.engine.open_approval import approval_left, open_approval
from app.engine.stored_answer import CheckAnswer
from app.guards.pipeline import Verdict
from app.storage.decision_batch import BatchWrite

EVENT = "tool_call.decided"


def record_balances(write: BatchWrite, ledger: Ledger) -> None:
    """Add the accounts that the batch has held on."""
    for tenant_id, account in sorted(ledger.changed):
        balance = ledger.balance((tenant_id, account))
        write.add("accounts", {"tenant_id": tenant_id, "account": account, "unit": balance.unit, "held": balance.held})


def place_answers(decided: Sequence[Decided], places: Sequence[tuple[int, str]]) -> None:
    """Complete the answers with the sequence and hash that their rows got."""
    for each, (sequence, row_hash) in zip(decided, places, strict=True):
        assert each.answer is not None
        each.answer = replace(each.answer, sequence=sequence, hash=row_hash)


def record(write: BatchWrite, each: Decided, clock: Clock, mark: str) -> None:
    """Add the rows of a new decision, which come ordered by tenant, and keep the answer that its place will complete.

    `mark` is a random text that stands in the audit row's text for what its place will say.
    """
    kept = kept_call(each.work)
    each.verdict = clean_verdict(each.verdict, kept)
    work, verdict, call = each.work, each.verdict, each.work.call
    authority = work.authority
    assert authority is not None
    asks = verdict.decision is Decision.NEEDS_USER
    approval, bound = open_approval(write, each, clock, kept) if asks else (None, approval_left(write, each))
    hint = finished_hint(verdict, each.attempts, clean_suggestion(work, each.suggestion), approval, call.locales)
    limits = limits_document(work.prepared, each.verdict, each.balances, each.attempts)
    document = answer_document(
        verdict, each.decision_id, work.now, authority.policy_version, call.arguments, each.hold_ids, limits, hint, approval
    )
    clean_answer(document, verdict, kept)
    text = canonical_text(document)
    stored = kept_answer(document, kept)
    stored_text = text if stored is document else canonical_text(stored)
    event = Event(
        EVENT,
        work.now,
        work.principal.subject,
        tuple(sorted(work.principal.roles)),
        _facts(each, approval.approval_id if approval else None),
        f'{{"answer":{stored_text},"request":{canonical_text(kept_request(work, kept))}}}',
    )
    salt = clock.salt()
    opened = open_link(authority.name, event, salt, mark)
    write.tenants.append(work.principal.tenant_id)
    write.versions.append(authority.version)
    write.happened.append(work.now)
    write.before.append(opened.before)
    write.between.append(opened.between)
    write.after.append(opened.after)
    write.payloads.append(event.payload or "")
    write.salts.append(salt)
    write.add("audit", {"n": len(write.tenants), **opened.columns})
    _add_decision(write, each)
    if each.place.standing == "decide":
        _add_claim(write, each, hint, bound)
        _add_holds(write, each)
    said = document.get("fix_hint")
    assert said is None or isinstance(said, dict)
    each.answer = CheckAnswer(text, call.tool, call.call_id, verdict.reason, said, False, authority.name, 0, "", call.locales)


def _add_decision(write: BatchWrite, each: Decided) -> None:
    work, verdict, call = each.work, each.verdict, each.work.call
    assert work.authority is not None
    write.add(
        "decisions",
        {
            "n": len(write.tenants),
            "tenant_id": work.principal.tenant_id,
            "decision_id": each.decision_id,
            "kind": "tool_call",
            "subject": work.principal.subject,
            "session_id": call.session_id,
            "task_id": call.task_id,
            "call_id": call.call_id,
            "attempt": each.place.attempt,
            "tool": call.tool,
            "decision": verdict.decision.value,
            "reason": verdict.reason,
            "refused_by": _refused_by(verdict),
            "status": STATUS_OF[verdict.decision],
            "policy_version": work.authority.policy_version,
            "decided_at": work.now,
            "resource": clean_name(verdict.need.resource.text) if verdict.need is not None else None,
            "risk_score": verdict.risk["score"] if verdict.risk is not None else None,
        },
    )


def _add_claim(write: BatchWrite, each: Decided, hint: FixHint | None, approval_id: UUID | None) -> None:
    work, call, tenant_id = each.work, each.work.call, each.work.principal.tenant_id
    write.add(
        "claims",
        {
            "tenant_id": tenant_id,
            "session_id": call.session_id,
            "call_id": call.call_id,
            "attempt": each.place.attempt,
            "settled": hint is None or hint.retryable in (Retryable.NEVER, Retryable.AFTER_CHANGE),
            "decision_id": each.decision_id,
            "approval_id": approval_id,
        },
    )
    for key in work.own_keys:
        write.add("call_keys", {"tenant_id": tenant_id, "key": key, "decided_at": work.now, "decision_id": each.decision_id})
    if each.refusal_row is not None:
        write.add("refusals", each.refusal_row)


def _add_holds(write: BatchWrite, each: Decided) -> None:
    work = each.work
    for hold, hold_id in zip(each.verdict.holds, each.hold_ids, strict=True):
        assert work.prepared is not None
        write.add(
            "holds",
            {
                "tenant_id": work.principal.tenant_id,
                "hold_id": hold_id,
                "decision_id": each.decision_id,
                "account": hold.account,
                "unit": hold.quantity.unit,
                "quantity": hold.quantity.minor,
                "status": "held",
                "created_at": work.now,
                "outcome_due_at": work.now + timedelta(seconds=work.prepared.context.tool.outcome_within_s),
            },
        )


def _refused_by(verdict: Verdict) -> str | None:
    return verdict.refused.layer.value if verdict.refused is not None and verdict.decision is Decision.DENIED else None


def _facts(each: Decided, approval_id: UUID | None) -> dict[str, object]:
    """Give the audit row's own fields; what isn't there is left out, so that the row is the same whoever writes it."""
    work, verdict, call = each.work, each.verdict, each.work.call
    assert work.authority is not None
    fields: dict[str, object | None] = {
        "session_id": call.session_id,
        "task_id": call.task_id,
        "tool": call.tool,
        "resources": [clean_name(verdict.need.resource.text)] if verdict.need is not None else None,
        "decision_id": str(each.decision_id),
        "decision": verdict.decision.value,
        "reason": verdict.reason,
        "refused_by": _refused_by(verdict),
        "risk_score": verdict.risk["score"] if verdict.risk is not None else None,
        "policy_version": work.authority.policy_version,
        "approval_id": str(approval_id) if approval_id is not None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}

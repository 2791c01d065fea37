"""What a batch stores: from verdicts to rows, and from a stored row back to the answer that is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import jiter

from app.domain.canonical import canonical, digest
from app.domain.decision import Decision
from app.domain.hint import FixHint, Retryable, Suggestion
from app.domain.json_pointer import parts_of
from app.encoding import canonical_text
from app.engine.answer import Approval, Attempts, answer_document, finished_hint, limits_document, scope_document
from app.engine.chain import Event, open_link
from app.engine.clock import Clock
from app.engine.ledger import STATUS_OF, Ledger, Place
from app.engine.prepare_call import Work
from app.engine.stored_answer import CheckAnswer
from app.guards.context import Balance, Evidence
from app.guards.holds import counted_by
from app.guards.pipeline import NO_ACCOUNTS, Verdict
from app.guards.risk import selects
from app.policy.model import ApprovalRule, LoopLimit, Selector
from app.storage.decision_batch import BatchWrite, Known, PendingApproval

EVENT = "tool_call.decided"
DEFAULT_APPROVAL = ApprovalRule(Selector(), 1, ("reviewer",), 1_800, "refused")


@dataclass(slots=True)
class Decided:
    """One new decision of a batch; `answer` is there once it is recorded."""

    work: Work
    place: Place
    verdict: Verdict
    evidence: Evidence | None
    decision_id: UUID
    hold_ids: tuple[UUID, ...]
    limit: LoopLimit | None
    refused_before: int
    refusal_row: dict[str, object] | None = None
    balances: Mapping[str, Balance] = field(default_factory=dict)
    suggestion: Suggestion | None = None
    answer: CheckAnswer | None = None

    @property
    def counts_as_attempt(self) -> bool:
        """Say whether a limited rule refused what a change of the arguments could mend."""
        refused = self.verdict.refused
        return (
            self.limit is not None
            and refused is not None
            and refused.decision is Decision.DENIED
            and refused.hint.retryable is Retryable.AFTER_CHANGE
        )

    @property
    def attempts(self) -> Attempts | None:
        if self.limit is None or self.verdict.refused is None:
            return None
        return Attempts(self.limit, self.verdict.refused.rule, self.refused_before + self.counts_as_attempt)


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
    work, verdict, call = each.work, each.verdict, each.work.call
    authority = work.authority
    assert authority is not None
    approval, bound = _approval(write, each, clock) if verdict.decision is Decision.NEEDS_USER else (None, _approval_left(write, each))
    hint = finished_hint(verdict, each.attempts, each.suggestion, approval)
    accounts = work.prepared.accounts if work.prepared is not None else NO_ACCOUNTS
    limits = limits_document(work.prepared, each.balances, accounts, each.attempts)
    document = answer_document(
        verdict, each.decision_id, work.now, authority.policy_version, call.arguments, each.hold_ids, limits, hint, approval
    )
    text = canonical_text(document)
    event = Event(
        EVENT,
        work.now,
        work.principal.subject,
        tuple(sorted(work.principal.roles)),
        _facts(each, approval.approval_id if approval else None),
        f'{{"answer":{text},"request":{canonical_text(request_document(work))}}}',
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
    hint_document = hint.document() if hint is not None else None
    each.answer = CheckAnswer(text, call.tool, call.call_id, verdict.reason, hint_document, False, authority.name, 0, "")


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
        "resources": [verdict.need.resource.text] if verdict.need is not None else None,
        "decision_id": str(each.decision_id),
        "decision": verdict.decision.value,
        "reason": verdict.reason,
        "refused_by": _refused_by(verdict),
        "risk_score": verdict.risk["score"] if verdict.risk is not None else None,
        "policy_version": work.authority.policy_version,
        "approval_id": str(approval_id) if approval_id is not None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def request_document(work: Work) -> dict[str, object]:
    """Give the request as it is kept: what was sent, under the names that it was sent with."""
    call = work.call
    document: dict[str, object] = {
        "tool": call.tool,
        "arguments": dict(call.arguments),
        "session_id": call.session_id,
        "call_id": call.call_id,
    }
    optional: tuple[tuple[str, object | None], ...] = (
        ("task_id", call.task_id),
        ("turn", call.turn),
        ("state_version", call.state_version),
        ("approval_id", call.approval_id),
        ("requested_scope", list(call.requested_scope) if call.requested_scope is not None else None),
    )
    document |= {name: value for name, value in optional if value is not None}
    behalf = {name: value for name, value in (("id", call.on_behalf_of_id), ("segment", call.segment)) if value is not None}
    if behalf:
        document["on_behalf_of"] = behalf
    return document


def _approval(write: BatchWrite, each: Decided, clock: Clock) -> tuple[Approval, UUID]:
    """Give the approval to wait for: the pending one of this call if all that it is bound to is the same, else a new one."""
    work, verdict, call = each.work, each.verdict, each.work.call
    prepared = work.prepared
    assert prepared is not None
    tool = prepared.context.tool
    left_open = {parts_of(pointer)[0] for pointer in tool.unbound}
    kept = {name: value for name, value in call.arguments.items() if name not in left_open}
    bound_digest = digest({"tool": call.tool, "arguments": kept})
    effects_digest = str(verdict.side_effects["digest"]) if verdict.side_effects is not None else None
    policy_digest = digest({"tool": tool.digest, "rests_on": list(verdict.rests_on), "thresholds": _thresholds(verdict)})
    binding = (bound_digest, effects_digest, policy_digest, call.state_version, call.task_id, call.on_behalf_of_id, call.segment)
    pending = each.place.known.approval if each.place.known is not None else None
    if pending is not None:
        if pending.expires_at > work.now and binding == _binding(pending):
            return Approval(pending.approval_id, pending.expires_at), pending.approval_id
        write.add("void", {"tenant_id": work.principal.tenant_id, "approval_id": pending.approval_id})
    rule = _approval_rule(each)
    approval = Approval(clock.new_id(), work.now + timedelta(seconds=rule.expires_after_s))
    review = _review(each)
    write.add(
        "approvals",
        {
            "tenant_id": work.principal.tenant_id,
            "approval_id": approval.approval_id,
            "kind": "tool_call",
            "status": "pending",
            "decision_id": each.decision_id,
            "requested_by": work.principal.subject,
            "requested_by_owner": work.principal.owner,
            "session_id": call.session_id,
            "task_id": call.task_id,
            "on_behalf_of_id": call.on_behalf_of_id,
            "segment": call.segment,
            "call_id": call.call_id,
            "tool": call.tool,
            "scope": canonical(scope_document(verdict.need)),
            "bound_digest": bound_digest,
            "effects_digest": effects_digest,
            "policy_digest": policy_digest,
            "state_version": call.state_version,
            "review": canonical(review),
            "seen_digest": digest(review),
            "quorum_required": rule.quorum,
            "quorum_roles": list(rule.roles),
            "on_expiry": rule.on_expiry,
            "created_at": work.now,
            "expires_at": approval.expires_at,
        },
    )
    return approval, approval.approval_id


def _approval_left(write: BatchWrite, each: Decided) -> UUID | None:
    """Give the pending approval that a call still waits for after a moment's trouble; one that was decided otherwise has it voided."""
    pending = each.place.known.approval if each.place.standing == "decide" and each.place.known is not None else None
    if pending is None:
        return None
    if each.verdict.refused is not None and each.verdict.refused.hint.retryable in (Retryable.AFTER_DELAY, Retryable.AFTER_APPROVAL):
        return pending.approval_id
    write.add("void", {"tenant_id": each.work.principal.tenant_id, "approval_id": pending.approval_id})
    return None


def _binding(pending: PendingApproval) -> tuple[object, ...]:
    return (
        pending.bound_digest,
        pending.effects_digest,
        pending.policy_digest,
        pending.state_version,
        pending.task_id,
        pending.on_behalf_of_id,
        pending.segment,
    )


def _thresholds(verdict: Verdict) -> dict[str, object]:
    return {name: verdict.risk[name] for name in ("review_at", "deny_at", "thresholds_for")} if verdict.risk is not None else {}


def _approval_rule(each: Decided) -> ApprovalRule:
    prepared = each.work.prepared
    assert prepared is not None
    context = prepared.context
    for rule in context.policy.approvals:
        if any(selects(rule.selector, context.tool.name, segment, context.principal.subject) for segment in context.possible_segments):
            return rule
    return DEFAULT_APPROVAL


def _review(each: Decided) -> dict[str, object]:
    """Give what a reviewer is to see: the call, why it waits, what it would do, and what that leaves of the budgets."""
    verdict, work = each.verdict, each.work
    prepared = work.prepared
    assert prepared is not None and prepared.bindings is not None and verdict.refused is not None
    budgets = []
    for account in prepared.accounts.budgets:
        counted = counted_by(account.budget, prepared.context, prepared.bindings)
        balance = each.balances.get(account.account)
        if counted is None or balance is None:
            continue
        limit = account.budget.limit
        left = limit.minor - balance.held - balance.spent
        budgets.append(
            {
                "name": f"budget:{account.budget.name}",
                "level": account.budget.level,
                "remaining_before": type(limit)(max(0, left), limit.unit, limit.exponent).render(),
                "remaining_after": type(limit)(max(0, left - counted.minor), limit.unit, limit.exponent).render(),
            }
        )
    review: dict[str, object] = {
        "call": {"tool": work.call.tool, "arguments": dict(work.call.arguments)},
        "why": [{"layer": verdict.refused.layer.value, "reason": verdict.reason}],
        "budgets": budgets,
    }
    if verdict.side_effects is not None:
        review["side_effects"] = dict(verdict.side_effects)
    if verdict.risk is not None:
        review["risk"] = dict(verdict.risk)
    return review


def replayed_answer(work: Work, known: Known) -> CheckAnswer:
    """Give the stored decision again; it permits nothing, because the first answer already did."""
    assert work.authority is not None
    payload = jiter.from_json(known.payload.encode(), float_mode="decimal") if known.payload is not None else {}
    document = {**payload.get("answer", {"decision_id": str(known.decision_id)}), "execution_permitted": False}
    call = work.call
    return CheckAnswer(
        canonical_text(document),
        call.tool,
        call.call_id,
        str(document.get("reason", "")),
        document.get("fix_hint"),
        True,
        work.authority.name,
        known.sequence,
        known.hash,
    )

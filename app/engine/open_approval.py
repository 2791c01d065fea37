"""The approval that a call waits for: opened, found again or voided, and what its reviewer is to see (SPEC S7.1, S7.2).

An approval stands for one call as it is: whatever of `_binding` changes, the old one is voided and a new one opened. A reviewer is shown
no secret, and what was seen (`seen_digest`) is exactly what was shown.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from app.domain.canonical import canonical, digest
from app.domain.hint import Retryable
from app.domain.json_pointer import parts_of
from app.domain.redaction import scrubbed
from app.engine.answer import Approval, counted_budgets, scope_document
from app.engine.clock import Clock
from app.engine.decided import Decided
from app.engine.kept_documents import KeptCall
from app.guards.holds import remaining_of
from app.guards.pipeline import Verdict
from app.guards.risk import selects
from app.policy.model import ApprovalRule, Selector
from app.storage.decision_batch import BatchWrite

DEFAULT_APPROVAL = ApprovalRule(Selector(), 1, ("reviewer",), 1_800, "refused")


def open_approval(write: BatchWrite, each: Decided, clock: Clock, kept: KeptCall) -> tuple[Approval, UUID]:
    """Give the approval to wait for: the pending one of this call if all that it is bound to is the same, else a new one."""
    work, verdict, call = each.work, each.verdict, each.work.call
    binding = _binding(each)
    pending = each.place.known.approval if each.place.known is not None else None
    if pending is not None:
        if pending.expires_at > work.now and all(getattr(pending, name) == value for name, value in binding.items()):
            return Approval(pending.approval_id, pending.expires_at), pending.approval_id
        write.add("void", {"tenant_id": work.principal.tenant_id, "approval_id": pending.approval_id})
    rule = _approval_rule(each)
    approval = Approval(clock.new_id(), work.now + timedelta(seconds=rule.expires_after_s))
    review = _review(each, kept)
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
            "call_id": call.call_id,
            "tool": call.tool,
            "scope": canonical(scrubbed(scope_document(verdict.need), kept.secrets)),
            **binding,
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


def approval_left(write: BatchWrite, each: Decided) -> UUID | None:
    """Give the pending approval that a call still waits for after a moment's trouble; one that was decided otherwise has it voided."""
    pending = each.place.known.approval if each.place.standing == "decide" and each.place.known is not None else None
    if pending is None:
        return None
    if each.verdict.refused is not None and each.verdict.refused.hint.retryable in (Retryable.AFTER_DELAY, Retryable.AFTER_APPROVAL):
        return pending.approval_id
    write.add("void", {"tenant_id": each.work.principal.tenant_id, "approval_id": pending.approval_id})
    return None


def _binding(each: Decided) -> dict[str, object]:
    """Give what an approval of a call is bound to; the digests are over the real values, whatever of them a reviewer is shown."""
    verdict, call, prepared = each.verdict, each.work.call, each.work.prepared
    assert prepared is not None
    tool = prepared.context.tool
    left_open = {parts_of(pointer)[0] for pointer in tool.unbound}
    bound = {name: value for name, value in call.arguments.items() if name not in left_open}
    return {
        "bound_digest": digest({"tool": call.tool, "arguments": bound}),
        "effects_digest": str(verdict.side_effects["digest"]) if verdict.side_effects is not None else None,
        "policy_digest": digest({"tool": tool.digest, "rests_on": list(verdict.rests_on), "thresholds": _thresholds(verdict)}),
        "state_version": call.state_version,
        "task_id": call.task_id,
        "on_behalf_of_id": call.on_behalf_of_id,
        "segment": call.segment,
    }


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


def _review(each: Decided, kept: KeptCall) -> dict[str, object]:
    """Give what a reviewer is to see: the call, why it waits, what it would do, and what that leaves of the budgets."""
    verdict, work = each.verdict, each.work
    prepared = work.prepared
    assert prepared is not None and verdict.refused is not None
    review: dict[str, object] = {
        "call": {"tool": work.call.tool, "arguments": dict(kept.arguments)},
        "why": [{"layer": verdict.refused.layer.value, "reason": verdict.reason}],
        "budgets": [
            {
                "name": f"budget:{account.budget.name}",
                "level": account.budget.level,
                "remaining_before": remaining_of(account.budget.limit, balance).render(),
                "remaining_after": remaining_of(account.budget.limit, balance, counted).render(),
            }
            for account, balance, counted in counted_budgets(prepared, each.verdict, each.balances)
        ],
    }
    if verdict.side_effects is not None:
        review["side_effects"] = dict(verdict.side_effects)
    if verdict.risk is not None:
        review["risk"] = dict(verdict.risk)
    return review

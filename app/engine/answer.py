"""The answer to a check as a document: API.md 1.1 and 1.2, without what only the moment of answering knows.

This is what is stored, hashed into the audit row and replayed, in the locale of the call that it was first given to: a replay that asks for
another locale gets the stored sentences. `audit`, `replayed` and the message for the model are added when it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from app.domain.decision import ABSENT, Check, Decision, LayerResult, Outcome
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable, Suggestion
from app.domain.quantity import Quantity
from app.domain.scope import Entry, render_entry
from app.domain.wording import Locales, say
from app.engine.clock import rfc3339
from app.guards.context import Balance, NewHold
from app.guards.holds import BudgetAccount, counted_by, remaining_of
from app.guards.pipeline import Prepared, Verdict
from app.guards.scope import effective_entry
from app.policy.model import LoopLimit


@dataclass(frozen=True, slots=True)
class Approval:
    """A pending approval as the asker sees it."""

    approval_id: UUID
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often a rule has refused this task, this time included, and how often it may."""

    limit: LoopLimit
    rule: str
    count: int

    @property
    def left(self) -> int:
        return max(0, self.limit.refusals_of_a_rule - self.count)


def answer_document(
    verdict: Verdict,
    decision_id: UUID,
    decided_at: datetime,
    policy_version: int | None,
    arguments: Mapping[str, object],
    hold_ids: tuple[UUID, ...],
    limits: list[dict[str, object]],
    hint: FixHint | None,
    approval: Approval | None,
) -> dict[str, object]:
    """Put the answer together; keys as API.md has them, absent where there is nothing to say."""
    permitted = verdict.decision in (Decision.ACCEPTED, Decision.MODIFIED)
    document: dict[str, object] = {
        "decision_id": str(decision_id),
        "decision": verdict.decision.value,
        "execution_permitted": permitted,
        "reason": verdict.reason,
        "layers": [_layer(layer) for layer in verdict.layers],
        "cuts": [dict(cut) for cut in verdict.cuts],
        "holds": [_hold(hold, hold_id) for hold, hold_id in zip(verdict.holds, hold_ids, strict=True)],
        "obligations": [],
        "limits": limits,
        "decided_at": rfc3339(decided_at),
    }
    if verdict.refused is not None and verdict.decision is Decision.DENIED:
        document["refused_by"] = verdict.refused.layer.value
    if permitted:
        document["effective_arguments"] = dict(arguments)
        if verdict.need is not None:
            document["effective_scope"] = [effective_entry(verdict.need, verdict.rests_on)]
        if verdict.compensation is not None:
            document["compensation"] = verdict.compensation
    if verdict.side_effects is not None:
        document["side_effects"] = dict(verdict.side_effects)
    if verdict.risk is not None:
        document["risk"] = dict(verdict.risk)
    if approval is not None:
        document["approval"] = approval_document(approval)
    if policy_version is not None:
        document["policy_version"] = policy_version
    if hint is not None:
        document["fix_hint"] = hint.document()
    return document


def approval_document(approval: Approval) -> dict[str, object]:
    """Give `approval` as the asker sees it."""
    approval_id = str(approval.approval_id)
    return {
        "approval_id": approval_id,
        "status": "pending",
        "wait_url": f"/approvals/{approval_id}?wait_s=60",
        "expires_at": rfc3339(approval.expires_at),
    }


def finished_hint(
    verdict: Verdict, attempts: Attempts | None, suggestion: Suggestion | None, approval: Approval | None, locales: Locales
) -> FixHint | None:
    """Complete a refusal's hint: the attempts that are left, the verified suggestion, the approval to wait for."""
    if verdict.refused is None:
        return None
    hint = verdict.refused.hint
    if suggestion is not None:
        hint = replace(hint, suggestion=suggestion)
    if approval is not None:
        action = NextAction(NextActionKind.WAIT_FOR_APPROVAL, approval_id=str(approval.approval_id))
        hint = replace(hint, next_action=action)
    if attempts is not None:
        hint = replace(hint, attempts_left=attempts.left)
        if attempts.left == 0 and verdict.decision is Decision.DENIED and hint.retryable is Retryable.AFTER_CHANGE:
            message = say(locales, "last_attempt", found=hint.message)
            hint = replace(
                hint,
                denial_class=DenialClass.LOOP,
                retryable=Retryable.NEVER,
                message=message,
                next_action=NextAction(NextActionKind.STOP),
                suggestion=None,
            )
    return hint


def counted_budgets(
    prepared: Prepared, verdict: Verdict, balances: Mapping[str, Balance]
) -> Iterator[tuple[BudgetAccount, Balance, Quantity]]:
    """Give the budgets that count a call, with what they hold and what the call takes."""
    bindings = verdict.bindings if verdict.bindings is not None else prepared.bindings
    for each in prepared.accounts.budgets:
        balance = balances.get(each.account)
        if balance is not None and bindings is not None:
            counted = counted_by(each.budget, prepared.context, bindings)
            if counted is not None:
                yield each, balance, counted


def limits_document(
    prepared: Prepared | None, verdict: Verdict, balances: Mapping[str, Balance], attempts: Attempts | None
) -> list[dict[str, object]]:
    """Say what remains of the budgets that count this call, and of the attempts of the rule that refused it."""
    found: list[dict[str, object]] = []
    for each, balance, _ in counted_budgets(prepared, verdict, balances) if prepared is not None else ():
        limit = each.budget.limit
        entry: dict[str, object] = {
            "name": f"budget:{each.budget.name}",
            "level": each.budget.level,
            "limit": limit.render(),
            "spent": Quantity(balance.spent, limit.unit, limit.exponent).render(),
            "held": Quantity(balance.held, limit.unit, limit.exponent).render(),
            "remaining": remaining_of(limit, balance).render(),
        }
        if each.resets_at is not None:
            entry["resets_at"] = rfc3339(each.resets_at)
        found.append(entry)
    if attempts is not None and attempts.count > 0:
        most = attempts.limit.refusals_of_a_rule
        found.append(
            {
                "name": "loop:refusals_of_a_rule",
                "level": attempts.limit.level,
                "limit": Quantity(most, "refusals", 0).render(),
                "spent": Quantity(attempts.count, "refusals", 0).render(),
                "remaining": Quantity(attempts.left, "refusals", 0).render(),
            }
        )
    return found


def scope_document(need: Entry | None) -> list[dict[str, object]]:
    """Give a call's need as a scope."""
    return [render_entry(need)] if need is not None else []


@lru_cache(maxsize=4_096)
def _plain_check(name: str, outcome: Outcome) -> Mapping[str, object]:
    return {"name": name, "outcome": outcome.value}


def _layer(layer: LayerResult) -> dict[str, object]:
    return {
        "name": layer.name.value,
        "outcome": layer.outcome.value,
        "checks": [_check(check) for check in layer.checks],
        "duration_us": layer.duration_us,
    }


def _check(check: Check) -> Mapping[str, object]:
    if check.reason is None and check.message is None and check.actual is ABSENT:
        return _plain_check(check.name, check.outcome)
    document: dict[str, object] = {"name": check.name, "outcome": check.outcome.value}
    texts = (("reason", check.reason), ("field", check.field), ("fact", check.fact), ("message", check.message))
    document |= {name: value for name, value in texts if value is not None}
    if check.actual is not ABSENT:
        document["actual"] = check.actual
    if check.expected is not ABSENT:
        document["expected"] = check.expected
    return document


def _hold(hold: NewHold, hold_id: UUID) -> dict[str, object]:
    return {"hold_id": str(hold_id), "account": hold.shown, "quantity": hold.quantity.render(), "status": "held"}

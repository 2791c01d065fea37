"""The holds layer: what a permitted call reserves, on the resources' accounts and on every budget that counts it (SPEC S3.8, S9.1).

A check holds from all accounts that apply or from none, and spent + held never passes a limit. Accounts are named from the arguments, the
principal and the clock alone, so that they can be locked before any state is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from app.domain.decision import Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import CALL_AGAIN, STOP, WAIT_FOR_APPROVAL, DenialClass, Retryable
from app.domain.quantity import MINOR_MAX, Quantity
from app.domain.wording import Locales, say
from app.guards.call_money import money_of
from app.guards.context import Balance, CallContext, LayerVerdict, NewHold
from app.guards.refusal import layer_refuses, refusal_of
from app.guards.risk import selects
from app.policy.expressions import Bindings
from app.policy.model import Budget
from app.policy.templates import TemplateFailed


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """A budget as it applies to one call: its stored account and the window's end (None: it never resets)."""

    budget: Budget
    account: str
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a call's holds are on: by the hold's name, and the budgets that may count it."""

    resources: Mapping[str, str]
    budgets: tuple[BudgetAccount, ...]

    def names(self) -> tuple[str, ...]:
        return (*self.resources.values(), *(each.account for each in self.budgets))


@dataclass(frozen=True, slots=True)
class HoldsVerdict:
    verdict: LayerVerdict
    holds: tuple[NewHold, ...] = ()


def accounts_of(context: CallContext, bindings: Bindings) -> Accounts:
    """Name the accounts of a call.

    Raises:
        TemplateFailed: a hold's `on` needs a value that the arguments don't have.
    """
    resources = {hold.name: f"resource:{hold.on.text(bindings)}" for hold in context.tool.holds}
    found = []
    for budget in context.policy.budgets:
        segments = context.possible_segments
        if any(selects(budget.selector, context.tool.name, segment, context.principal.subject) for segment in segments):
            start, end = _window(budget, context.now)
            # with the unit: a version that sets another currency begins at zero, instead of adding yen to euros
            for level in _levels(budget, context):
                parts = (budget.name, budget.limit.unit, level, start)
                found.append(BudgetAccount(budget, "budget:" + "|".join(_escaped(part) for part in parts), end))
    return Accounts(resources, tuple(found))


def check_holds(context: CallContext, bindings: Bindings, accounts: Accounts, balances: Mapping[str, Balance]) -> HoldsVerdict:
    """Say what to hold, or which account can't bear it. `balances` already include what this batch has decided before."""
    checks: list[Check] = []
    holds: list[NewHold] = []
    locales = context.call.locales
    for hold in context.tool.holds:
        account = accounts.resources[hold.name]
        try:
            quantity, limit = hold.quantity.render(bindings), hold.limit.render(bindings)
        except TemplateFailed:
            quantity = limit = None
        balance = balances[account]
        if not isinstance(quantity, Quantity) or not isinstance(limit, Quantity) or quantity.minor < 0 or quantity.unit != limit.unit:
            return _refuse(_broken(hold.name, locales), DenialClass.STATE, 0)
        if balance.unit not in (None, quantity.unit) or balance.held + balance.spent + quantity.minor > min(limit.minor, MINOR_MAX):
            left = remaining_of(limit, balance)
            return _refuse(_exceeded(hold.name, Reason.HOLD_EXCEEDS_LIMIT, quantity, left, locales), DenialClass.STATE, left.minor)
        checks.append(accepted(hold.name))
        holds.append(NewHold(account, account.removeprefix("resource:"), quantity))
    asked: Check | None = None
    for each in accounts.budgets:
        counted = counted_by(each.budget, context, bindings)
        if counted is None:
            continue
        balance = balances[each.account]
        shown = f"budget:{each.budget.name}"
        if balance.held + balance.spent + counted.minor > each.budget.limit.minor:
            left = remaining_of(each.budget.limit, balance)
            check = _exceeded(shown, Reason.BUDGET_EXCEEDED, counted, left, locales)
            if each.budget.on_exceed == "deny":
                return _refuse(check, DenialClass.BUDGET, left.minor)
            asked = asked or replace(check, outcome=Outcome.NEEDS_USER)
            continue
        checks.append(accepted(shown))
        holds.append(NewHold(each.account, shown, counted))
    if asked is not None:
        return _ask(asked, checks, locales)
    return HoldsVerdict(LayerVerdict(LayerResult(Layer.HOLDS, Outcome.ACCEPTED, tuple(checks))), tuple(holds))


def remaining_of(limit: Quantity, balance: Balance, taken: Quantity | None = None) -> Quantity:
    """Give what is left of a limit, beside `taken` as well; never less than nothing."""
    left = limit.minor - balance.held - balance.spent - (taken.minor if taken is not None else 0)
    return Quantity(max(0, left), limit.unit, limit.exponent)


def counted_by(budget: Budget, context: CallContext, bindings: Bindings) -> Quantity | None:
    """Give what a call takes from a budget, or None where it is in another currency or has no money."""
    if not budget.limit.is_currency:
        return Quantity(1, budget.limit.unit, 0) if budget.limit.unit == "calls" else None
    amount = money_of(context.tool, bindings)
    return amount if amount is not None and amount.unit == budget.limit.unit else None


def _levels(budget: Budget, context: CallContext) -> tuple[str, ...]:
    """Name whom a call counts for: one, or each segment that it may belong to, so that naming none gives no second limit."""
    call = context.call
    match budget.level:
        case "tenant":
            return ("",)
        case "segment":
            return tuple(segment or "" for segment in context.possible_segments)
        case "principal":
            return (context.principal.subject,)
        case "session":
            return (call.session_id,)
        case "task":
            return (f"{_escaped(call.session_id)}|{_escaped(call.task_id or '')}",)


def _window(budget: Budget, now: datetime) -> tuple[str, datetime | None]:
    if budget.window == "total":
        return "", None
    zone = ZoneInfo(budget.time_zone)
    local = now.astimezone(zone)
    match budget.window:
        case "minute":
            start = now.astimezone(UTC).replace(second=0, microsecond=0)
            return start.isoformat(), start + timedelta(minutes=1)
        case "hour":
            start = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            return start.isoformat(), start + timedelta(hours=1)
        case "day":
            day = local.date()
            after = day + timedelta(days=1)
            return day.isoformat(), datetime(after.year, after.month, after.day, tzinfo=zone).astimezone(UTC)
        case "month":
            year, month = (local.year + 1, 1) if local.month == 12 else (local.year, local.month + 1)
            return f"{local:%Y-%m}", datetime(year, month, 1, tzinfo=zone).astimezone(UTC)


def _escaped(part: str) -> str:
    return part.replace("\\", "\\\\").replace("|", "\\|")


def _exceeded(name: str, reason: Reason, wanted: Quantity, left: Quantity, locales: Locales) -> Check:
    message = say(locales, "over_what_is_left", wanted=wanted.text(), left=left.text())
    expected = {"maximum": left.as_number()}
    return Check(name, Outcome.DENIED, reason, None, f"{name}.remaining", wanted.as_number(), expected, message)


def _broken(name: str, locales: Locales) -> Check:
    return Check(name, Outcome.DENIED, Reason.RULE_ERROR, message=say(locales, "hold_error", name=name))


def _refuse(check: Check, denial_class: DenialClass, left: int) -> HoldsVerdict:
    """Refuse; where nothing is left, no smaller call would pass either."""
    action = CALL_AGAIN if left else STOP
    return HoldsVerdict(layer_refuses(refusal_of(Layer.HOLDS, check, denial_class, action=action), (check,)))


def _ask(check: Check, before: list[Check], locales: Locales) -> HoldsVerdict:
    message = say(locales, "over_budget_ask", found=check.message)
    asked = refusal_of(Layer.HOLDS, check, DenialClass.BUDGET, Retryable.AFTER_APPROVAL, WAIT_FOR_APPROVAL, message=message)
    return HoldsVerdict(layer_refuses(asked, (*before, check)))

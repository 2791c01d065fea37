"""The holds layer: what a permitted call reserves, on the resources' accounts and on every budget that counts it (SPEC S3.8, S9.1).

A check holds from all accounts that apply or from none, and spent + held never passes a limit. Accounts are named from the arguments, the
principal and the clock alone, so that they can be locked before any state is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.quantity import MINOR_MAX, Quantity
from app.guards.context import Balance, CallContext, LayerVerdict, NewHold, Refused
from app.guards.risk import selects
from app.policy.currencies import exponent_of
from app.policy.expressions import Bindings
from app.policy.model import Budget, Tool
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
    for hold in context.tool.holds:
        account = accounts.resources[hold.name]
        try:
            quantity, limit = hold.quantity.render(bindings), hold.limit.render(bindings)
        except TemplateFailed:
            quantity = limit = None
        balance = balances[account]
        if not isinstance(quantity, Quantity) or not isinstance(limit, Quantity) or quantity.minor < 0 or quantity.unit != limit.unit:
            return _refuse(_broken(hold.name))
        if balance.unit not in (None, quantity.unit) or balance.held + balance.spent + quantity.minor > min(limit.minor, MINOR_MAX):
            left = Quantity(max(0, limit.minor - balance.held - balance.spent), limit.unit, limit.exponent)
            return _refuse(_exceeded(hold.name, Reason.HOLD_EXCEEDS_LIMIT, quantity, left), DenialClass.STATE)
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
            limit = each.budget.limit
            left = Quantity(max(0, limit.minor - balance.held - balance.spent), limit.unit, limit.exponent)
            check = _exceeded(shown, Reason.BUDGET_EXCEEDED, counted, left)
            if each.budget.on_exceed == "deny":
                return _refuse(check, DenialClass.BUDGET)
            asked = asked or Check(
                shown,
                Outcome.NEEDS_USER,
                check.reason,
                fact=check.fact,
                actual=check.actual,
                expected=check.expected,
                message=check.message,
            )
            continue
        checks.append(accepted(shown))
        holds.append(NewHold(each.account, shown, counted))
    if asked is not None:
        return _ask(asked, checks)
    return HoldsVerdict(LayerVerdict(LayerResult(Layer.HOLDS, Outcome.ACCEPTED, tuple(checks))), tuple(holds))


def counted_by(budget: Budget, context: CallContext, bindings: Bindings) -> Quantity | None:
    """Give what a call takes from a budget, or None where it is in another currency or has no money."""
    if not budget.limit.is_currency:
        return Quantity(1, budget.limit.unit, 0) if budget.limit.unit == "calls" else None
    amount = _amount(context.tool, bindings)
    return amount if amount is not None and amount.unit == budget.limit.unit else None


def _amount(tool: Tool, bindings: Bindings) -> Quantity | None:
    """Give the call's money: the tool's first money argument."""
    if not tool.money:
        return None
    name = "args" + tool.money[0].replace("/", ".")
    minor, currency = bindings.values.get(f"{name}.minor"), bindings.values.get(f"{name}.currency")
    exponent = exponent_of(currency) if isinstance(currency, str) else None
    return Quantity(minor, str(currency), exponent) if type(minor) is int and exponent is not None else None


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


def _exceeded(name: str, reason: Reason, wanted: Quantity, left: Quantity) -> Check:
    message = f"{wanted.text()} is more than what is left there: {left.text()}"
    return Check(
        name,
        Outcome.DENIED,
        reason,
        fact=f"{name}.remaining",
        actual=wanted.as_number(),
        expected={"maximum": left.as_number()},
        message=message,
    )


def _broken(name: str) -> Check:
    return Check(name, Outcome.DENIED, Reason.RULE_ERROR, message=f"the hold {name} could not be computed, so the call is refused")


def _refuse(check: Check, denial_class: DenialClass = DenialClass.STATE) -> HoldsVerdict:
    hint = FixHint(
        denial_class,
        Retryable.AFTER_CHANGE,
        check.message or "",
        NextAction(NextActionKind.CALL_AGAIN),
        fact=check.fact,
        actual=check.actual,
        expected=check.expected,
    )
    refused = Refused(Decision.DENIED, Layer.HOLDS, str(check.reason), hint, check.name)
    return HoldsVerdict(LayerVerdict(LayerResult(Layer.HOLDS, Outcome.DENIED, (check,)), refused))


def _ask(check: Check, before: list[Check]) -> HoldsVerdict:
    message = f"{check.message}; a person has to approve this call"
    hint = FixHint(
        DenialClass.BUDGET,
        Retryable.AFTER_APPROVAL,
        message,
        NextAction(NextActionKind.WAIT_FOR_APPROVAL),
        fact=check.fact,
        actual=check.actual,
        expected=check.expected,
    )
    refused = Refused(Decision.NEEDS_USER, Layer.HOLDS, str(check.reason), hint, check.name)
    return HoldsVerdict(LayerVerdict(LayerResult(Layer.HOLDS, Outcome.NEEDS_USER, (*before, check)), refused))

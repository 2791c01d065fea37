"""Budgets: which account counts a call, when it begins and ends, and that no limit is passed (SPEC S9.1, S9.2)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.quantity import MINOR_MAX, Quantity
from app.guards.context import Balance
from app.policy.model import Budget, Policy, Selector
from tests.guards.judging import AGENT, POLICY, amount, judge, prepared_call

DAY = POLICY.budgets[0]
EUROS = Quantity(100_000, "EUR", 2)


def with_budgets(*budgets: Budget) -> Policy:
    return replace(POLICY, budgets=budgets)


def account(budget: Budget, now: datetime, **call: Any) -> tuple[str, datetime | None]:
    found = prepared_call(with_budgets(budget), now=now, **call).accounts.budgets[0]
    return found.account, found.resets_at


@pytest.mark.parametrize(
    ("now", "day", "resets_at"),
    [
        ("2026-12-01T22:59:59.999", "2026-12-01", "2026-12-01T23:00:00"),  # winter: midnight in Berlin is 23:00 UTC
        ("2026-12-01T23:00:00", "2026-12-02", "2026-12-02T23:00:00"),
        ("2026-07-01T21:59:59.999", "2026-07-01", "2026-07-01T22:00:00"),  # summer: 22:00 UTC
        ("2026-07-01T22:00:00", "2026-07-02", "2026-07-02T22:00:00"),
        ("2026-03-28T23:00:00", "2026-03-29", "2026-03-29T22:00:00"),  # the day of 23 hours
        ("2026-10-24T22:00:00", "2026-10-25", "2026-10-25T23:00:00"),  # the day of 25 hours
        ("2026-10-25T00:30:00", "2026-10-25", "2026-10-25T23:00:00"),  # 02:30 for the first time
        ("2026-10-25T01:30:00", "2026-10-25", "2026-10-25T23:00:00"),  # and for the second
        ("2026-12-31T23:00:00", "2027-01-01", "2027-01-01T23:00:00"),
        ("2028-02-28T23:00:00", "2028-02-29", "2028-02-29T23:00:00"),
    ],
)
def test_a_day_is_the_day_of_its_time_zone(now: str, day: str, resets_at: str) -> None:
    """S9.1: around midnight, and on the days when the clocks change."""
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    name, end = account(DAY, moment)
    assert name.endswith(f"|{day}")
    assert end == datetime.fromisoformat(resets_at).replace(tzinfo=UTC)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 15 * 365 * 86_400_000).map(lambda ms: datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)),
    st.sampled_from(["minute", "hour", "day", "month"]),
    st.sampled_from(["Europe/Berlin", "UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia"]),
)
def test_windows_follow_one_another_without_a_gap(now: datetime, window: Any, zone: str) -> None:
    """The end of a window is the beginning of the next: [from, until)."""
    budget = replace(DAY, window=window, time_zone=zone)
    name, end = account(budget, now)
    assert end is not None
    assert end > now
    assert account(budget, end - (end - now) / 2)[0] == name
    after, later = account(budget, end)
    assert after != name
    assert later is not None
    assert later > end


@pytest.mark.parametrize(
    ("level", "same", "other"),
    [
        ("tenant", {"principal": replace(AGENT, subject="second")}, None),
        ("principal", {"session_id": "another"}, {"principal": replace(AGENT, subject="second")}),
        ("session", {"task_id": "t2"}, {"session_id": "another"}),
        ("task", {"call_id": "c2"}, {"task_id": "t2"}),
        ("segment", {"session_id": "another"}, {"segment": "trusted_buyer"}),
    ],
)
def test_a_level_says_who_shares_an_account(level: Any, same: dict[str, Any], other: dict[str, Any] | None) -> None:
    budget, now = replace(DAY, level=level), datetime(2026, 12, 1, tzinfo=UTC)
    base = account(budget, now)[0]
    assert account(budget, now, **same)[0] == base
    if other is not None:
        assert account(budget, now, **other)[0] != base


@given(
    st.lists(st.text(alphabet="a|\\", max_size=4), min_size=2, max_size=2, unique=True),
    st.lists(st.text(alphabet="a|\\", max_size=4), min_size=2, max_size=2),
)
@settings(max_examples=100, deadline=None)
def test_names_that_differ_have_accounts_that_differ(sessions: list[str], tasks: list[str]) -> None:
    """A `|` in an id is no way into another's account."""
    budget, now = replace(DAY, level="task"), datetime(2026, 12, 1, tzinfo=UTC)
    first, second = (account(budget, now, session_id=session, task_id=task)[0] for session, task in zip(sessions, tasks, strict=True))
    assert first != second


def test_two_currencies_of_one_budget_never_meet() -> None:
    """API.md 0.2: a version that sets another currency begins at zero; euros are no yen."""
    now = datetime(2026, 12, 1, tzinfo=UTC)
    yen = replace(DAY, limit=Quantity(100_000, "JPY", 0))
    assert account(DAY, now)[0] != account(yen, now)[0]


def test_a_call_in_another_currency_is_not_counted() -> None:
    order = {"status": "paid", "currency": "JPY", "paid_minor": 80_000, "refunded_minor": 0}
    found = judge(arguments={"amount": 500, "currency": "JPY"}, evidence={"order": order})
    assert [hold.shown for hold in found.holds] == ["order:A-1001"]


def test_a_budget_of_calls_counts_one_a_call() -> None:
    calls = Budget("calls", "session", Selector(tool="refund"), Quantity(3, "calls", 0), "total", "UTC", "deny")
    policy = with_budgets(calls)
    assert [(hold.shown, hold.quantity.minor, hold.quantity.unit) for hold in judge(policy).holds][1] == ("budget:calls", 1, "calls")
    assert judge(policy, evidence={"budget": Balance("calls", 2, 0)}).decision == "accepted"
    assert judge(policy, evidence={"budget": Balance("calls", 2, 1)}).reason == "budget_exceeded"
    assert account(calls, datetime(2026, 12, 1, tzinfo=UTC)) == ("budget:calls|calls|chat-1|", None)


def test_all_budgets_hold_or_none() -> None:
    """S9.1: the second is exhausted, so the first isn't touched."""
    narrow = replace(DAY, name="narrow", limit=Quantity(1_000, "EUR", 2), on_exceed="deny")
    found = judge(with_budgets(DAY, narrow))
    assert (found.reason, found.holds) == ("budget_exceeded", ())
    assert found.refused is not None
    assert (found.refused.hint.fact, found.refused.hint.expected) == ("budget:narrow.remaining", {"maximum": 10})


def test_a_budget_that_denies_outweighs_one_that_asks() -> None:
    asks, denies = (
        replace(DAY, name="asks", limit=Quantity(1, "EUR", 2)),
        replace(DAY, name="denies", limit=Quantity(1, "EUR", 2), on_exceed="deny"),
    )
    for budgets in ((asks, denies), (denies, asks)):
        assert judge(with_budgets(*budgets)).decision == "denied"
    assert judge(with_budgets(asks)).decision == "needs_user"


def test_a_selector_leaves_other_calls_uncounted() -> None:
    other = replace(DAY, selector=Selector(tool="refund", principal="second"))
    assert [hold.shown for hold in judge(with_budgets(other)).holds] == ["order:A-1001"]
    segment = replace(DAY, selector=Selector(segment="trusted_buyer"))
    assert [hold.shown for hold in judge(with_budgets(segment)).holds] == ["order:A-1001"]
    assert len(judge(with_budgets(segment), segment="unheard").holds) == 2, "one that may not be named counts in all that it may be"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, MINOR_MAX), st.integers(0, 100_000), st.integers(1, 10_000))
def test_no_limit_is_passed(held: int, spent: int, minor: int) -> None:
    """S9.2: spent + held <= limit, whatever stands there already."""
    found = judge(arguments=amount(f"{minor / 100:.2f}"), evidence={"budget": Balance("EUR", held, spent)})
    if found.holds:
        assert held + spent + minor <= 100_000
    else:
        assert found.reason == "budget_exceeded" if held + spent + minor > 100_000 else found.reason != "budget_exceeded"


def test_a_call_that_names_no_segment_counts_in_each_that_it_may_belong_to() -> None:
    """S9.1: leaving the segment out gives no second limit."""
    budget = replace(DAY, level="segment")
    named = prepared_call(with_budgets(budget), segment="standard").accounts.names()
    unnamed = prepared_call(with_budgets(budget), segment=None).accounts.names()
    assert set(named) < set(unnamed)
    assert len(unnamed) == len(named) + 1

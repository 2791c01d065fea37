"""What a batch knows and has decided so far: the calls' standing, running balances, and counts that its own decisions add to.

Two calls of one batch see each other exactly as two batches would: the later one sees what the earlier one held and did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from app.engine.prepare_call import Work
from app.guards.context import Balance, DryRun, Evidence, FactsRead
from app.guards.pipeline import Verdict
from app.guards.risk import selects
from app.policy.model import LoopLimit
from app.storage.decision_batch import Known, Opened, Read

STATUS_OF = {"accepted": "permitted", "modified": "permitted", "denied": "refused", "needs_user": "waiting"}

Standing = Literal["decide", "replay", "reused", "foreign", "frozen"]


@dataclass(frozen=True, slots=True)
class Place:
    """How a call stands to its call id: to be decided (again), to be replayed, used with other arguments, of another's session, or frozen,
    so that its call id was not looked at."""

    standing: Standing
    attempt: int
    known: Known | None = None


def place_of(index: int, work: Work, opened: Opened) -> Place:
    """Say how a call stands after the claim."""
    if work.frozen is not None:
        return Place("frozen", 0)
    if index in opened.claimed:
        return Place("decide", 1)
    known = opened.known.get(index)
    if known is None:
        return Place("foreign", 0)
    if known.digest != work.digest:
        return Place("reused", 0, known)
    return Place("replay", known.attempt, known) if known.settled else Place("decide", known.attempt + 1, known)


class Ledger:
    """The batch's running state."""

    def __init__(self, works: Sequence[Work], opened: Opened) -> None:
        self.places = tuple(place_of(index, work, opened) for index, work in enumerate(works))
        self._balances = {place: Balance(*sums) for place, sums in opened.accounts.items()}
        self._statuses: dict[tuple[UUID, str], list[str]] = {}
        self._refusals: Counter[tuple[UUID, str, str, str, str]] = Counter()
        self.changed: set[tuple[UUID, str]] = set()

    def balances(self, work: Work) -> Mapping[str, Balance]:
        """Give the running balances of a call's accounts."""
        prepared = work.prepared
        if prepared is None:
            return {}
        tenant_id = work.principal.tenant_id
        return {name: self._balances[tenant_id, name] for name in prepared.accounts.names() if (tenant_id, name) in self._balances}

    def balance(self, place: tuple[UUID, str]) -> Balance:
        return self._balances[place]

    def evidence(
        self, index: int, work: Work, read: Read, facts: FactsRead, dry_run: DryRun | None, facts_us: int, dry_us: int
    ) -> Evidence:
        """Put together what a call is decided by, with what this batch decided before it."""
        history: dict[str, int] = {}
        assert work.prepared is not None
        for query in work.prepared.context.tool.history:
            mine = self._statuses.get((work.principal.tenant_id, work.queried_keys[query.name]), ())
            stored = read.history.get((index, query.name), 0)
            history[query.name] = stored + sum(status in query.statuses for status in mine)
        return Evidence(facts, history, self.balances(work), dry_run, facts_us, dry_us)

    def is_untouched(self, work: Work) -> bool:
        """Say whether nothing that this batch has decided so far changes what the call's rules see."""
        assert work.prepared is not None
        tenant_id = work.principal.tenant_id
        return not any((tenant_id, name) in self.changed for name in work.prepared.accounts.names()) and not any(
            (tenant_id, key) in self._statuses for key in work.queried_keys.values()
        )

    def refusals(self, index: int, work: Work, read: Read, limit: LoopLimit, rule: str) -> int:
        """Count how often a rule refused this task before this call."""
        return read.refusals.get(index, {}).get(rule, 0) + self._refusals[_loop_key(work, limit, rule)]

    def note(self, work: Work, verdict: Verdict) -> None:
        """Let the calls after this one see its decision."""
        tenant_id = work.principal.tenant_id
        for hold in verdict.holds:
            place = (tenant_id, hold.account)
            before = self._balances[place]
            self._balances[place] = Balance(hold.quantity.unit, before.held + hold.quantity.minor, before.spent)
            self.changed.add(place)
        for key in work.own_keys:
            self._statuses.setdefault((tenant_id, key), []).append(STATUS_OF[verdict.decision])

    def note_refusal(self, work: Work, limit: LoopLimit, rule: str) -> dict[str, object]:
        """Count a rule's refusal; the row to store."""
        key = _loop_key(work, limit, rule)
        self._refusals[key] += 1
        tenant_id, session_id, task_id, tool, name = key
        return {"tenant_id": tenant_id, "session_id": session_id, "task_id": task_id, "tool": tool, "rule": name}


def loop_limit_of(work: Work) -> LoopLimit | None:
    """Give the strictest limit on refusals that is for this call."""
    if work.policy is None or work.prepared is None:
        return None
    context = work.prepared.context
    found = [
        limit
        for limit in work.policy.loop_limits
        if any(selects(limit.selector, context.tool.name, segment, context.principal.subject) for segment in context.possible_segments)
    ]
    return min(found, key=lambda each: each.refusals_of_a_rule, default=None)


def loop_task(work: Work, limit: LoopLimit) -> str:
    """Give the task that refusals are counted by; "" is the session itself."""
    return (work.call.task_id or "") if limit.level == "task" else ""


def _loop_key(work: Work, limit: LoopLimit, rule: str) -> tuple[UUID, str, str, str, str]:
    return (work.principal.tenant_id, work.call.session_id, loop_task(work, limit), work.call.tool, rule)

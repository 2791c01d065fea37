"""Lets a new history query see the calls that were decided before it was written.

Calls are counted by keys that are stored with each decision, for the queries that the policy had then. A version that asks
something new (say, a first `already_refunded` rule) would otherwise count from zero, and let a second refund pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import jiter
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import Conflict
from app.domain.tool_call import ToolCall
from app.engine.clock import Clock
from app.engine.prepare_call import history_key
from app.policy.model import HistoryQuery, Policy
from app.storage import history as stored
from app.storage.database import Database

PAGE_CALLS = 500
FINISH_PAGES_MAX = 40
OVERLAP = timedelta(seconds=10)
"""Ids are made before COMMIT: a call that was in flight when the first pass came to its end may have an id that the pass had gone by."""

Signature = tuple[str, str, tuple[str, ...]]


class _Page(NamedTuple):
    """How many calls were looked at, and the id of the last; one that isn't full is the end."""

    calls: int
    last: UUID | None


async def backfill_history(database: Database, tenant_id: UUID, old: Policy | None, new: Policy, clock: Clock) -> UUID:
    """Key the past calls that only `new` asks about, page by page, each page its own transaction; give the id to finish from.

    Safe to repeat. Calls that are decided meanwhile are keyed by `finish_backfill`, under the chain head's lock.
    """
    queries = _missing(old, new)
    after = _first_id(clock.now() - _window(queries))
    while queries:  # ends where the calls do; to keep a page full for ever, they would have to be decided faster than they are read
        async with database.transaction([tenant_id]) as connection:
            page = await _page(connection, tenant_id, queries, after)
        after = page.last or after
        if page.calls < PAGE_CALLS:
            break
    return min(after, _first_id(clock.now() - OVERLAP))


async def finish_backfill(connection: AsyncConnection, tenant_id: UUID, old: Policy | None, new: Policy, after: UUID) -> None:
    """Key what was decided behind `after`; the caller holds the chain head's lock, so nothing is decided meanwhile.

    Raises:
        Conflict: there is more than can be done under the lock.
    """
    queries = _missing(old, new)
    if not queries:
        return
    for _ in range(FINISH_PAGES_MAX):
        page = await _page(connection, tenant_id, queries, after)
        if page.last is None or page.calls < PAGE_CALLS:
            return
        after = page.last
    raise Conflict("history_behind", "calls are decided faster than the new history query can look back; activate again at a quieter time")


def _missing(old: Policy | None, new: Policy) -> Mapping[str, tuple[HistoryQuery, ...]]:
    """Give the queries of `new` whose keys `old` didn't store, by the tool whose calls they count."""
    known = {_signature(query) for queries in old.history_keys.values() for query in queries} if old is not None else set()
    found = {tool: tuple(q for q in queries if _signature(q) not in known) for tool, queries in new.history_keys.items()}
    return {tool: queries for tool, queries in found.items() if queries}


def _signature(query: HistoryQuery) -> Signature:
    return (query.tool, query.level, query.match)


def _window(queries: Mapping[str, tuple[HistoryQuery, ...]]) -> timedelta:
    return timedelta(seconds=max((query.within_s for each in queries.values() for query in each), default=0))


def _first_id(moment: datetime) -> UUID:
    """Give the smallest UUIDv7 of a moment (RFC 9562, 5.7): its first 48 bits are the milliseconds."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


async def _page(connection: AsyncConnection, tenant_id: UUID, queries: Mapping[str, tuple[HistoryQuery, ...]], after: UUID) -> _Page:
    calls = await stored.read_past_calls(connection, tenant_id, after, PAGE_CALLS)
    keys = []
    for past in calls:
        if past.tool not in queries or past.payload is None:
            continue
        request = jiter.from_json(past.payload.encode(), float_mode="decimal")["request"]
        call = ToolCall(past.tool, request["arguments"], request["session_id"], request["call_id"], request.get("task_id"))
        keys += [(key, past.decided_at, past.decision_id) for key in {history_key(query, call) for query in queries[past.tool]}]
    await stored.insert_call_keys(connection, tenant_id, keys)
    return _Page(len(calls), calls[-1].decision_id if calls else None)

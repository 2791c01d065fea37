"""Whether a key may make one more request: how many a minute over all workers, how many at once in this one (SPEC 12.2).

The minute's requests are counted in the database and leased in blocks: inside a block a worker counts by itself, so a key may get a little
less than its limit, when a block lies unused in another worker, and never more. Between looking at what is left and taking it nothing may
be awaited.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from app.domain.errors import RateLimited, TooManyUnderWay
from app.domain.limits import WINDOW_S, KeyLimits, Standing
from app.domain.tool_call import Principal
from app.engine.authority import PLATFORM_TENANT
from app.engine.clock import Clock
from app.storage import rate_limits as stored
from app.storage.database import Database

BLOCKS = 200
"""A lease takes this part of the limit: 150 of 30,000, so that a lease's round trips are spread over as many requests."""
KEYS_MAX = 50_000
LEASES_MAX = 4
"""At once in a worker: leases must not take every connection of the pool."""
FORGET_MAX = 50_000
CONCURRENT_RETRY_S = 1

_WINDOW = timedelta(seconds=WINDOW_S)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Admission(NamedTuple):
    """A request that counts as under way until `RateLimits.leave`."""

    key_id: int
    standing: Standing


class Defaults(NamedTuple):
    """The limits of keys that have none of their own, and which of how many workers of this launcher this one is."""

    requests_per_minute: int
    concurrent: int
    worker: int = 0
    workers: int = 1


def window_of(moment: datetime) -> datetime:
    """Give the beginning of the minute that a moment is in."""
    return moment.replace(second=0, microsecond=0)


def share_of(limit: int, worker: int, workers: int) -> int:
    """Give a worker's part of a limit: the parts add up to it, but none is 0 unless the limit is."""
    return max(limit // workers + (worker < limit % workers), min(limit, 1))


class _Quota:
    """What one worker knows of one key's window."""

    __slots__ = ("asking", "ends_at", "leased", "left", "limits", "share", "waiting")

    def __init__(self, limits: KeyLimits, defaults: Defaults) -> None:
        most, concurrent = limits.requests_per_minute, limits.concurrent
        most = defaults.requests_per_minute if most is None else most
        concurrent = defaults.concurrent if concurrent is None else concurrent
        self.limits = (most, concurrent)
        self.share = share_of(concurrent, defaults.worker, defaults.workers)
        self.ends_at = _NEVER
        self.left = 0
        self.leased = 0
        self.waiting = 0
        self.asking: asyncio.Task[None] | None = None

    def standing(self, now: datetime) -> Standing:
        most, concurrent = self.limits
        if now < self.ends_at:
            return Standing(most, concurrent, self.left + most - self.leased, math.ceil((self.ends_at - now).total_seconds()))
        return Standing(most, concurrent, most, WINDOW_S)


class RateLimits:
    """The limits of one worker's keys; its memory is bounded, and what it forgets was leased and lapses."""

    def __init__(self, database: Database, clock: Clock, defaults: Defaults) -> None:
        self._database = database
        self._clock = clock
        self._defaults = defaults
        self._quotas: OrderedDict[int, _Quota] = OrderedDict()
        self._under_way: dict[int, int] = {}
        self._turn = asyncio.Semaphore(LEASES_MAX)

    def effective(self, limits: KeyLimits) -> tuple[int, int]:
        """Give a key's limits (requests a minute, at once) with the defaults in place of what it doesn't have."""
        return _Quota(limits, self._defaults).limits

    def under_way(self, key_id: UUID) -> int:
        """Give how many requests of a key this worker hasn't answered yet."""
        return self._under_way.get(key_id.int, 0)

    async def admit(self, principal: Principal) -> Admission:
        """Count one request of an authenticated key; whoever is admitted has to `leave`.

        Raises:
            TooManyUnderWay: as many as this worker's share of the limit are under way.
            RateLimited: the minute's requests are spent.
            DecisionUnavailable: the database would have to say, and can't.
        """
        key_id = principal.key_id.int  # its hash costs nothing
        quota = self._quotas.get(key_id)
        if quota is None:
            quota = self._quotas[key_id] = _Quota(principal.limits, self._defaults)
            if len(self._quotas) > KEYS_MAX:
                self._quotas.popitem(last=False)
        now = self._clock.now()
        under_way = self._under_way.get(key_id, 0)
        if under_way >= quota.share:
            raise _too_many_under_way(quota, now)
        self._under_way[key_id] = under_way + 1
        try:
            while not quota.left or now >= quota.ends_at:
                if quota.limits[0] == 0 or (now < quota.ends_at and quota.leased >= quota.limits[0]):
                    raise _rate_limited(quota, now)
                await self._ask(principal, quota)
                now = self._clock.now()
            quota.left -= 1
        except BaseException:
            self._release(key_id)
            raise
        return Admission(key_id, quota.standing(now))

    def leave(self, admission: Admission) -> None:
        """Say that a request was answered, or that its client has gone."""
        self._release(admission.key_id)

    async def forget_old(self) -> None:
        """Remove windows that ended long ago, of all tenants."""
        async with self._database.transaction([PLATFORM_TENANT]) as connection:
            await stored.forget_windows(connection, FORGET_MAX)

    def _release(self, key_id: int) -> None:
        under_way = self._under_way[key_id]
        if under_way > 1:
            self._under_way[key_id] = under_way - 1
        else:
            del self._under_way[key_id]

    async def _ask(self, principal: Principal, quota: _Quota) -> None:
        """Wait for the key's next lease, which all its waiting requests share; one that gives up doesn't take it from the others."""
        quota.waiting += 1
        try:
            if quota.asking is None:
                if principal.key_id.int in self._quotas:
                    self._quotas.move_to_end(principal.key_id.int)  # the keys that lease are the ones in use
                quota.asking = asyncio.create_task(self._lease(principal, quota))
                quota.asking.add_done_callback(_heard)
            await asyncio.shield(quota.asking)
        finally:
            quota.waiting -= 1

    async def _lease(self, principal: Principal, quota: _Quota) -> None:
        most = quota.limits[0]
        try:
            async with self._turn, self._database.transaction([principal.tenant_id]) as connection:
                start = window_of(self._clock.now())
                lease = await stored.lease_requests(
                    connection, principal.tenant_id, principal.key_id, start, most=most, waiting=quota.waiting, block=max(1, most // BLOCKS)
                )
            quota.ends_at, quota.left, quota.leased = start + _WINDOW, lease.granted, lease.leased
        finally:
            quota.asking = None


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited has heard it; without a look at it the loop would complain when nobody did


def _rate_limited(quota: _Quota, now: datetime) -> RateLimited:
    most, standing = quota.limits[0], quota.standing(now)
    if most == 0:
        return RateLimited("this key may make no requests (requests_per_minute is 0); ask an operator for another", None, standing)
    return RateLimited(f"this key's {most} requests a minute are spent; wait for the next minute", standing.resets_in_s, standing)


def _too_many_under_way(quota: _Quota, now: datetime) -> TooManyUnderWay:
    standing = quota.standing(now)
    if quota.share == 0:
        return TooManyUnderWay("this key may have no requests under way (concurrent is 0); ask an operator for another", None, standing)
    return TooManyUnderWay("too many requests of this key are under way; wait until some are answered", CONCURRENT_RETRY_S, standing)

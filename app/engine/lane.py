"""Lanes: calls that arrive while a batch is in flight form the next one (no timer), each lane on a connection of its own.

A lane never loses a call: each gets an answer or an exception. A batch that fails is cut in halves until the call that breaks it
stands alone; a batch that hangs is given up with its connection. A tool whose facts or effects time out goes to a slow lane for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
import structlog

from app.domain.errors import DecisionUnavailable
from app.storage.database import BatchConnection
from app.telemetry import Metrics

BATCH_MAX = 64
QUEUE_MAX = 1_024
"""Of one lane; a worker has MAIN_LANES and SLOW_LANES of them."""
GIVE_WAY_EVERY = 4
ANSWER_WITHIN_S = 1.8
BATCH_WITHIN_S = 1.5
TRIES_MAX = 3
MAIN_LANES = 2
SLOW_LANES = 2
SLOW_FOR_S = 30.0
SLOW_MAX = 1_024

_RETRY_STATES = frozenset({"40001", "40P01", "55P03", "57014"})
_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Waiting:
    """One call in a lane. `key` is its claim: two of one key never share a batch. `deadline` is the loop's time."""

    key: object
    tool: str
    work: object
    deadline: float
    answer: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


Decide = Callable[[BatchConnection, Sequence[Waiting]], Awaitable[None]]


class Lane:
    """One queue and one connection: a batch at a time. `decide` sets every call's answer, after its COMMIT; `changed` hears that calls
    were queued or taken."""

    def __init__(self, name: str, connection: BatchConnection, decide: Decide, metrics: Metrics, changed: Callable[[], None]) -> None:
        self.name = name
        self._changed = changed
        self._connection = connection
        self._decide = decide
        self._metrics = metrics
        self._queue: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"lane {self.name}")

    def put(self, waiting: Waiting) -> None:
        """Queue a call.

        Raises:
            DecisionUnavailable: the queue is full, or the service is stopping.
        """
        if self._closing or len(self._queue) >= QUEUE_MAX:
            self._metrics.unavailable("queue_full")
            raise DecisionUnavailable("too many calls are waiting; send this one again", retry_after_s=1)
        self._queue.append(waiting)
        self._changed()
        self._arrived.set()

    @property
    def depth(self) -> int:
        return len(self._queue)

    async def close(self) -> None:
        """Answer what is queued, then stop."""
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task
        await self._connection.close()

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            batch = self._take()
            self._changed()
            await self._settle(batch)
            self._metrics.batch(len(batch))

    def _take(self) -> list[Waiting]:
        """Take the oldest calls, one of each key; the others keep their order."""
        batch: list[Waiting] = []
        keys: set[object] = set()
        left: deque[Waiting] = deque()
        while self._queue and len(batch) < BATCH_MAX:
            waiting = self._queue.popleft()
            if waiting.key in keys:
                left.append(waiting)
            else:
                keys.add(waiting.key)
                batch.append(waiting)
        self._queue.extendleft(reversed(left))
        return batch

    async def _settle(self, batch: Sequence[Waiting]) -> None:
        failure: Exception | None = None
        for _ in range(TRIES_MAX):
            batch = self._living(batch)
            if not batch:
                return
            failure = await self._try(batch)
            if not (isinstance(failure, asyncpg.PostgresError) and failure.sqlstate in _RETRY_STATES):
                break
        left = [waiting for waiting in batch if not waiting.answer.done()]
        if failure is None or not left:
            return
        if _is_outage(failure):
            _log.warning("batch_lost", lane=self.name, calls=len(left), error=type(failure).__name__)
            for waiting in left:
                self._fail(waiting, "database")
        elif len(left) > 1:
            middle = len(left) // 2
            await self._settle(left[:middle])
            await self._settle(left[middle:])
        else:
            if isinstance(failure, asyncpg.PostgresError):  # its sentence and detail may hold rows' values
                _log.error("call_failed", lane=self.name, tool=left[0].tool, sqlstate=failure.sqlstate)
            else:
                _log.error("call_failed", lane=self.name, tool=left[0].tool, exc_info=failure)
            self._fail(left[0], "error")

    def _fail(self, waiting: Waiting, cause: str) -> None:
        if not waiting.answer.done():
            self._metrics.unavailable(cause)
            waiting.answer.set_exception(DecisionUnavailable())

    def _living(self, batch: Sequence[Waiting]) -> Sequence[Waiting]:
        now = asyncio.get_running_loop().time()
        for waiting in batch:
            if waiting.deadline <= now:
                self._fail(waiting, "deadline")
        return [waiting for waiting in batch if not waiting.answer.done()]

    async def _try(self, batch: Sequence[Waiting]) -> Exception | None:
        try:
            async with asyncio.timeout(BATCH_WITHIN_S):
                await self._decide(self._connection, batch)
        except Exception as failure:  # isolation: whatever one batch hits must not end the lane
            return failure
        return None


async def give_way(index: int) -> None:
    """Let the loop run at every few calls: another batch may only wait to send its COMMIT, and holds its locks until it does."""
    if index % GIVE_WAY_EVERY == GIVE_WAY_EVERY - 1:
        await asyncio.sleep(0)


class Lanes:
    """A worker's main lanes and slow ones. Slow tools are remembered for a while, by tenant and name."""

    def __init__(self, make_connection: Callable[[], BatchConnection], decide: Decide, metrics: Metrics) -> None:
        self._main = tuple(Lane(f"main-{n}", make_connection(), decide, metrics, self._tell_depth) for n in range(MAIN_LANES))
        self._slow = tuple(Lane(f"slow-{n}", make_connection(), decide, metrics, self._tell_depth) for n in range(SLOW_LANES))
        self._metrics = metrics
        self._slow_until: dict[tuple[UUID, str], float] = {}

    def start(self) -> None:
        for lane in (*self._main, *self._slow):
            lane.start()

    async def ask(self, key: object, who: tuple[UUID, str], tool: str, work: object) -> object:
        """Queue a call and wait for its answer. Calls of one `who` (tenant, subject) share a lane: they would only wait for each
        other's locks in two.

        Raises:
            DecisionUnavailable: no decision was made in time, or none could be recorded.
        """
        loop = asyncio.get_running_loop()
        waiting = Waiting(key, tool, work, loop.time() + ANSWER_WITHIN_S)
        self._of(who, tool, loop.time()).put(waiting)
        try:
            async with asyncio.timeout_at(waiting.deadline):
                return await waiting.answer
        except TimeoutError:
            self._metrics.unavailable("deadline")
            raise DecisionUnavailable from None

    def slow_down(self, tenant_id: UUID, tool: str) -> None:
        """Send a tenant's calls of a tool to a slow lane for a while, because one of them timed out."""
        self._metrics.fact_timeout(tool)
        self._slow_until.pop((tenant_id, tool), None)
        if len(self._slow_until) >= SLOW_MAX:
            del self._slow_until[next(iter(self._slow_until))]  # the oldest
        self._slow_until[tenant_id, tool] = asyncio.get_running_loop().time() + SLOW_FOR_S

    def _tell_depth(self) -> None:
        self._metrics.queue_depth(sum(lane.depth for lane in (*self._main, *self._slow)))

    async def close(self) -> None:
        for lane in (*self._main, *self._slow):
            await lane.close()

    def _of(self, who: tuple[UUID, str], tool: str, now: float) -> Lane:
        place = (who[0], tool)
        until = self._slow_until.get(place)
        if until is not None and until <= now:
            del self._slow_until[place]
            until = None
        if until is None:
            return self._main[hash(who) % len(self._main)]
        return self._slow[hash(place) % len(self._slow)]


def _is_outage(failure: Exception) -> bool:
    if isinstance(failure, DecisionUnavailable | OSError | TimeoutError | asyncpg.InterfaceError):
        return True
    state = getattr(failure, "sqlstate", None) or ""
    return isinstance(failure, asyncpg.PostgresError) and (state[:2] in ("08", "53", "57") or state in _RETRY_STATES)

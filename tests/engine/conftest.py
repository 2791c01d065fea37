"""The shop's database and its copies, and gates at which a worker's transaction can be stopped between two round trips."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import structlog

from app.engine import lane
from app.storage import decision_batch
from app.storage.database import BatchConnection
from tests.engine.shop import Shop, Worker, own_shop, resettable_shop, shop, shop_template, working

__all__ = ["gates", "own_shop", "resettable_shop", "shop", "shop_template"]

STEPS = ("open_batch", "read_facts", "dry_run", "record_batch", "commit")
"""The round trips of the decision transaction, in their order; a gate stands before each."""

At = Callable[[asyncpg.Connection], Awaitable[None]]
_WORKER: ContextVar[str] = ContextVar("worker", default="")


@pytest.fixture(autouse=True, scope="session")
def _quiet_log() -> None:
    """A log for people prints every local of a traceback, which takes seconds."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[structlog.processors.JSONRenderer(default=repr)])


class Gates:
    """Does something once before a worker's round trip, while that worker's transaction is open.

    The round trips themselves are the real ones. Whose they are is known by a context variable of the task that runs the worker's lane.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], At] = {}
        self.passed: list[tuple[str, str]] = []

    def before(self, worker: str, step: str, do: At) -> None:
        assert step in STEPS
        self._waiting[worker, step] = do

    async def reached(self, step: str, connection: asyncpg.Connection) -> None:
        worker = _WORKER.get()
        self.passed.append((worker, step))
        do = self._waiting.pop((worker, step), None)
        if do is not None:
            await do(connection)

    @property
    def unused(self) -> list[tuple[str, str]]:
        return list(self._waiting)

    @asynccontextmanager
    async def worker(self, name: str, shop: Shop) -> AsyncIterator[Worker]:
        """Run a worker whose lanes are known by `name`."""
        token = _WORKER.set(name)
        async with working(shop.url) as running:
            _WORKER.reset(token)
            yield running


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    made = Gates()
    for limit in ("BATCH_WITHIN_S", "ANSWER_WITHIN_S"):
        monkeypatch.setattr(lane, limit, 8.0)  # a lane that stands at a gate isn't one that is stuck, however slow the machine is
    for step in STEPS[:-1]:
        monkeypatch.setattr(decision_batch, step, _gated(made, step, getattr(decision_batch, step)))
    real = BatchConnection.transaction

    @asynccontextmanager
    async def transaction(self: BatchConnection, tenants: Iterable[UUID]) -> AsyncIterator[asyncpg.Connection]:
        async with real(self, tenants) as connection:
            yield connection
            await made.reached("commit", connection)

    monkeypatch.setattr(BatchConnection, "transaction", transaction)
    yield made
    assert made.unused == [], "a gate that nobody came to shows nothing"


def _gated(gates: Gates, step: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def gated(connection: asyncpg.Connection, *arguments: Any) -> Any:
        await gates.reached(step, connection)
        return await real(connection, *arguments)

    return gated


async def as_far_as_it_gets(shop: Shop, task: asyncio.Task[Any], within_s: float = 0.35) -> None:
    """Wait until a task is done, or until a statement of this database waits for a lock: then it can't get further by itself."""
    async with shop.superuser() as connection:
        deadline = asyncio.get_running_loop().time() + within_s
        while not task.done() and asyncio.get_running_loop().time() < deadline:
            if await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ):
                return
            await asyncio.sleep(0.005)

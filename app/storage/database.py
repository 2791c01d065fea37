"""Connections and transactions: the only place that commits.

Two ways in. `Database.transaction` is for everything but decisions (SQLAlchemy Core, a small pool). `BatchConnection` is a lane's own
connection to run the decision transaction with the driver directly, since a Core statement costs two to four times the driver's CPU.
Every transaction names its tenants first: without them row level security shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.domain.errors import DecisionUnavailable

CONNECT_TIMEOUT_S = 1.0
STATEMENT_TIMEOUT_MS = 700
LOCK_TIMEOUT_MS = 500
BATCH_STATEMENT_TIMEOUT_MS = 400
"""Of each round trip of the decision transaction: two that run into it still leave time to answer within two seconds."""
POOL_SIZE = 4
TENANTS_MAX = 256

_SERVER_SETTINGS = {
    "application_name": "placet",
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": "5000",
    "timezone": "UTC",
    "jit": "off",
}


def driver_url(url: str) -> str:
    """Turn any spelling of a PostgreSQL address into the driver's."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def engine_url(url: str) -> str:
    """Turn any spelling of a PostgreSQL address into SQLAlchemy's."""
    return make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)


def tenants_setting(tenants: Iterable[UUID]) -> str:
    """Give the value of `app.tenants` for a transaction."""
    named = sorted({str(tenant) for tenant in tenants})
    assert 0 < len(named) <= TENANTS_MAX, "a transaction is for at least one tenant and not for more than a batch holds"
    return ",".join(named)


class Database:
    """The pool for everything but decisions."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine = create_async_engine(
            engine_url(url),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=CONNECT_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args={"timeout": CONNECT_TIMEOUT_S, "command_timeout": CONNECT_TIMEOUT_S, "server_settings": _SERVER_SETTINGS},
        )

    @asynccontextmanager
    async def transaction(self, tenants: Iterable[UUID]) -> AsyncIterator[AsyncConnection]:
        """Run one transaction for `tenants`; it commits when the block ends and rolls back when it raises.

        Raises:
            DecisionUnavailable: the database can't be reached or gave up; nothing was kept.
        """
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text("SELECT set_config('app.tenants', :tenants, true)"), {"tenants": tenants_setting(tenants)})
                yield connection
                await connection.commit()
        except DBAPIError as failure:
            if is_outage(failure):
                raise DecisionUnavailable("the database can't be reached; nothing was changed, try again") from failure
            raise
        except (OSError, TimeoutError, PoolTimeout, asyncpg.InterfaceError) as failure:
            raise DecisionUnavailable("the database can't be reached; nothing was changed, try again") from failure

    async def close(self) -> None:
        await self._engine.dispose()


def is_outage(failure: DBAPIError) -> bool:
    """Say whether the server is away or gave up, so that asking again may help."""
    if failure.connection_invalidated or isinstance(failure, InterfaceError):
        return True
    state = getattr(failure.orig, "sqlstate", None) or ""
    return state[:2] in ("08", "53", "57") or state in ("40001", "40P01", "55P03", "25006")


class BatchConnection:
    """A lane's own connection. It is opened when needed and thrown away after every failure, so none is ever reused in an unknown state."""

    def __init__(self, url: str) -> None:
        self._url = driver_url(url)
        self._connection: asyncpg.Connection | None = None

    @asynccontextmanager
    async def transaction(self, tenants: Iterable[UUID]) -> AsyncIterator[asyncpg.Connection]:
        """Run one transaction for `tenants` (READ COMMITTED); it commits when the block ends.

        Raises whatever the block or the driver raises, `OSError` and `asyncpg.PostgresError` among it; then nothing was kept, except
        when the connection was lost during COMMIT: then it isn't known, and the caller must not answer as if it were.
        """
        if self._connection is None or self._connection.is_closed():
            settings = {**_SERVER_SETTINGS, "statement_timeout": str(BATCH_STATEMENT_TIMEOUT_MS)}
            self._connection = await asyncpg.connect(self._url, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
        connection = self._connection
        done = False
        try:
            # a simple query takes both statements at once; the value holds UUIDs and commas only
            await connection.execute(f"BEGIN; SET LOCAL app.tenants = '{tenants_setting(tenants)}'")
            yield connection
            await connection.execute("COMMIT")
            done = True
        finally:
            if not done:
                await self._give_up(connection)

    async def _give_up(self, connection: asyncpg.Connection) -> None:
        try:
            await asyncio.wait_for(connection.execute("ROLLBACK"), 0.2)
        except (OSError, TimeoutError, asyncio.CancelledError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._connection.close(timeout=1.0)
        self._connection = None

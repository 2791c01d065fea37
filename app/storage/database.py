"""Connections and transactions: the only place that commits.

Two ways in. `Database.transaction` is for everything but decisions (SQLAlchemy Core, a small pool). `BatchConnection` is a lane's own
connection to run the decision transaction with the driver directly, since a Core statement costs two to four times the driver's CPU.
Every transaction names its tenants first: without them row level security shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.domain.errors import DecisionUnavailable
from app.storage.decision_batch import CountedTables, counted_tables

CONNECT_TIMEOUT_S = 1.0
STATEMENT_TIMEOUT_MS = 700
LOCK_TIMEOUT_MS = 500
BATCH_STATEMENT_TIMEOUT_MS = 400
"""Of each round trip of the decision transaction: two that run into it still leave time to answer within two seconds."""
POOL_SIZE = 4
ENGINE = "postgresql+asyncpg://"
"""The address is the driver's to read (`async_creator`): SQLAlchemy's dialect doesn't know libpq's options such as `sslmode`."""
TENANTS_MAX = 256
PREPARED_MAX = 512
"""Of one connection; what comes after is planned at each use."""
UNKNOWN_NAME_OR_RIGHT = "42"
TABLES_FOR_S = 5.0
UNCHANGED = "the database can't be reached; nothing was changed, try again"
MAYBE_CHANGED = "the database was lost while the change was being kept, so it may have happened; look before you try again"

_SERVER_SETTINGS = {
    "application_name": "placet",
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": "5000",
    "timezone": "UTC",
    "jit": "off",
}
_BATCH_SETTINGS = {
    "statement_timeout": str(BATCH_STATEMENT_TIMEOUT_MS),
    # plans for unknown values, made once: the functions' statements look rows up by key, whatever the values
    "plan_cache_mode": "force_generic_plan",
}


def driver_url(url: str) -> str:
    """Turn any spelling of a PostgreSQL address into the driver's."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def tenants_setting(tenants: Iterable[UUID]) -> str:
    """Give the value of `app.tenants` for a transaction."""
    named = sorted({str(tenant) for tenant in tenants})
    assert 0 < len(named) <= TENANTS_MAX, "a transaction is for at least one tenant and not for more than a batch holds"
    return ",".join(named)


class Database:
    """The pool for everything but decisions."""

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(
            ENGINE,
            async_creator=lambda: asyncpg.connect(
                driver_url(url), timeout=CONNECT_TIMEOUT_S, command_timeout=CONNECT_TIMEOUT_S, server_settings=_SERVER_SETTINGS
            ),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=CONNECT_TIMEOUT_S,
            hide_parameters=True,  # they hold payloads and hashes, and an error's text goes to the log
            pool_pre_ping=True,
        )

    @asynccontextmanager
    async def transaction(self, tenants: Iterable[UUID]) -> AsyncIterator[AsyncConnection]:
        """Run one transaction for `tenants`; it commits when the block ends and rolls back when it raises.

        Raises:
            DecisionUnavailable: the database can't be reached or gave up; nothing was kept, but for a connection lost during COMMIT: then
                it isn't known, and the message says so.
        """
        connected = committing = False
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text("SELECT set_config('app.tenants', :tenants, true)"), {"tenants": tenants_setting(tenants)})
                connected = True
                yield connection
                committing = True
                await connection.commit()
                committing = False
        except DBAPIError as failure:
            if not connected or is_outage(failure):  # a server that turns the service away (28P01, 3D000, 55000) is away, too
                raise DecisionUnavailable(MAYBE_CHANGED if committing else UNCHANGED) from failure
            raise
        except (OSError, TimeoutError, PoolTimeout, asyncpg.InterfaceError) as failure:
            raise DecisionUnavailable(MAYBE_CHANGED if committing else UNCHANGED) from failure

    async def close(self) -> None:
        await self._engine.dispose()


def is_outage(failure: DBAPIError) -> bool:
    """Say whether the server is away or gave up, so that asking again may help."""
    if failure.connection_invalidated or isinstance(failure, InterfaceError):
        return True
    state = getattr(failure.orig, "sqlstate", None) or ""
    return state[:2] in ("08", "53", "57") or state in ("40001", "40P01", "55P03", "25006")


class BatchConnection:
    """A lane's own connection, opened when needed. It is kept after a failure only if ROLLBACK answers at once, so its state is always
    known.

    It keeps prepared statements (planned once instead of at every use), which is why a lane can't go through a pooler that gives each
    transaction another server connection.
    """

    def __init__(self, url: str) -> None:
        self._url = driver_url(url)
        self._connection: asyncpg.Connection | None = None
        self._prepared: dict[str, str] = {}
        self._unprepared: set[str] = set()
        self._tables: CountedTables | None = None
        self._tables_due_at = 0.0

    async def prepare(self, role: str, statements: Iterable[str]) -> Mapping[str, str]:
        """Prepare statements of one jsonb parameter, once a connection, under `role`, whose rights the names need.

        Gives SQL -> `@name` of all that are prepared. What can't be prepared (a table is missing) isn't there, and fails when it is used.
        """
        await self._open()  # what a connection that is gone had prepared is forgotten
        for sql in statements:
            if sql in self._prepared or sql in self._unprepared or len(self._prepared) + len(self._unprepared) >= PREPARED_MAX:
                continue
            name = f"placet_{sha256(sql.encode()).hexdigest()[:24]}"
            try:
                async with self._begun(f'SET LOCAL ROLE "{role}"') as connection:
                    # by the extended protocol, which takes one command only, whatever the author's text holds
                    await connection.fetch(f"PREPARE {name} (jsonb) AS {sql}")
            except asyncpg.PostgresError as failure:
                if (failure.sqlstate or "").startswith(UNKNOWN_NAME_OR_RIGHT):
                    self._unprepared.add(sql)
                continue
            self._prepared[sql] = f"@{name}"
        return self._prepared

    async def counted_tables(self) -> CountedTables:
        """Give the tables that a dry run counts, as they were within the last seconds."""
        now = asyncio.get_running_loop().time()
        await self._open()
        if self._tables is None or now >= self._tables_due_at:
            async with self._begun("SET LOCAL transaction_read_only = on") as connection:
                self._tables = await counted_tables(connection)
            self._tables_due_at = now + TABLES_FOR_S
        return self._tables

    @asynccontextmanager
    async def transaction(self, tenants: Iterable[UUID]) -> AsyncIterator[asyncpg.Connection]:
        """Run one transaction for `tenants` (READ COMMITTED); it commits when the block ends.

        Raises whatever the block or the driver raises, `OSError` and `asyncpg.PostgresError` among it; then nothing was kept, except
        when the connection was lost during COMMIT: then it isn't known, and the caller must not answer as if it were.
        """
        # the value holds UUIDs and commas only
        async with self._begun(f"SET LOCAL app.tenants = '{tenants_setting(tenants)}'") as connection:
            yield connection

    @asynccontextmanager
    async def _begun(self, setting: str) -> AsyncIterator[asyncpg.Connection]:
        """Run a transaction that begins with `setting`; whatever goes through the connection goes through here, so that one that hangs is
        always given up."""
        connection = await self._open()
        done = False
        try:
            await connection.execute(f"BEGIN; {setting}")  # a simple query takes both statements at once
            yield connection
            await connection.execute("COMMIT")
            done = True
        finally:
            if not done:
                await self._give_up(connection)

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._forget()
            settings = {**_SERVER_SETTINGS, **_BATCH_SETTINGS}
            try:
                self._connection = await asyncpg.connect(self._url, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as failure:
                raise DecisionUnavailable from failure
        return self._connection

    async def _give_up(self, connection: asyncpg.Connection) -> None:
        try:
            await asyncio.wait_for(connection.execute("ROLLBACK"), 0.2)
        except (OSError, TimeoutError, asyncio.CancelledError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()
            self._forget()

    def _forget(self) -> None:
        self._connection = None
        self._prepared.clear()
        self._unprepared.clear()
        self._tables = None

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._connection.close(timeout=1.0)
        self._forget()

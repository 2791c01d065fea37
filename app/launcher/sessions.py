"""Refuses, at the start, an address that gives the service no session of its own: a pooler that hands transactions out to any connection.

The service sets its time-outs once a connection and prepares statements there. Behind such a pooler the time-outs would silently not hold
and statements would clash or vanish under load, so it does not start.
"""

from __future__ import annotations

import asyncpg

from app.domain.errors import PlacetError

CONNECT_TIMEOUT_S = 10.0
PROBE = {"statement_timeout": "701ms", "lock_timeout": "501ms"}
ADVICE = "let DATABASE_URL lead to PostgreSQL itself, or to a pooler in session mode that passes start-up parameters on"


class NoSession(PlacetError):
    """The address leads through a pooler that can't be used; the message says what to change."""


async def require_sessions(address: str) -> None:
    """Connect twice to the driver's `address` and see whether each connection is a session that keeps what it was given.

    Raises: NoSession, and whatever the driver raises where the server is away.
    """
    try:
        first = await asyncpg.connect(address, timeout=CONNECT_TIMEOUT_S, server_settings=PROBE, statement_cache_size=0)
    except asyncpg.ProtocolViolationError as refusal:  # a server knows these parameters
        raise NoSession(f"the database's address refuses the service's settings ({refusal}), as a pooler does; {ADVICE}") from None
    try:
        async with first.transaction():
            for name, value in PROBE.items():
                if await first.fetchval(f"SHOW {name}") != value:
                    raise NoSession(f"the database's address drops the service's `{name}`, as a pooler does; {ADVICE}")
            served_by = await first.fetchval("SELECT pg_backend_pid()")
        second = await asyncpg.connect(address, timeout=CONNECT_TIMEOUT_S, server_settings=PROBE, statement_cache_size=0)
        try:
            async with second.transaction():  # a pooler hands out what the first one has just put back
                shared = await second.fetchval("SELECT pg_backend_pid()") == served_by
        finally:
            await second.close()
        if shared:
            raise NoSession(f"two connections to the database share one session, as behind a pooler in transaction mode; {ADVICE}")
    finally:
        await first.close()

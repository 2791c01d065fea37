"""What is spent of a key's minute, for all workers: blocks of requests are leased from one row, and never more than its limit.

A lease is one conditional statement on that row, so that two workers can't take the same requests; nothing may count outside of it.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Near the end blocks get smaller, so that hardly anything lies unused in one worker while another has run out. Who waits already is
# served whole.
_LEASE = text("""
    INSERT INTO placet.request_windows AS w (tenant_id, key_id, window_start, leased)
    VALUES (:tenant_id, :key_id, :window_start, least(CAST(:most AS integer), greatest(CAST(:waiting AS integer), CAST(:block AS integer))))
    ON CONFLICT (tenant_id, key_id, window_start) DO UPDATE
    SET leased = w.leased + least(
        CAST(:most AS integer) - w.leased,
        greatest(CAST(:waiting AS integer), least(CAST(:block AS integer), (CAST(:most AS integer) - w.leased) / 4))
    )
    WHERE w.leased < CAST(:most AS integer)
    RETURNING coalesce(old.leased, 0) AS before, new.leased AS after
""")
_MARK = text("""
    INSERT INTO placet.request_windows AS w (tenant_id, key_id, window_start, leased, recorded)
    VALUES (:tenant_id, :key_id, :window_start, 0, ARRAY[CAST(:code AS text)])
    ON CONFLICT (tenant_id, key_id, window_start) DO UPDATE SET recorded = w.recorded || CAST(:code AS text)
    WHERE NOT CAST(:code AS text) = ANY(w.recorded)
    RETURNING 1
""")
_FORGET = text("SELECT placet.forget_request_windows(:most)")


class Lease(NamedTuple):
    """`granted` requests for one worker, and how many of the window are leased to all workers now."""

    granted: int
    leased: int


async def lease_requests(
    connection: AsyncConnection, tenant_id: UUID, key_id: UUID, window_start: datetime, *, most: int, waiting: int, block: int
) -> Lease:
    """Take requests of a window of at most `most`: `block`, or as many as are `waiting` if these are more; none where all are leased."""
    values = {
        "tenant_id": tenant_id, "key_id": key_id, "window_start": window_start, "most": most, "waiting": max(1, waiting), "block": block,
    }  # fmt: skip
    row = (await connection.execute(_LEASE, values)).one_or_none()
    return Lease(row.after - row.before, row.after) if row is not None else Lease(0, most)


async def mark_recorded(connection: AsyncConnection, tenant_id: UUID, key_id: UUID, window_start: datetime, code: str) -> bool:
    """Say that refusals with `code` have their audit row in this window; False where they had it already."""
    values = {"tenant_id": tenant_id, "key_id": key_id, "window_start": window_start, "code": code}
    return (await connection.execute(_MARK, values)).one_or_none() is not None


async def forget_windows(connection: AsyncConnection, most: int) -> int:
    """Remove windows of all tenants that ended more than an hour ago; gives how many."""
    return int((await connection.execute(_FORGET, {"most": most})).scalar_one())

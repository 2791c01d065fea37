"""What readiness and the metrics ask of the database, each in one round trip or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.database import is_outage

_STATE = text("""
    SELECT (SELECT version_num FROM placet.schema_version) AS revision,
           (SELECT r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, c.relowner, 'MEMBER')
            FROM pg_roles r, pg_class c WHERE r.rolname = current_user AND c.oid = 'placet.audit_rows'::regclass) AS too_powerful,
           to_regclass('placet.audit_rows_' || to_char((now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM')) IS NOT NULL
           AND to_regclass('placet.audit_payloads_' || to_char((now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM')) IS NOT NULL
           AS next_partitions,
           EXISTS (SELECT 1 FROM placet.tenants WHERE tenant_id = :platform AND active_policy_version IS NOT NULL) AS policy_loaded
""")
_FUNCTIONS = text("""
    SELECT placet.open_batch('[]', '[]') IS NOT NULL AND placet.read_facts('[]', '[]', '{}', '[]', 'placet_facts') IS NOT NULL
           AND placet.dry_run('{}', '[]', 'placet_sandbox', 100, '{}', '{}') IS NOT NULL AS functions_work
""")
_GAUGES = text("SELECT approvals_waiting, holds_open, chain_rows, policy_version FROM placet.platform_gauges()")


@dataclass(frozen=True, slots=True)
class DatabaseState:
    revision: str | None
    too_powerful: bool
    next_partitions: bool
    policy_loaded: bool
    functions_work: bool


async def read_state(connection: AsyncConnection, platform: UUID) -> DatabaseState:
    """Read what readiness depends on, and call the real functions: a package upgrade under a running server breaks functions only."""
    try:
        row = (await connection.execute(_STATE, {"platform": platform})).one()
    except DBAPIError as failure:
        if is_outage(failure):
            raise
        return DatabaseState(None, False, False, False, False)  # there is no schema of ours yet
    try:
        works = (await connection.execute(_FUNCTIONS)).scalar_one()
    except DBAPIError as failure:
        if is_outage(failure):
            raise
        works = False
    return DatabaseState(row.revision, bool(row.too_powerful), bool(row.next_partitions), bool(row.policy_loaded), bool(works))


async def read_gauges(connection: AsyncConnection) -> Mapping[str, float]:
    """Read the sums over all tenants."""
    row = (await connection.execute(_GAUGES)).one()
    return {
        "placet_approvals_waiting": float(row.approvals_waiting),
        "placet_holds_open": float(row.holds_open),
        "placet_chain_rows": float(row.chain_rows),
        "placet_policy_version": float(row.policy_version or 0),
    }


async def ensure_partitions(connection: AsyncConnection) -> None:
    """Make the partitions of the months ahead."""
    await connection.execute(text("SELECT placet.ensure_partitions()"))

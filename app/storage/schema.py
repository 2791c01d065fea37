"""Roles and migrations: what the owner does before the service runs.

Roles are cluster-wide, so they are made here under an advisory lock and never by a migration. The service's own role owns nothing: it may
insert and read audit rows, and neither change nor delete them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from app.storage.database import ENGINE, driver_url
from app.storage.decision_batch import FACTS_ROLE, SANDBOX_ROLE

if TYPE_CHECKING:
    from alembic.config import Config  # a worker, which never migrates, starts without it

SERVER_VERSION_LEAST = 180_000
"""As `server_version_num` has it: the functions need uuidv7 and RETURNING old and new."""

MIGRATIONS = Path(__file__).parents[2] / "migrations"

_INSERT_ONLY = ("audit_rows", "audit_payloads", "audit_checkpoints", "call_keys", "policy_versions")
_NO_DELETE = (
    "tenants", "api_keys", "chain_heads", "sessions", "claims", "decisions", "rule_refusals", "accounts", "holds", "approvals",
    "idempotency_keys", "freezes", "request_windows",
)  # fmt: skip

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('placet.migrate'))"


@dataclass(frozen=True, slots=True)
class ServiceRole:
    """The role of DATABASE_URL; the password is only used when the role has to be made."""

    name: str
    password: str | None


async def make_roles(owner: asyncpg.Connection, service: ServiceRole) -> None:
    """Make the service's role and the two NOLOGIN roles where they are missing, and let the service switch to those two.

    Raises:
        asyncpg.InsufficientPrivilegeError: a role is missing and the owner may not create roles.
    """
    async with owner.transaction():
        await owner.execute("SELECT pg_advisory_xact_lock(hashtext('placet.make_roles'))")
        for role in (FACTS_ROLE, SANDBOX_ROLE):
            if not await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
                await owner.execute(f'CREATE ROLE "{role}" NOLOGIN NOINHERIT')
        if not await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", service.name):
            secret = ""
            if service.password is not None:
                secret = await owner.fetchval("SELECT format(' PASSWORD %L', $1::text)", service.password)
            name = await owner.fetchval("SELECT quote_ident($1)", service.name)
            await owner.execute(f"CREATE ROLE {name} LOGIN NOBYPASSRLS{secret}")
        name = await owner.fetchval("SELECT quote_ident($1)", service.name)
        for role in (FACTS_ROLE, SANDBOX_ROLE):
            member = await owner.fetchval(
                "SELECT 1 FROM pg_auth_members WHERE roleid = $1::regrole AND member = $2::regrole AND set_option", role, name
            )
            if not member and not await _is_superuser(owner, service.name):
                await owner.execute(f'GRANT "{role}" TO {name} WITH INHERIT FALSE, SET TRUE')


async def _is_superuser(owner: asyncpg.Connection, role: str) -> bool:
    return bool(await owner.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = $1", role))


async def migrate(owner_url: str, service_name: str) -> None:
    """Bring the schema to head and give the service's role what it needs. Safe to run by several at once."""
    connection = await asyncpg.connect(driver_url(owner_url))
    try:
        async with connection.transaction():  # of its own, because Alembic's connection has to see the schema
            await connection.execute(_ONE_AT_A_TIME)
            await connection.execute("CREATE SCHEMA IF NOT EXISTS placet")  # not safe by itself: two at once may both find none
        async with connection.transaction():
            await connection.execute(_ONE_AT_A_TIME)  # held until the end, so that two starters don't migrate at once
            engine = create_async_engine(ENGINE, async_creator=lambda: asyncpg.connect(driver_url(owner_url)))
            try:
                async with engine.begin() as migrating:
                    await migrating.run_sync(_upgrade)
            finally:
                await engine.dispose()
            # a schema at head may have slept for months, and only a migration makes partitions by itself
            await connection.execute("SELECT placet.ensure_partitions()")
            await _grant(connection, service_name)
    finally:
        await connection.close()


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def alembic_config() -> Config:
    """Give the Alembic configuration, without a file: the folder of the migrations is all that there is to say."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def head_revision() -> str:
    """Give the newest revision that this program knows: the number that the last migration's file begins with."""
    return max(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


async def _grant(owner: asyncpg.Connection, service_name: str) -> None:
    name = await owner.fetchval("SELECT quote_ident($1)", service_name)
    statements = [
        f"GRANT USAGE ON SCHEMA placet TO {name}",
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA placet FROM PUBLIC",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA placet TO {name}",
        f"GRANT SELECT ON placet.schema_version TO {name}",
        *(f"GRANT SELECT, INSERT ON placet.{table} TO {name}" for table in _INSERT_ONLY),
        *(f"GRANT SELECT, INSERT, UPDATE ON placet.{table} TO {name}" for table in _NO_DELETE),
    ]
    for statement in statements:
        await owner.execute(statement)


async def protect_what_rollback_cannot_undo(superuser: asyncpg.Connection) -> None:
    """Take from PUBLIC the functions whose effect a rollback leaves behind: session locks, notifications, large objects, messages in
    the log.

    Only a superuser may; on a server of one's own the checklist names it instead.
    """
    rows = await superuser.fetch(
        "SELECT oid::regprocedure::text AS signature FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND"
        " (proname LIKE 'pg_advisory_lock%' OR proname LIKE 'pg_try_advisory_lock%' OR proname = 'pg_notify' OR proname LIKE 'lo\\_%'"
        " OR proname = 'pg_logical_emit_message' OR proname = 'ts_stat' OR (proname = 'ts_rewrite' AND pronargs = 2)"
        " OR proname LIKE '%\\_to\\_xml%')"
    )
    async with superuser.transaction():
        for row in rows:
            await superuser.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{row['signature']} FROM PUBLIC")

"""Prepares a database before the first worker starts: roles, schema, example bundle, demo data, keys. Doing it twice changes nothing.

A start may be killed behind any step, and several may come at once: each step looks at what is there, and one start works at a time.
Keys are made last, because they are shown once: what can fail comes before them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from app.domain.errors import PolicyInvalid
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import SYSTEM, AuthorityWriter
from app.engine.clock import Clock
from app.launcher.addresses import OWNER, Addresses, DatabaseUnsuitable, addresses, connect, said_by
from app.launcher.demo_shop import make_demo_keys, refresh_demo_shop
from app.launcher.sessions import require_sessions
from app.policy.compile import compile_bundle, load_directory
from app.settings import Settings
from app.storage import schema
from app.storage.database import Database, driver_url
from app.storage.decision_batch import FACTS_ROLE, SANDBOX_ROLE

TURN_WITHIN_S = 60
OLD_SERVER = "PostgreSQL 18 or newer is needed (uuidv7, RETURNING old and new); this server has {version}"


@dataclass(frozen=True, slots=True)
class PreparedDatabase:
    """What the workers connect to, and what the person who started it should read."""

    database_url: str
    lines: tuple[str, ...] = ()


async def prepare(settings: Settings, superuser_dsn: str | None) -> PreparedDatabase:
    """Make the database ready; `superuser_dsn` is the embedded server's, None with DATABASE_URL.

    Raises:
        DatabaseUnsuitable, PolicyInvalid (at the first start only; later the active version stays), Conflict.
    """
    urls = await _make_schema(settings, superuser_dsn)
    service_url = urls.service.render_as_string(hide_password=False)
    database = Database(service_url)
    try:
        async with _turn(urls.owner):
            lines = await _fill(settings, database, urls.owner)
    finally:
        await database.close()
    return PreparedDatabase(service_url, tuple(lines))


async def _fill(settings: Settings, database: Database, owner: URL) -> list[str]:
    writer = AuthorityWriter(database, Clock())
    lines = await _serve_bundle(settings, writer, owner)
    demo_lines: list[str] = []
    if settings.start.demo:
        lines += await refresh_demo_shop(settings, database, owner)
        demo_lines = await make_demo_keys(settings, database, writer)
    token = settings.start.bootstrap_key.get_secret_value() if settings.start.bootstrap_key is not None else None
    made = await writer.set_bootstrap_key(token)
    if made is not None:
        lines += ["", "The platform operator's key (it makes tenants; it is shown only now):", f"  {made}"]
    return lines + demo_lines


@asynccontextmanager
async def _turn(owner: URL) -> AsyncIterator[None]:
    """Let no other start fill the database meanwhile; two that make the first tenant would both fail in the middle.

    Raises: DatabaseUnsuitable, when another takes too long.
    """
    connection = await connect(owner)
    try:
        await connection.execute(f"BEGIN; SET LOCAL lock_timeout = '{TURN_WITHIN_S}s'; SET LOCAL idle_in_transaction_session_timeout = 0")
        try:
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext('placet.first_start'))")
        except asyncpg.LockNotAvailableError:
            raise DatabaseUnsuitable(
                f"another start has been preparing this database for {TURN_WITHIN_S} s; wait for it, or end it, and start again"
            ) from None
        yield
    finally:
        await connection.close()  # and with it the lock


async def migrate(settings: Settings, superuser_dsn: str | None) -> None:
    """Bring the schema to this version's."""
    await _make_schema(settings, superuser_dsn)


async def _make_schema(settings: Settings, superuser_dsn: str | None) -> Addresses:
    urls = await _embedded_urls(settings, superuser_dsn) if superuser_dsn is not None else addresses(settings, None)
    owner = await connect(urls.owner)
    service = schema.ServiceRole(str(urls.service.username), str(urls.service.password) if urls.service.password else None)
    try:
        version = int(await owner.fetchval("SHOW server_version_num"))
        if version < schema.SERVER_VERSION_LEAST:
            raise DatabaseUnsuitable(OLD_SERVER.format(version=await owner.fetchval("SHOW server_version")))
        await schema.make_roles(owner, service)
    except asyncpg.InsufficientPrivilegeError as failure:
        raise DatabaseUnsuitable(
            f"the role of PLACET_MIGRATION_URL can't make the roles that are needed ({said_by(failure)}); give it CREATEROLE, or make "
            f"{service.name}, {FACTS_ROLE} and {SANDBOX_ROLE} by hand (see README, Your own PostgreSQL)"
        ) from None
    finally:
        await owner.close()
    await _migrate(urls)
    await (await connect(urls.service)).close()  # a role that was there keeps its own password
    await require_sessions(driver_url(urls.service.render_as_string(hide_password=False)))
    return urls


async def _migrate(urls: Addresses) -> None:
    try:
        await schema.migrate(urls.owner.render_as_string(hide_password=False), str(urls.service.username))
    except (asyncpg.InsufficientPrivilegeError, DBAPIError) as failure:
        denied = failure if isinstance(failure, asyncpg.PostgresError) else failure.orig
        if getattr(denied, "sqlstate", None) != asyncpg.InsufficientPrivilegeError.sqlstate:
            raise
        raise DatabaseUnsuitable(
            f"the role of PLACET_MIGRATION_URL can't make the schema that is needed ({said_by(denied)}); "
            f"GRANT CREATE ON DATABASE {urls.owner.database} TO {urls.owner.username}, and let it own the schema `placet` if there is one"
        ) from None


async def _embedded_urls(settings: Settings, superuser_dsn: str) -> Addresses:
    superuser = await asyncpg.connect(driver_url(superuser_dsn), timeout=10)
    try:
        if not await superuser.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", OWNER):
            await superuser.execute(f"CREATE ROLE {OWNER} LOGIN CREATEROLE")
        database = await superuser.fetchval("SELECT quote_ident(current_database())")
        await superuser.execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER}")
        await schema.protect_what_rollback_cannot_undo(superuser)
    finally:
        await superuser.close()
    return addresses(settings, superuser_dsn)


async def _serve_bundle(settings: Settings, writer: AuthorityWriter, owner: URL) -> list[str]:
    """Hand the served directory's bundle to the platform and to every tenant that follows it, where it has changed."""
    tenants = await _tenants(owner)
    first = PLATFORM_TENANT not in tenants
    try:
        files = load_directory(settings.folders.policy)
        digest = compile_bundle(files).digest
    except PolicyInvalid as invalid:
        if first:
            raise
        return [
            f"placet: the bundle in {settings.folders.policy} is broken, so the active one stays:",
            *(f"  {fault}" for fault in invalid.faults),
        ]
    if first:
        await writer.make_tenant(SYSTEM, "platform", files, PLATFORM_TENANT)
        return []
    changed = [tenant_id for tenant_id, active in tenants.items() if active is not None and active != digest]
    for tenant_id in changed:
        version, _ = await writer.store_policy(SYSTEM, tenant_id, files)
        await writer.activate_policy(SYSTEM, tenant_id, version)
    return [f"placet: the bundle in {settings.folders.policy} has changed; it is active now for {len(changed)} tenants"] if changed else []


async def _tenants(owner: URL) -> Mapping[UUID, str | None]:
    """Give every tenant, with the digest of its active policy if it follows the directory, else None."""
    connection = await connect(owner)
    try:
        rows = await connection.fetch("SELECT tenant_id, follows_directory, active_policy_version FROM placet.tenants")
        found: dict[UUID, str | None] = {}
        for row in rows:
            digest = None
            if row["follows_directory"]:
                async with connection.transaction():
                    await connection.execute("SELECT set_config('app.tenants', $1, true)", str(row["tenant_id"]))
                    digest = await connection.fetchval(
                        "SELECT digest FROM placet.policy_versions WHERE tenant_id = $1 AND version = $2",
                        row["tenant_id"],
                        row["active_policy_version"],
                    )
            found[row["tenant_id"]] = digest
        return found
    finally:
        await connection.close()

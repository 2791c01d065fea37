"""Prepares a database before the first worker starts: roles, schema, example bundle, demo data, keys. Doing it twice changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from app.domain.errors import PlacetError, PolicyInvalid
from app.domain.tool_call import Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import SYSTEM, AuthorityWriter, KeySpec
from app.engine.clock import Clock
from app.launcher.sessions import require_sessions
from app.policy.compile import compile_bundle, load_directory
from app.settings import Settings
from app.storage import schema
from app.storage.database import Database, driver_url

OWNER = "placet_owner"
SERVICE = "placet_app"
CONNECT_WITHIN_S = 10
DEMO_TENANT = "demo"
DEMO_KEY_DAYS = 30
DEMO_SEGMENTS = ("standard", "trusted_buyer")
OLD_SERVER = "PostgreSQL 18 or newer is needed (uuidv7, RETURNING old and new); this server has {version}"


class DatabaseUnsuitable(PlacetError):
    """The server or the roles can't be used as they are; the message says what to change."""


@dataclass(frozen=True, slots=True)
class PreparedDatabase:
    """What the workers connect to, and what the person who started it should read."""

    database_url: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Who makes the schema, and whom the service connects as."""

    owner: URL
    service: URL


async def prepare(settings: Settings, superuser_dsn: str | None) -> PreparedDatabase:
    """Make the database ready; `superuser_dsn` is the embedded server's, None with DATABASE_URL.

    Raises:
        DatabaseUnsuitable, PolicyInvalid (at the first start only; later the active version stays), Conflict.
    """
    urls = await _make_schema(settings, superuser_dsn)
    service_url = urls.service.render_as_string(hide_password=False)
    database = Database(service_url)
    try:
        writer = AuthorityWriter(database, Clock())
        lines = list(await _serve_bundle(settings, writer, urls.owner))
        token = settings.start.bootstrap_key.get_secret_value() if settings.start.bootstrap_key is not None else None
        made = await writer.set_bootstrap_key(token)
        if made is not None:
            lines += ["", "The platform operator's key (it makes tenants; it is shown only now):", f"  {made}"]
        if settings.start.demo and not await _is_there(urls.owner, DEMO_TENANT):
            await load_demo_data(urls.owner, settings.folders.policy, DEMO_TENANT)
            lines += await _make_demo_tenant(writer, settings)
    finally:
        await database.close()
    return PreparedDatabase(service_url, tuple(lines))


async def migrate(settings: Settings, superuser_dsn: str | None) -> None:
    """Bring the schema to this version's."""
    await _make_schema(settings, superuser_dsn)


def service_url(settings: Settings, superuser_dsn: str | None) -> str:
    """Give the address that the service itself connects to.

    Raises: DatabaseUnsuitable, when it can't be read.
    """
    if superuser_dsn is None:
        assert settings.database.url is not None
        _parse("DATABASE_URL", settings.database.url)
        return settings.database.url
    return make_url(superuser_dsn).set(username=SERVICE).render_as_string(hide_password=False)


def addresses(settings: Settings, superuser_dsn: str | None) -> Addresses:
    """Give the addresses of the owner and of the service; nothing is made and nobody is asked.

    Raises: DatabaseUnsuitable, when they can't be read or would make the service own its tables.
    """
    return _embedded_addresses(superuser_dsn) if superuser_dsn is not None else _own_urls(settings)


def _embedded_addresses(superuser_dsn: str) -> Addresses:
    base = make_url(superuser_dsn)
    return Addresses(base.set(username=OWNER), base.set(username=SERVICE))


async def tenant_names(settings: Settings, superuser_dsn: str | None) -> list[str]:
    """Give the names of all tenants, which only the owner may list.

    Raises:
        DatabaseUnsuitable: with DATABASE_URL, no owner is known.
    """
    if superuser_dsn is not None:
        owner = make_url(superuser_dsn).set(username=OWNER)
    elif settings.database.migration_url is not None:
        owner = _parse("PLACET_MIGRATION_URL", settings.database.migration_url)
    else:
        raise DatabaseUnsuitable("only the owner may list tenants; name them, or set PLACET_MIGRATION_URL")
    connection = await connect(owner)
    try:
        return [row["name"] for row in await connection.fetch("SELECT name FROM placet.tenants ORDER BY name")]
    finally:
        await connection.close()


async def _make_schema(settings: Settings, superuser_dsn: str | None) -> Addresses:
    urls = await _embedded_urls(superuser_dsn) if superuser_dsn is not None else _own_urls(settings)
    owner = await connect(urls.owner)
    service = schema.ServiceRole(str(urls.service.username), str(urls.service.password) if urls.service.password else None)
    try:
        version = int(await owner.fetchval("SHOW server_version_num"))
        if version < 180_000:
            raise DatabaseUnsuitable(OLD_SERVER.format(version=await owner.fetchval("SHOW server_version")))
        await schema.make_roles(owner, service)
    except asyncpg.InsufficientPrivilegeError as failure:
        raise DatabaseUnsuitable(
            f"the role of PLACET_MIGRATION_URL can't make the roles that are needed ({_said(failure)}); give it CREATEROLE, or make "
            f"{service.name}, {schema.FACTS_ROLE} and {schema.SANDBOX_ROLE} by hand (see README, Your own PostgreSQL)"
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
            f"the role of PLACET_MIGRATION_URL can't make the schema that is needed ({_said(denied)}); "
            f"GRANT CREATE ON DATABASE {urls.owner.database} TO {urls.owner.username}, and let it own the schema `placet` if there is one"
        ) from None


async def connect(url: URL) -> asyncpg.Connection:
    """Connect.

    Raises: DatabaseUnsuitable, with the address but not its password.
    """
    try:
        return await asyncpg.connect(driver_url(url.render_as_string(hide_password=False)), timeout=CONNECT_WITHIN_S)
    except TimeoutError:
        said = f"no answer within {CONNECT_WITHIN_S} s"
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as failure:
        said = _said(failure)
    where = url.render_as_string(hide_password=True)
    raise DatabaseUnsuitable(f"can't connect to {where}: {said}; check DATABASE_URL and PLACET_MIGRATION_URL")


def _said(failure: BaseException | None) -> str:
    """Give what a failure says on one line."""
    if isinstance(failure, OSError) and failure.errno is not None and failure.errno > 0:  # a resolver's numbers are negative
        return os.strerror(failure.errno)
    return str(failure).partition("\n")[0]


def _own_urls(settings: Settings) -> Addresses:
    assert settings.database.url is not None
    service = _parse("DATABASE_URL", settings.database.url)
    if settings.database.migration_url is None and not settings.database.single_role:
        raise DatabaseUnsuitable(
            "DATABASE_URL alone would make the service own its tables, and an owner can change audit rows; set PLACET_MIGRATION_URL to the "
            "owner and DATABASE_URL to another role (it is made if it is missing), or PLACET_SINGLE_ROLE=true if one role is meant"
        )
    owner = _parse("PLACET_MIGRATION_URL", settings.database.migration_url) if settings.database.migration_url is not None else service
    if owner.username == service.username and not settings.database.single_role:
        raise DatabaseUnsuitable(
            "DATABASE_URL and PLACET_MIGRATION_URL name the same role, which could change audit rows; name another role in DATABASE_URL "
            "(it is made if it is missing), or set PLACET_SINGLE_ROLE=true if one role is meant"
        )
    return Addresses(owner, service)


def _parse(name: str, address: str) -> URL:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # their messages repeat the password
        url = None
    if url is None or not url.username or not url.database:
        raise DatabaseUnsuitable(
            f"{name} can't be used; expected postgresql://user:password@host:port/database, with special characters of the password "
            "percent-encoded"
        )
    return url


async def _embedded_urls(superuser_dsn: str) -> Addresses:
    superuser = await asyncpg.connect(driver_url(superuser_dsn), timeout=10)
    try:
        if not await superuser.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", OWNER):
            await superuser.execute(f"CREATE ROLE {OWNER} LOGIN CREATEROLE")
        database = await superuser.fetchval("SELECT quote_ident(current_database())")
        await superuser.execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER}")
        await schema.protect_what_rollback_cannot_undo(superuser)
    finally:
        await superuser.close()
    return _embedded_addresses(superuser_dsn)


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


async def _is_there(owner: URL, name: str) -> bool:
    connection = await connect(owner)
    try:
        return bool(await connection.fetchval("SELECT 1 FROM placet.tenants WHERE name = $1", name))
    finally:
        await connection.close()


async def load_demo_data(owner: URL, folder: Path, tenant: str, *, beside_a_service: bool = False) -> None:
    """Run the bundle's demo scripts, if it has any, as the owner, for the rows of `tenant`.

    The schema's script locks tables: `beside_a_service` it is run only if the database lacks one of those that it makes.
    """
    connection = await connect(owner)
    try:
        await connection.execute("SELECT set_config('placet.demo_tenant', $1, false)", tenant)
        for name in ("schema.sql", "data.sql"):
            script = folder / "demo" / name
            if not script.is_file():
                continue
            text = script.read_text(encoding="utf-8")
            made = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+\.\w+)", text)
            there = await connection.fetchval("SELECT count(*) FROM unnest($1::text[]) AS made WHERE to_regclass(made) IS NOT NULL", made)
            if made and there == len(made) and beside_a_service:
                continue
            await connection.execute(text)
    except asyncpg.InsufficientPrivilegeError as denied:
        raise DatabaseUnsuitable(
            f"the owner can't make the demo's shop ({_said(denied)}); GRANT CREATE ON DATABASE {owner.database} TO {owner.username}, let "
            "it own the schema `shop` if there is one, or set PLACET_DEMO=false to start without"
        ) from None
    finally:
        await connection.close()


async def _make_demo_tenant(writer: AuthorityWriter, settings: Settings) -> list[str]:
    tenant = await writer.make_tenant(SYSTEM, DEMO_TENANT, await writer.platform_bundle())
    lines = ["", f"Keys of the tenant `{DEMO_TENANT}` (shown only now, good for {DEMO_KEY_DAYS} days):"]
    tokens: dict[Role, str] = {}
    people = (
        (Role.AGENT, "support-agent", "ops-team"),
        (Role.REVIEWER, "dana", "dana"),
        (Role.AUDITOR, "eve", "eve"),
        (Role.AUTHOR, "paul", "paul"),
        (Role.OPERATOR, "olga", "olga"),
    )
    for role, subject, owner in people:
        segments = DEMO_SEGMENTS if role is Role.AGENT else ()
        spec = KeySpec(subject, owner, (role,), segments, timedelta(days=DEMO_KEY_DAYS))
        tokens[role] = (await writer.make_key(SYSTEM, tenant.tenant_id, spec)).token
        lines.append(f"  {role:<9} {tokens[role]}")
    host, port = settings.listening.host, settings.listening.port
    body = (
        '{"tool": "refund", "arguments": {"order_id": "A-1001", "amount": 12990.00, "currency": "EUR", "cause": "damaged"}, '
        '"session_id": "chat-1", "call_id": "call_01", "on_behalf_of": {"id": "cust-77", "segment": "standard"}}'
    )
    return [
        *lines,
        "",
        "Try a refund that is a hundred times too large (then 20.00 with another call_id):",
        f"  curl -s http://{host}:{port}/tool-calls/check -H 'content-type: application/json' \\",
        f"    -H 'authorization: Bearer {tokens[Role.AGENT]}' \\",
        f"    -d '{body}'",
        "",
    ]

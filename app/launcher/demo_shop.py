"""The example's shop, and the tenant `demo` with its keys: made by the first start with PLACET_DEMO, the shop brought up to date by each.

The scripts are the bundle's (`demo/schema.sql`, `demo/data.sql`) and have to be idempotent: a data folder may come from any earlier
version.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
from sqlalchemy.engine import URL

from app.domain.tool_call import Role
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import SYSTEM, AuthorityWriter, KeySpec
from app.launcher.addresses import DatabaseUnsuitable, connect, said_by
from app.settings import Settings
from app.storage import authority as stored
from app.storage.database import Database

TENANT = "demo"
KEY_DAYS = 30
SEGMENTS = ("standard", "trusted_buyer")
PEOPLE = (
    (Role.AGENT, "support-agent", "ops-team"),
    (Role.REVIEWER, "dana", "dana"),
    (Role.AUDITOR, "eve", "eve"),
    (Role.AUTHOR, "paul", "paul"),
    (Role.OPERATOR, "olga", "olga"),
)
LOCK_WITHIN_S = 5


async def refresh_demo_shop(settings: Settings, database: Database, owner: URL) -> list[str]:
    """Make the shop's tables and the tenant's rows, or what an earlier version's lack; give what the person who started it should read.

    Raises:
        DatabaseUnsuitable: they can't be made, at the first start; later the service goes on with what is there.
    """
    try:
        await load_demo_data(owner, settings.folders.policy, TENANT)
    except DatabaseUnsuitable as failure:
        if await _tenant_id(database) is None:
            raise
        return [f"placet: the demo's shop stays as it was: {failure}"]
    return []


async def load_demo_data(owner: URL, folder: Path, tenant: str, *, beside_a_service: bool = False) -> None:
    """Run the bundle's demo scripts, if it has any, as the owner, for the rows of `tenant`.

    The schema's script locks tables: `beside_a_service` it is run only if the database lacks one of those that it makes.
    """
    connection = await connect(owner)
    try:
        await connection.execute(f"SET lock_timeout = '{LOCK_WITHIN_S}s'")
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
            f"the owner can't make the demo's shop ({said_by(denied)}); GRANT CREATE ON DATABASE {owner.database} TO {owner.username}, let "
            "it own the schema `shop` if there is one, or set PLACET_DEMO=false to start without"
        ) from None
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        raise DatabaseUnsuitable(
            f"the demo's tables are in use and weren't free within {LOCK_WITHIN_S} s; start again at a quieter moment"
        ) from None
    except asyncpg.PostgresError as failure:
        raise DatabaseUnsuitable(
            f"the demo's scripts in `{folder / 'demo'}` don't fit what is in the database ({said_by(failure)}); move tables of those names "
            "elsewhere, or set PLACET_DEMO=false to start without"
        ) from None
    finally:
        await connection.close()


async def make_demo_keys(settings: Settings, database: Database, writer: AuthorityWriter) -> list[str]:
    """Make the tenant and its keys, unless they were made; give what the person who started it should read, the keys among it."""
    tenant_id = await _tenant_id(database)
    if tenant_id is None:
        tenant_id = (await writer.make_tenant(SYSTEM, TENANT, await writer.platform_bundle())).tenant_id
    async with database.transaction([tenant_id]) as connection:
        made = await stored.list_keys(connection, tenant_id, len(PEOPLE), None)
    if len(made) == len(PEOPLE):
        return []  # fewer: a start was killed while it made them, and nobody has seen any
    tokens: dict[Role, str] = {}
    for role, subject, person in PEOPLE:
        spec = KeySpec(subject, person, (role,), SEGMENTS if role is Role.AGENT else (), timedelta(days=KEY_DAYS))
        tokens[role] = (await writer.make_key(SYSTEM, tenant_id, spec)).token
    return [
        "",
        f"Keys of the tenant `{TENANT}` (shown only now, good for {KEY_DAYS} days):",
        *(f"  {role:<9} {token}" for role, token in tokens.items()),
        *_what_to_try(settings, tokens[Role.AGENT]),
    ]


async def _tenant_id(database: Database) -> UUID | None:
    async with database.transaction([PLATFORM_TENANT]) as connection:
        return await stored.tenant_of_name(connection, TENANT)


def _what_to_try(settings: Settings, token: str) -> list[str]:
    host, port = settings.listening.host, settings.listening.port
    body = (
        '{"tool": "refund", "arguments": {"order_id": "A-1001", "amount": 12990.00, "currency": "EUR", "cause": "damaged"}, '
        '"session_id": "chat-1", "call_id": "call_01", "on_behalf_of": {"id": "cust-77", "segment": "standard"}}'
    )
    return [
        "",
        "Try a refund that is a hundred times too large (then 20.00 with another call_id):",
        f"  curl -s http://{host}:{port}/tool-calls/check -H 'content-type: application/json' \\",
        f"    -H 'authorization: Bearer {token}' \\",
        f"    -d '{body}'",
        "",
    ]

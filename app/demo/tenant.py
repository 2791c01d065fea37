"""Makes the demo's own tenant, its keys and its shop's rows, in the database that the running service uses; each run makes another one.

The story is the example bundle's: a service that serves another is told so instead of failing in the middle.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy.engine import URL

from app.domain.errors import PlacetError
from app.domain.tool_call import Role
from app.engine.change_authority import SYSTEM, AuthorityWriter, KeySpec
from app.engine.clock import Clock
from app.launcher.addresses import Addresses, addresses, connect
from app.launcher.data_folder import data_folder
from app.launcher.demo_shop import load_demo_data
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.policy.compile import compile_bundle
from app.settings import PROJECT, Settings
from app.storage.database import Database
from app.storage.schema import head_revision

BUNDLE = "shop"
FOLDER = PROJECT / "policies" / BUNDLE
KEY_LIFETIME = timedelta(hours=1)


class StoryImpossible(PlacetError):
    """The story can't be told here; the message says what to change."""


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """Who acts. The keys are good for an hour and are never shown."""

    name: str
    agent: str
    auditor: str


async def make_demo_tenant(settings: Settings, tools: frozenset[str], folder: Path = FOLDER) -> DemoTenant:
    """Make the tenant. `tools` are those that the story needs.

    Raises:
        StoryImpossible: no database is there, or it serves another bundle; nothing was made.
        DatabaseUnsuitable: the database can't be reached.
    """
    at = _addresses(settings)
    await (await connect(at.service)).close()  # says what is wrong with the address, if something is
    await _require_schema(at.owner)
    database = Database(at.service.render_as_string(hide_password=False))
    try:
        writer = AuthorityWriter(database, Clock())
        files = await writer.platform_bundle()
        served = compile_bundle(files) if files is not None else None
        if served is None or served.name != BUNDLE or not tools <= served.tools.keys():
            what = "no bundle" if served is None else f"the bundle `{served.name}` with the tools {', '.join(sorted(served.tools))}"
            raise StoryImpossible(
                f"the service serves {what}; the story is that of the bundle `{BUNDLE}` and needs {', '.join(sorted(tools))}: start the "
                f"service with PLACET_POLICY_DIR={folder}"
            )
        name = f"demo-{secrets.token_hex(4)}"
        await load_demo_data(at.owner, folder, name, beside_a_service=True)
        tenant = await writer.make_tenant(SYSTEM, name, files)

        async def key(role: Role, subject: str, segments: tuple[str, ...] = ()) -> str:
            spec = KeySpec(subject, subject, (role,), segments, KEY_LIFETIME)
            return (await writer.make_key(SYSTEM, tenant.tenant_id, spec)).token

        return DemoTenant(name, await key(Role.AGENT, "demo-agent", ("standard",)), await key(Role.AUDITOR, "demo-auditor"))
    finally:
        await database.close()


async def _require_schema(owner: URL) -> None:
    connection = await connect(owner)
    try:
        found = None
        if await connection.fetchval("SELECT to_regclass('placet.schema_version') IS NOT NULL"):
            found = await connection.fetchval("SELECT version_num FROM placet.schema_version")
    finally:
        await connection.close()
    if found != head_revision():
        raise StoryImpossible(
            f"the database's schema is at {found or 'no revision'} and this program needs {head_revision()}, so the service isn't of this "
            "version, or uses another database; start it again, and set PLACET_DATA_DIR or DATABASE_URL as it has them"
        )


def _addresses(settings: Settings) -> Addresses:
    if settings.database.url is not None:
        return addresses(settings, None)
    postgres = EmbeddedPostgres(data_folder(settings.folders) / "postgres")
    if not postgres.pgdata.exists():
        raise StoryImpossible(
            f"there is no database in `{postgres.folder.parent}`, so the service runs on another; set PLACET_DATA_DIR or DATABASE_URL as "
            "it has them"
        )
    return addresses(settings, postgres.dsn())

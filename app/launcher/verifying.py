"""`placet audit verify`: checks the chains of tenants, whether a service runs or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.domain.errors import NotFound
from app.engine.checkpoints import Checkpoints, load_signing_key
from app.engine.clock import Clock
from app.engine.read_back import Reader
from app.engine.verify_chain import ChainReport
from app.launcher.addresses import DatabaseUnsuitable, connect, owner_address, service_address
from app.launcher.data_folder import data_folder
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import Settings
from app.storage.database import Database


def verify(settings: Settings, names: Sequence[str]) -> list[ChainReport]:
    """Verify the chains of the named tenants, or of all; an embedded server that wasn't running is stopped again.

    Raises: PlacetError.
    """
    if settings.database.url is not None:
        return asyncio.run(_verify(settings, None, names))
    postgres = EmbeddedPostgres(data_folder(settings.folders) / "postgres")
    postgres.start(share=True)
    try:
        return asyncio.run(_verify(settings, postgres.dsn(), names))
    finally:
        postgres.stop()


async def _verify(settings: Settings, superuser_dsn: str | None, names: Sequence[str]) -> list[ChainReport]:
    address = service_address(settings, superuser_dsn)
    await (await connect(address)).close()  # says what is wrong with the address, if something is
    database = Database(address.render_as_string(hide_password=False))
    try:
        reader = Reader(database, Checkpoints(database, Clock(), load_signing_key(data_folder(settings.folders))))
        reports = []
        for name in names or await _tenant_names(settings, superuser_dsn):
            tenant_id = await reader.tenant_id(name)
            if tenant_id is None:
                raise NotFound(f"there is no tenant `{name}`")
            reports.append(await reader.verification(tenant_id))
        return reports
    finally:
        await database.close()


async def _tenant_names(settings: Settings, superuser_dsn: str | None) -> list[str]:
    owner = owner_address(settings, superuser_dsn)
    if owner is None:
        raise DatabaseUnsuitable("only the owner may list tenants; name them, or set PLACET_MIGRATION_URL")
    connection = await connect(owner)
    try:
        return [row["name"] for row in await connection.fetch("SELECT name FROM placet.tenants ORDER BY name")]
    finally:
        await connection.close()

"""`placet migrate`: brings the schema up to date on the server that a service would use, whether one runs or not."""

from __future__ import annotations

import asyncio

from app.launcher import first_start
from app.launcher.data_folder import data_folder
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import Settings


def migrate(settings: Settings) -> None:
    """Migrate and return; an embedded server that wasn't running is stopped again, one that was stays.

    Raises: PlacetError.
    """
    if settings.database.url is not None:
        asyncio.run(first_start.migrate(settings, None))
        return
    postgres = EmbeddedPostgres(data_folder(settings.folders) / "postgres")
    postgres.start(share=True)
    try:
        asyncio.run(first_start.migrate(settings, postgres.dsn()))
    finally:
        postgres.stop()

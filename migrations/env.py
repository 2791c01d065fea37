"""How Alembic runs here: called by `app.storage.schema.migrate` with an open connection; the version table lives in schema placet."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from app.storage.tables import METADATA


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table="schema_version",
        version_table_schema="placet",
        include_schemas=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("placet migrates online only: set PLACET_MIGRATION_URL and run `placet migrate`")
run(context.config.attributes["connection"])

"""Limits of keys: how many requests a minute and how many at once, and what is spent of a minute (SPEC 12.2)."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql("SELECT 1")  # opens the driver's transaction before the driver is used directly
    script = (SQL / "0004_rate_limits.sql").read_text()
    # several statements at once: only the driver's own simple protocol takes them
    connection.connection.dbapi_connection.run_async(lambda driver: driver.execute(script))

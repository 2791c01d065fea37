"""Freezes: what an operator has stopped."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql("SELECT 1")  # opens the driver's transaction before the driver is used directly
    script = (SQL / "0003_freezes.sql").read_text()
    # several statements at once: only the driver's own simple protocol takes them
    connection.connection.dbapi_connection.run_async(lambda driver: driver.execute(script))

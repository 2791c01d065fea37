"""The decision history: what decisions are searched by, and the indexes that serve it.

The indexes are built while decisions wait; at ten million rows that is minutes, so plan it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql("SELECT 1")  # opens the driver's transaction before the driver is used directly
    script = (SQL / "0002_decision_history.sql").read_text()
    # several statements at once: only the driver's own simple protocol takes them
    connection.connection.dbapi_connection.run_async(lambda driver: driver.execute(script))

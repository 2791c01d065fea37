"""The spine: tenants, keys, policies, claims, decisions, accounts, holds, approvals, the audit chain, and the decision transaction's
functions.

There is no downgrade: an audit chain isn't dropped by a migration.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql("SELECT 1")  # opens the driver's transaction before the driver is used directly
    for name in ("0001_tables.sql", "0001_functions.sql"):
        script = (SQL / name).read_text()
        # several statements at once: only the driver's own simple protocol takes them
        connection.connection.dbapi_connection.run_async(lambda driver, script=script: driver.execute(script))
    connection.exec_driver_sql("SELECT placet.ensure_partitions()")

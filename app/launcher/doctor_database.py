"""The part of `placet doctor` that asks the database: who gets in, with which rights, and whether the schema is what this version needs.

It only reads. What a start makes or mends by itself (roles, schema, partitions, the first policy) is no fault while no service runs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
from sqlalchemy.engine import URL

from app.domain.errors import DecisionUnavailable, PlacetError
from app.engine.authority import PLATFORM_TENANT
from app.engine.lane import MAIN_LANES, SLOW_LANES
from app.launcher.addresses import Addresses, addresses, connect
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.launcher.findings import Finding, fault, fault_of, good, note
from app.launcher.sessions import require_sessions
from app.settings import Settings
from app.storage import schema
from app.storage.database import POOL_SIZE, Database, driver_url
from app.storage.decision_batch import FACTS_ROLE, SANDBOX_ROLE
from app.storage.readiness import DatabaseState, read_state

SKEW_S = 2.0
CONNECTIONS_OF_A_WORKER = 2 * POOL_SIZE + MAIN_LANES + SLOW_LANES
CONNECTIONS_BESIDE = 5  # a start's own, the doctor's, and somebody's psql
SELECTS = {
    "server": """
        SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
               current_setting('max_connections')::int AS connections, clock_timestamp() AS clock,
               current_setting('superuser_reserved_connections')::int
               + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved,
               r.rolsuper OR r.rolcreaterole AS makes_roles, has_database_privilege(current_database(), 'CREATE') AS makes_schemas,
               to_regclass('placet.schema_version') IS NOT NULL AS has_schema,
               (SELECT count(*) FROM pg_roles WHERE rolname = ANY($1::text[])) AS roles
        FROM pg_roles r WHERE r.rolname = current_user
    """,
    "rollback": """
        SELECT has_function_privilege(rolname, 'pg_notify(text, text)', 'EXECUTE') FROM pg_roles WHERE rolname = $1
    """,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A database as it is looked at: `running` says that a service answers, so what a start would mend is a fault."""

    settings: Settings
    at: Addresses
    running: bool


async def embedded_findings(settings: Settings, data: Path, running: bool) -> list[Finding]:
    """Look at the embedded server below `data`; that it doesn't run beside a service that doesn't either is as it should be."""
    postgres = EmbeddedPostgres(data / "postgres")
    try:
        if not postgres.pgdata.exists():
            return [good("database", "the embedded database isn't there yet; the first start makes it")]
        at = addresses(settings, postgres.dsn())
        await (await connect(at.owner)).close()
    except (PlacetError, OSError) as error:
        if running:
            return [fault("database", f"a service runs, and its database doesn't answer ({_said(error)})", f"see `{postgres.log_path}`")]
        return [good("database", "the embedded database doesn't run; `placet serve` starts it")]
    return [good("database", "the embedded database runs"), *await _look(Place(settings, at, running))]


async def server_findings(settings: Settings, running: bool) -> list[Finding]:
    """Look at the server that DATABASE_URL names."""
    try:
        at = addresses(settings, None)
    except PlacetError as error:
        return [fault_of("database", str(error), "see README, Your own PostgreSQL")]
    return await _look(Place(settings, at, running))


async def _look(place: Place) -> list[Finding]:
    found: list[Finding] = []
    try:
        async for finding in _findings(place):
            found.append(finding)  # noqa: PERF401 # what was found before a failure is kept
    except (PlacetError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        found.append(fault_of("database", _said(error), "check DATABASE_URL and PLACET_MIGRATION_URL, and that the server runs"))
    return found


async def _findings(place: Place) -> AsyncIterator[Finding]:
    owner = await connect(place.at.owner)
    names = (str(place.at.service.username), FACTS_ROLE, SANDBOX_ROLE)
    try:
        asked_at = time.time()
        server = await owner.fetchrow(SELECTS["server"], list(names))
        assert server is not None
        answered_at = time.time()
        changes_more = await owner.fetchval(SELECTS["rollback"], SANDBOX_ROLE)
    finally:
        await owner.close()
    yield good("owner", f"{_shown(place.at.owner)} lets the owner in")
    yield server_version(server["number"], server["version"])
    if server["number"] < schema.SERVER_VERSION_LEAST:
        return
    yield clock(server["clock"], asked_at, answered_at)
    embedded = place.settings.database.url is None
    yield connections(place.settings.listening.workers, server["connections"], server["reserved"], embedded=embedded)
    if changes_more:
        yield note(
            "rollback", "facts and effects may call functions whose effects no rollback takes back (pg_notify, session locks)",
            "as superuser, REVOKE them from PUBLIC as deploy/postgres/10-placet.sh does",
        )  # fmt: skip
    yield owner_rights(makes_roles=server["makes_roles"] or server["roles"] == len(names), makes_schemas=server["makes_schemas"])
    if not server["has_schema"]:
        yield good("migrations", "there is no schema yet; the first start makes it")
        return
    async for finding in _service(place):
        yield finding


async def _service(place: Place) -> AsyncIterator[Finding]:
    """Look at what the service's own role finds."""
    url = place.at.service.render_as_string(hide_password=False)
    await (await connect(place.at.service)).close()  # says what is wrong with the address, if something is
    await require_sessions(driver_url(url))
    yield good("sessions", f"{_shown(place.at.service)} lets the service in, to sessions of its own")
    database = Database(url)
    try:
        async with database.transaction([PLATFORM_TENANT]) as connection:
            state = await read_state(connection, PLATFORM_TENANT)
    except DecisionUnavailable as error:
        yield fault("database", str(error), "look into the server's log")
        return
    finally:
        await database.close()
    for finding in schema_findings(state, schema.head_revision(), running=place.running, single_role=place.settings.database.single_role):
        yield finding


def server_version(number: int, shown: str) -> Finding:
    """Check the server's version."""
    if number < schema.SERVER_VERSION_LEAST:
        return fault("server_version", f"PostgreSQL {shown} is too old", "use PostgreSQL 18 or newer (uuidv7, RETURNING old and new)")
    return good("server_version", f"PostgreSQL {shown}")


def clock(theirs: datetime, asked_at: float, answered_at: float) -> Finding:
    """Compare the database's clock with this machine's, which read `asked_at` before and `answered_at` after it was asked."""
    skew = max(asked_at - theirs.timestamp(), theirs.timestamp() - answered_at, 0.0)
    if skew > SKEW_S:
        return note("clock", f"the database's clock and this machine's are {skew:.1f} s apart", "let both follow the same time server")
    return good("clock", "the database's clock and this machine's agree")


def connections(workers: int, most: int, reserved: int, *, embedded: bool) -> Finding:
    """Check that every worker gets the connections that it may open."""
    needed = workers * CONNECTIONS_OF_A_WORKER + CONNECTIONS_BESIDE
    said = f"{workers} worker{'s' if workers > 1 else ''} may open {needed} connections and the server has {most - reserved}"
    if needed > most - reserved:
        raised = "" if embedded else f"raise max_connections to {needed + reserved}, or "
        return fault("connections", said, f"{raised}lower PLACET_WORKERS")
    return good("connections", said)


def schema_findings(state: DatabaseState, head: str, *, running: bool, single_role: bool) -> list[Finding]:
    """Judge what the service's role read. What the next start mends is a note, unless a service runs without it."""
    mended = fault if running else note
    found = []
    if state.revision == head:
        found.append(good("migrations", f"the schema is at {head}"))
    elif state.revision is not None and state.revision > head:
        said = f"the schema is at {state.revision}, which is newer than this program's {head}"
        found.append(fault("migrations", said, "install the Placet that migrated it, or a newer one"))
    else:
        said = f"the schema is at {state.revision or 'no revision'}, and this program needs {head}"
        found.append(mended("migrations", said, "run `placet migrate`; a start does it, too"))
    if state.revision is None:
        return found  # the rest couldn't be looked at, the role's rights among it
    if single_role or not state.too_powerful:
        found.append(good("role", "the service's role owns nothing and is no superuser" if not single_role else "one role is meant"))
    else:
        said = "the service's role owns tables, bypasses row level security or is a superuser"
        found.append(fault("role", said, "name another role in DATABASE_URL; it is made if it is missing"))
    if state.next_partitions:
        found.append(good("partitions", "next month's are there"))
    else:
        found.append(mended("partitions", "next month's are missing", "run `placet migrate`; a start does it, too"))
    if state.policy_loaded:
        found.append(good("policy_active", "a policy is active on the platform"))
    else:
        found.append(
            mended("policy_active", "no policy is active on the platform", "start the service once; it activates PLACET_POLICY_DIR")
        )
    if state.functions_work:
        found.append(good("functions", "the decision functions answer"))
    else:
        found.append(mended("functions", "the decision functions don't answer", "run `placet migrate`; restart a server that was upgraded"))
    return found


def owner_rights(*, makes_roles: bool, makes_schemas: bool) -> Finding:
    """Check that the owner may do what every start does: make the roles that are missing, and the schema if it isn't there."""
    if not makes_roles:
        return fault("owner_rights", "the owner can't make the roles that are needed", "give it CREATEROLE (README, Your own PostgreSQL)")
    if not makes_schemas:  # asked for also where the schema is there: CREATE SCHEMA IF NOT EXISTS needs it
        return fault(
            "owner_rights", "the owner can't make the schema", "GRANT CREATE ON DATABASE … TO the owner (README, Your own PostgreSQL)"
        )
    return good("owner_rights", "the owner can make roles and the schema")


def _shown(address: URL) -> str:
    return f"`{address.set(query={}).render_as_string(hide_password=True)}`"


def _said(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

"""Connections: what is an outage, and which spellings of an address are read (SPEC S3.10)."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.domain.errors import DecisionUnavailable
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.storage.database import BatchConnection, Database, driver_url, tenants_setting
from tests.engine.shop import Shop

PLATFORM = uuid.UUID(int=0)
SPELLINGS = ["postgresql://", "postgres://", "postgresql+asyncpg://"]


async def ask(database: Database, statement: str) -> object:
    async with database.transaction([PLATFORM]) as connection:
        return (await connection.execute(text(statement))).scalar_one_or_none()


@pytest.mark.parametrize("scheme", SPELLINGS)
def test_any_spelling_of_an_address_is_read(scheme: str) -> None:
    address = f"{scheme}someone:pass%40word@host:5433/data?sslmode=require"
    assert driver_url(address) == "postgresql://someone:pass%40word@host:5433/data?sslmode=require"


async def test_a_libpq_option_in_the_address_works_for_both_ways_in(shop: Shop) -> None:
    """A managed server's address has `sslmode`; the driver knows it, SQLAlchemy's dialect doesn't."""
    url = f"{shop.url}&sslmode=disable"
    database, lane = Database(url), BatchConnection(url)
    try:
        assert await ask(database, "SELECT 1") == 1
        async with lane.transaction([PLATFORM]) as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await database.close()
        await lane.close()


@pytest.mark.parametrize("wrong", ["nobody", "no database", "no server"])
async def test_a_server_that_turns_the_service_away_is_away(shop: Shop, wrong: str) -> None:
    """Not a bug (500) and no call's fault: 503, and readiness says so."""
    name = shop.url.split("@/")[1].split("?")[0]
    url = {
        "nobody": shop.url.replace("placet_app@", "nobody_at_all@"),
        "no database": shop.url.replace(name, "no_such_database"),
        "no server": "postgresql://placet_app@127.0.0.1:9/nowhere",
    }[wrong]
    database, lane = Database(url), BatchConnection(url)
    try:
        with pytest.raises(DecisionUnavailable):
            await ask(database, "SELECT 1")
        with pytest.raises((DecisionUnavailable, OSError)):
            async with lane.transaction([PLATFORM]):
                pytest.fail("there is no transaction without a connection")
    finally:
        await database.close()
        await lane.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_sleep(2)",
        "SELECT pg_terminate_backend(pg_backend_pid())",
        "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$",
    ],
)
async def test_what_asking_again_may_mend_is_an_outage(shop: Shop, statement: str) -> None:
    database = Database(shop.url)
    try:
        with pytest.raises(DecisionUnavailable):
            await ask(database, statement)
        assert await ask(database, "SELECT 1") == 1, "the pool has no dead connection left"
    finally:
        await database.close()


async def test_what_asking_again_does_not_mend_is_a_bug(shop: Shop) -> None:
    database = Database(shop.url)
    try:
        with pytest.raises(DBAPIError):
            await ask(database, "SELECT no_such_column")
    finally:
        await database.close()


async def test_an_error_rolls_back_and_the_end_commits(shop: Shop) -> None:
    database = Database(shop.url)
    insert = text("INSERT INTO placet.accounts (tenant_id, account, held, spent) VALUES (:tenant, :name, 0, 0)")
    try:
        with suppress(ZeroDivisionError):
            async with database.transaction([PLATFORM]) as connection:
                await connection.execute(insert, {"tenant": PLATFORM, "name": "lost"})
                raise ZeroDivisionError
        async with database.transaction([PLATFORM]) as connection:
            await connection.execute(insert, {"tenant": PLATFORM, "name": "kept"})
    finally:
        await database.close()
    assert await shop.rows("SELECT account FROM placet.accounts") == [{"account": "kept"}]


@pytest.mark.parametrize("lost", ["before", "during"])
async def test_a_connection_lost_during_commit_is_not_said_to_have_changed_nothing(shop: Shop, lost: str) -> None:
    """S3.10: before COMMIT nothing was kept, and after it was sent nobody knows."""
    database = Database(shop.url)

    async def lose() -> None:
        async with database.transaction([PLATFORM]) as connection:
            pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            await shop.value("SELECT pg_terminate_backend($1, 1000)", pid)
            if lost == "before":
                await connection.execute(text("SELECT 1"))

    with pytest.raises(DecisionUnavailable, match="nothing was changed" if lost == "before" else "it may have happened"):
        await lose()
    await database.close()


def test_a_transaction_names_its_tenants() -> None:
    assert tenants_setting([uuid.UUID(int=2), PLATFORM, PLATFORM]) == f"{PLATFORM},{uuid.UUID(int=2)}"
    with pytest.raises(AssertionError):
        tenants_setting([])
    with pytest.raises(AssertionError):
        tenants_setting(uuid.UUID(int=n) for n in range(257))


@pytest.mark.parametrize("sums", ["-1, 0", "0, -1"])
async def test_the_schema_has_the_last_word(shop: Shop, sums: str) -> None:
    """S9.2: held and spent are never below zero, whatever a program does."""
    with pytest.raises(asyncpg.CheckViolationError):
        await shop.execute(f"INSERT INTO placet.accounts (tenant_id, account, held, spent) VALUES ('{PLATFORM}', 'x', {sums})")


class Cable:
    """A way to the server that can be cut without either end being told, as by a firewall that forgets a connection."""

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = server
        self._path = folder / server.name
        self._cut = 0
        self._ends: list[asyncio.StreamWriter] = []
        self._opened = 0

    async def lay(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._connected, self._path)

    def cut(self) -> None:
        """Drop what goes over the connections that are open now; new ones work."""
        self._cut = self._opened

    def close(self) -> None:
        for end in self._ends:
            end.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self._opened = self._opened + 1
        there, back = await asyncio.open_unix_connection(self._server)
        self._ends += [writer, back]
        await asyncio.gather(self._pass_on(number, reader, back), self._pass_on(number, there, writer))

    async def _pass_on(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if number > self._cut:
                    writer.write(data)
            writer.close()


@pytest.mark.parametrize("step", ["prepare", "counted_tables", "transaction"])
async def test_a_connection_that_no_longer_answers_is_given_up_at_every_step(
    shop: Shop, postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """S3.10: else a lane would try the dead connection for as long as the kernel believes in it, a quarter of an hour."""
    monkeypatch.setattr("app.storage.database.TABLES_FOR_S", 0.0)
    cable = Cable(postgres.socket_folder / ".s.PGSQL.5432", tmp_path)
    lane = BatchConnection(shop.url.partition("?")[0] + f"?host={quote(str(tmp_path), safe='/')}")

    async def use() -> None:
        match step:
            case "prepare":
                await lane.prepare("placet_facts", [f"SELECT {uuid.uuid4().int}"])
            case "counted_tables":
                await lane.counted_tables()
            case _:
                async with lane.transaction([PLATFORM]) as connection:
                    await connection.execute("SELECT 1")

    server = await cable.lay()
    try:
        await use()
        cable.cut()
        started = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await use()
        assert asyncio.get_running_loop().time() - started < 2.0
        async with asyncio.timeout(5.0):
            await use()
    finally:
        await lane.close()
        cable.close()
        server.close()


async def test_a_failed_preparation_leaves_the_connection_as_it_was(shop: Shop) -> None:
    lane = BatchConnection(shop.url)
    good, bad = "SELECT 1", "SELECT * FROM nothing.at_all"
    try:
        assert (await lane.prepare("placet_facts", [good])).keys() == {good}
        assert (await lane.prepare("placet_facts", [bad, good])).keys() == {good}, "what was prepared before is still there"
        async with lane.transaction([PLATFORM]) as connection:
            assert await connection.fetchval("SELECT current_user") == "placet_app"
            name = (await lane.prepare("placet_facts", ()))[good].removeprefix("@")
            assert await connection.fetchval(f"EXECUTE {name}('{{}}')") == 1
    finally:
        await lane.close()

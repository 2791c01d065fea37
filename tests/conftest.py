"""What tests share: a real PostgreSQL for each test process, and a database of its own for each test that asks for one.

The template database is made by what a first start does, never by hand. Nothing here stands in for our own code.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest

from app.launcher import first_start
from app.launcher.accounts import postgres_account
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import PROJECT, Settings, load_settings

TEMPLATE = "placet"


@dataclass(frozen=True, slots=True)
class TestDatabase:
    """One test's own database: `url` as the service's role, `superuser_url` for setting the stage."""

    __test__ = False
    url: str
    superuser_url: str


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The settings of a start without any variable, but for the demo data."""
    kept = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith("PLACET_") or name == "DATABASE_URL"}
    try:
        read = load_settings()
    finally:
        os.environ.update(kept)
    return replace(read, start=replace(read.start, demo=False))


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server that forgets when it is killed, and is gone after the last test."""
    folder = Path(tempfile.mkdtemp(prefix="placet-tests-"))
    folder.chmod(0o711 if postgres_account().lent else 0o700)
    server = EmbeddedPostgres(folder / "postgres", database=TEMPLATE, durable=False)
    try:
        server.start()
        yield server
    finally:
        server.stop(hasten=lambda: True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres, settings: Settings) -> first_start.PreparedDatabase:
    """The database that the others are copies of: roles and schema as the first start makes them."""
    return asyncio.run(first_start.prepare(settings, postgres.dsn()))


@pytest.fixture
def database(postgres: EmbeddedPostgres, template: first_start.PreparedDatabase) -> Iterator[TestDatabase]:
    """A copy of the template, dropped after the test."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    administrator = postgres.dsn("postgres")
    asyncio.run(_execute(administrator, f"create database {name} template {TEMPLATE} strategy file_copy"))
    yield TestDatabase(url=_with_database(template.database_url, name), superuser_url=postgres.dsn(name))
    asyncio.run(_execute(administrator, f"drop database {name} with (force)"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data beside the checkout; a run that claims to be CI may not skip what needs it."""
    folder = Path(os.environ.get("PLACET_SHARED_DIR") or PROJECT.parent / "shared")
    if not (folder / "data").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{folder / 'data'} is absent, and CI must not skip the tests that read it")
        pytest.skip(f"{folder / 'data'} is absent; set PLACET_SHARED_DIR to run this test")
    return folder


def _with_database(url: str, name: str) -> str:
    role, _, place = url.partition("@/")  # on a Unix socket nothing stands between `@` and `/`
    return f"{role}@/{name}?{place.partition('?')[2]}"


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()

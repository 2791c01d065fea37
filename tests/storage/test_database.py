"""Connections: what is an outage, and which spellings of an address are read (SPEC S3.10)."""

from __future__ import annotations

import uuid
from contextlib import suppress

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.domain.errors import DecisionUnavailable
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

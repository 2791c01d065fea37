"""The tests' own database: each test has a copy that no other sees."""

from __future__ import annotations

import asyncpg
import pytest

from tests.conftest import TestDatabase


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_database_of_its_own(database: TestDatabase, turn: int) -> None:
    connection = await asyncpg.connect(database.superuser_url)
    try:
        await connection.execute("create table only_mine (turn int)")
        assert await connection.fetchval("select count(*) from only_mine") == 0, turn
    finally:
        await connection.close()

"""Keys of past calls: a page may have many of each call, and what is there stays (SPEC S6.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

from app.storage.database import Database
from app.storage.history import insert_call_keys
from tests.engine.shop import Shop


async def test_a_page_with_more_keys_than_one_statement_has_parameters(shop: Shop) -> None:
    """500 calls of a tool that 40 queries count."""
    now = datetime(2026, 12, 1, tzinfo=UTC)
    keys = [(sha256(bytes([n % 256, n // 256])).hexdigest()[:32], now, UUID(int=n)) for n in range(20_000)]
    database = Database(shop.url)
    try:
        for _ in range(2):
            async with database.transaction([shop.acme.tenant_id]) as connection:
                await insert_call_keys(connection, shop.acme.tenant_id, keys)
                await insert_call_keys(connection, shop.acme.tenant_id, [])
    finally:
        await database.close()
    assert await shop.value("SELECT count(*) FROM placet.call_keys") == 20_000

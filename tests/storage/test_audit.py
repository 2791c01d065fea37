"""Reading a chain back page by page (SPEC S10.2)."""

from __future__ import annotations

import pytest

from app.storage import audit
from app.storage.audit import ChainRow, read_chain
from app.storage.database import Database
from tests.engine.shop import Shop, refund, working


async def read(shop: Shop, until: int) -> list[ChainRow]:
    database = Database(shop.url)
    try:
        async with database.transaction([shop.acme.tenant_id]) as connection:
            return [row async for row in read_chain(connection, shop.acme.tenant_id, until)]
    finally:
        await database.close()


@pytest.mark.parametrize("page", [1, 3, 4, 1_000])
async def test_pages_join_without_a_gap_and_each_row_has_its_payload(shop: Shop, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    async with working(shop.url) as worker:
        for number in range(6):
            await worker.check(shop.acme.tokens["agent"], refund(f"c{number}", f"{number + 1}.00"))
    last = await shop.value("SELECT sequence FROM placet.chain_heads WHERE tenant_id = $1", shop.acme.tenant_id)
    assert last > 6
    monkeypatch.setattr(audit, "PAGE_ROWS", page)
    rows = await read(shop, last)
    assert [row.sequence for row in rows] == list(range(1, last + 1))
    assert [row.hash for row in rows[:-1]] == [row.previous_hash for row in rows[1:]]
    assert [f'"c{number}"' in (row.payload or "") for number, row in enumerate(rows[-6:])] == [True] * 6
    assert [row.sequence for row in await read(shop, last - 2)] == list(range(1, last - 1))
    # an erased payload takes nothing else along
    await shop.execute(f"UPDATE placet.audit_payloads SET salt = NULL, body = NULL WHERE sequence = {last - 1}")
    erased = await read(shop, last)
    assert [row.sequence for row in erased if row.payload is None] == [row.sequence for row in rows if row.payload is None] + [last - 1]

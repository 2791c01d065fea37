"""Looking back for a history query that is new: what is left for the lock, and that it ends (SPEC S6.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from app.engine import backfill_history as looking_back
from app.engine.backfill_history import OVERLAP, backfill_history
from app.policy.compile import compile_bundle
from tests.engine.shop import SHOP_FILES, Shop, SteppedClock, refund, working

AfterPage = Callable[[int], Awaitable[None]]


def after_each_page(monkeypatch: pytest.MonkeyPatch, do: AfterPage) -> list[int]:
    """Do something behind each page, while none is read; gives the pages' numbers as they come."""
    pages: list[int] = []
    real = looking_back._page

    async def page(*arguments: Any) -> Any:
        found = await real(*arguments)
        pages.append(len(pages) + 1)
        await do(len(pages))
        return found

    monkeypatch.setattr(looking_back, "_page", page)
    return pages


async def keyed(shop: Shop) -> list[UUID]:
    return [row["decision_id"] for row in await shop.rows("SELECT DISTINCT decision_id FROM placet.call_keys ORDER BY 1")]


async def test_a_long_look_back_leaves_only_its_last_moments_for_the_lock(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all that was decided during it would have to be keyed under the chain head's lock, and a busy tenant could never activate."""
    monkeypatch.setattr(looking_back, "PAGE_CALLS", 1)
    clock = SteppedClock()

    async def an_hour_passes(_number: int) -> None:
        clock.step(timedelta(hours=1))

    async with working(shop.url) as worker:
        for number in range(3):
            await worker.check(shop.acme.tokens["agent"], refund(f"c{number}", f"{number + 1}.00"))
        pages = after_each_page(monkeypatch, an_hour_passes)
        after = await backfill_history(worker.database, shop.acme.tenant_id, None, compile_bundle(SHOP_FILES), clock)
    assert pages == [1, 2, 3, 4]
    decided = await keyed(shop)
    assert len(decided) == 3
    assert after == decided[-1], "what lies behind the last call that was seen"


async def test_what_was_in_flight_at_the_end_is_looked_at_again(shop: Shop) -> None:
    async with working(shop.url) as worker:
        await worker.check(shop.acme.tokens["agent"], refund("c1"))
        clock = SteppedClock()
        after = await backfill_history(worker.database, shop.acme.tenant_id, None, compile_bundle(SHOP_FILES), clock)
    milliseconds = int((clock.now() - OVERLAP).timestamp() * 1000)
    assert milliseconds - 5_000 < after.int >> 80 <= milliseconds
    assert after < (await keyed(shop))[-1]


async def test_it_ends_although_calls_keep_coming(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking_back, "PAGE_CALLS", 2)
    async with working(shop.url) as worker:

        async def another(number: int) -> None:
            assert number < 10, "it would never end"
            await worker.check(shop.acme.tokens["agent"], refund(f"during-{number}", f"{number}.00"))

        for number in range(3):
            await worker.check(shop.acme.tokens["agent"], refund(f"c{number}", f"{number + 1}.00"))
        pages = after_each_page(monkeypatch, another)
        await backfill_history(worker.database, shop.acme.tenant_id, None, compile_bundle(SHOP_FILES), worker.clock)
    assert pages == [1, 2, 3], "full, full with the first of the new ones, and then one that isn't full"

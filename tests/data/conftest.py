"""The whole application over the shop's database, for the suites that are sent to it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from app.settings import Settings
from tests.api.serving import Client, serving
from tests.engine.shop import Shop, own_shop, resettable_shop, shop, shop_template

__all__ = ["own_shop", "resettable_shop", "shop", "shop_template"]


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request is a third of the time
    async with serving(settings, shop) as client:
        yield client

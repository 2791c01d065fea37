"""The shop's database and its copies, for this folder."""

from __future__ import annotations

from tests.engine.shop import own_shop, resettable_shop, shop, shop_template

__all__ = ["own_shop", "resettable_shop", "shop", "shop_template"]

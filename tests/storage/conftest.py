"""The shop's database and its copies, for this folder."""

from __future__ import annotations

from tests.engine.shop import shop, shop_template

__all__ = ["shop", "shop_template"]

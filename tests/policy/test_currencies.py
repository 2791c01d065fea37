from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.policy.currencies import exponent_of


@pytest.mark.parametrize(
    ("currency", "exponent"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("XAU", None), ("BTC", None), ("eur", None), ("", None)]
)
def test_a_currency_has_its_digits_or_none(currency: str, exponent: int | None) -> None:
    """MO-05, MO-10"""
    assert exponent_of(currency) == exponent


def test_all_currencies_of_the_shared_list_agree() -> None:
    file = Path(os.environ.get("PLACET_SHARED_DIR", Path(__file__).parents[3] / "shared")) / "data" / "iso4217.json"
    if not file.exists():
        pytest.skip("the shared currency list isn't beside the checkout")
    rows = json.loads(file.read_text())["iso4217"]
    differing = {row["code"]: (row["exponent"], exponent_of(row["code"])) for row in rows if exponent_of(row["code"]) != row["exponent"]}
    assert differing == {}

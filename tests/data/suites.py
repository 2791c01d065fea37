"""Reads the public suites of `shared/data`, of which nothing is copied into the project."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any


def rows(shared_dir: Path, name: str, *, exact: bool = False) -> list[dict[str, Any]]:
    """Read a suite's rows; `exact` leaves numbers with a point as decimals."""
    with gzip.open(shared_dir / "data" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line, parse_float=Decimal if exact else None) for line in lines]

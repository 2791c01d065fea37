"""Services that are gone after the test, whatever it did to them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.launcher.accounts import postgres_account
from tests.faults.service import Service


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder with a blank in its path, which PostgreSQL's account can reach."""
    parent = Path(tempfile.mkdtemp(prefix="placet tests "))
    parent.chmod(0o711 if postgres_account().lent else 0o700)
    yield parent / "da ta"
    shutil.rmtree(parent, ignore_errors=True)


@pytest.fixture
def start(data: Path) -> Iterator[Callable[..., Service]]:
    """Start a service on `data`."""
    if sys.platform != "linux":
        pytest.skip("these tests read /proc")
    started: list[Service] = []

    def start_one(**options: object) -> Service:
        started.append(Service(data, **options))  # type: ignore[arg-type]  # the options of Service
        return started[-1]

    yield start_one
    for service in started:
        service.kill_family()

"""A service as its users start it, for the demo to talk to."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.launcher.accounts import postgres_account
from tests.faults.service import Service


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Service]]:
    """Start a service, or give the one that runs with this environment; those of one module share a data folder, one after the other."""
    if sys.platform != "linux":
        pytest.skip("Service reads /proc")
    parent = Path(tempfile.mkdtemp(prefix="placet-demo-"))
    parent.chmod(0o711 if postgres_account().lent else 0o700)
    started: list[tuple[dict[str, str], Service]] = []

    def start_one(**environment: str) -> Service:
        if started and started[-1][0] == environment and started[-1][1].process.poll() is None:
            return started[-1][1]
        if started:
            started[-1][1].process.terminate()
            started[-1][1].end()
        started.append((environment, Service(parent / "data", PLACET_DEMO="false", **environment)))
        return started[-1][1]

    yield start_one
    for _, service in started:
        service.kill_family()
    shutil.rmtree(parent, ignore_errors=True)

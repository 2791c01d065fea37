"""The service that the cases of one test process share. A case that kills something starts its own."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from app.launcher.accounts import postgres_account
from tests.cases.stage import BOOTSTRAP_KEY, Stage, staged, superuser_url
from tests.faults.service import Service

WORKERS = 2


@pytest.fixture(scope="session")
def shared_service() -> Iterator[Service]:
    """A real service with two workers, started as its users start it."""
    yield from _served()


@pytest.fixture
def own_service() -> Iterator[Callable[[], Service]]:
    """A service of the test's own, to be killed and started again on the same data."""
    started: list[Service] = []
    folder = _folder()

    def start() -> Service:
        started.append(_start(folder))
        return started[-1]

    yield start
    for service in started:
        service.kill_family()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def stage(shared_service: Service) -> AsyncIterator[Stage]:
    async with staged(shared_service) as opened:
        yield opened


def _served() -> Iterator[Service]:
    folder = _folder()
    service = _start(folder)
    try:
        service.wait_for(r"listening on (http://\S+)")
        asyncio.run(_open_shop(superuser_url(service.data)))
        yield service
    finally:
        service.kill_family()
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    if sys.platform != "linux":
        pytest.skip("these tests read /proc")
    folder = Path(tempfile.mkdtemp(prefix="placet-cases-"))
    folder.chmod(0o711 if postgres_account().lent else 0o700)
    return folder


def _start(folder: Path) -> Service:
    return Service(folder / "data", workers=WORKERS, PLACET_BOOTSTRAP_KEY=BOOTSTRAP_KEY)


async def _open_shop(url: str) -> None:
    """Let the shop's table take any status: a state database may have one that the policy's author never heard of."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("ALTER TABLE shop.orders DROP CONSTRAINT IF EXISTS orders_status_check")
    finally:
        await connection.close()

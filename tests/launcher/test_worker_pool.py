"""Workers: replaced with a growing pause, and given up only when none ever came up (S14.1)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.launcher.listening import Listeners, open_listeners
from app.launcher.worker_pool import WorkerPool, WorkersFailed
from app.settings import PROJECT, Listening

pytestmark = pytest.mark.faults


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    with contextlib.closing(open_listeners(Listening("127.0.0.1", 0, 1))) as opened:
        yield opened


def tend_until(pool: WorkerPool, said: list[str], count: int) -> None:
    deadline = time.monotonic() + 30
    while len(said) < count and time.monotonic() < deadline:
        pool.tend()
        time.sleep(0.01)


def test_a_service_that_never_comes_up_is_given_up(listeners: Listeners, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    pool = WorkerPool(listeners, dict(os.environ) | {"PYTHONPATH": str(PROJECT), "PLACET_LOG_LEVEL": "loud"}, (), said.append)
    with pytest.raises(WorkersFailed, match="the service doesn't start: its worker ended with code 1; what it said stands above"):
        tend_until(pool, said, 99)
    pool.stop(lambda: True)
    assert [line.rpartition("; ")[2] for line in said] == ["the next one starts now", "the next one starts in 0.5 s"]
    assert capfd.readouterr().err == "placet: PLACET_LOG_LEVEL `loud` can't be used; expected one of debug, info, warning, error\n" * 3


def test_a_dead_workers_live_gauges_are_forgotten_and_its_counters_kept(listeners: Listeners, tmp_path: Path) -> None:
    """S11.1: `/metrics` stays right when a worker is killed."""
    kept = ("counter_0.db", "gauge_livesum_1.db", "histogram_0.db")
    for name in (*kept, "gauge_livesum_0.db", "gauge_liveall_0.db"):
        (tmp_path / name).write_bytes(b"")
    said: list[str] = []
    environment = dict(os.environ) | {"PYTHONPATH": str(PROJECT), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pool = WorkerPool(listeners, environment, (), said.append)
    pool.tend()
    os.kill(pool.processes()[0], signal.SIGKILL)
    tend_until(pool, said, 1)
    pool.stop(lambda: True)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)

"""Start, stop and kill: nothing is left running, nothing needs a hand (S14.1)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from app.settings import PROJECT
from tests.faults.service import OWN_COMMAND, Service, descriptions, eventually

pytestmark = pytest.mark.faults
Start = Callable[..., Service]
MIGRATE = (*OWN_COMMAND[:-1], "migrate")


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 2),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 1, marks=pytest.mark.slow),
    ],
)
def test_a_stop_leaves_nothing_running(start: Start, number: signal.Signals, workers: int) -> None:
    service = start(workers=workers)
    assert service.healthy()
    assert len(service.workers) == workers
    service.signal(number)
    assert service.end() == 0
    assert descriptions(service.family()) == {}
    assert service.output.endswith("placet: stopping\nplacet: stopped\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_during_the_first_start_leaves_nothing_running_and_the_next_start_works(start: Start, number: signal.Signals) -> None:
    service = start()
    service.wait_for("making a database")
    service.signal(number)
    assert service.end() == 0
    assert descriptions(service.family()) == {}
    assert start().healthy()


@pytest.mark.slow
def test_a_stop_is_hastened_by_a_second_one(start: Start) -> None:
    service = start()
    os.kill(service.workers[0] if service.healthy() else 0, signal.SIGSTOP)  # it will never drain
    service.signal(signal.SIGINT)
    service.wait_for("stopping")
    service.signal(signal.SIGINT)
    assert eventually(lambda: service.process.poll() is not None, within_s=3)
    assert service.end() == 0
    assert descriptions(service.family()) == {}


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_within_the_drain_time(start: Start) -> None:
    service = start()
    assert service.healthy()
    os.kill(service.workers[0], signal.SIGSTOP)
    service.signal(signal.SIGTERM)
    assert eventually(lambda: service.process.poll() is not None, within_s=8)
    assert service.end() == 0
    assert descriptions(service.family()) == {}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_worker_is_replaced_and_its_port_stays_open(start: Start, workers: int) -> None:
    service = start(workers=workers)
    assert service.healthy()
    before = service.workers
    os.kill(before[0], signal.SIGKILL)
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=2):
        pass  # refused would raise: whoever comes now waits in the queue for the next worker
    service.wait_for(rf"process {before[0]}\) was ended by SIGKILL; the next one starts now")
    assert eventually(lambda: len(service.workers) == workers and before[0] not in service.workers)
    assert eventually(lambda: all(service.healthy() for _ in range(8)))
    assert set(before[1:]) <= set(service.workers)


def test_a_killed_postgresql_is_restarted(start: Start) -> None:
    service = start()
    assert service.healthy()
    killed = service.postmaster
    os.kill(killed, signal.SIGKILL)
    service.wait_for("PostgreSQL is back")
    assert service.postmaster != killed
    assert eventually(service.healthy)
    service.signal(signal.SIGTERM)
    assert service.end() == 0
    assert descriptions(service.family()) == {}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_parent_takes_everything_along_and_the_next_start_works_at_once(start: Start, workers: int) -> None:
    service = start(workers=workers)
    assert service.healthy()
    port = int(service.url.rpartition(":")[2])
    old = service.family()
    assert len(old) > workers + 2  # the parent, the workers, PostgreSQL and its helpers
    service.signal(signal.SIGKILL)
    again = start(workers=workers, port=port)
    assert again.healthy()
    assert set(old).isdisjoint(again.family())


@pytest.mark.slow
def test_a_killed_parent_leaves_nothing_behind_without_a_next_start(start: Start) -> None:
    service = start(workers=2)
    assert service.healthy()
    service.signal(signal.SIGKILL)
    assert eventually(lambda: service.family() == ()), descriptions(service.family())


@pytest.mark.slow
def test_everything_killed_at_once_is_no_obstacle(start: Start) -> None:
    service = start(workers=2)
    assert service.healthy()
    port = int(service.url.rpartition(":")[2])
    service.kill_family()
    assert start(workers=2, port=port).healthy()


def test_twice_in_a_row_keeps_the_data(start: Start, data: Path) -> None:
    first = start()
    assert first.healthy()
    made = (data / "postgres" / "pgdata" / "PG_VERSION").stat().st_ino
    first.signal(signal.SIGTERM)
    assert first.end() == 0
    second = start()
    assert second.healthy()
    assert "making a database" not in second.output
    assert (data / "postgres" / "pgdata" / "PG_VERSION").stat().st_ino == made


def test_a_second_service_on_the_same_folder_is_refused(start: Start, data: Path) -> None:
    first = start()
    assert first.healthy()
    second = start()
    assert second.process.wait(10) == 1
    assert f"placet: placet already runs on `{data}` (process {first.process.pid}); stop it, or start a second one" in second.wait_for(
        ".*already.*"
    )
    assert first.healthy()


def test_a_taken_port_is_one_clear_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = start(port=port)
        assert service.end() == 1
    advice = f"stop it, or choose another port: PLACET_PORT={port % 65000 + 1} ./run"
    assert service.output == f"placet: port {port} of 127.0.0.1 is in use by another program; {advice}\n"
    assert descriptions(service.family()) == {}


def test_a_bad_variable_is_one_clear_line(start: Start) -> None:
    service = start(PLACET_POLICY_DIR="/nowhere")
    assert service.end() == 2
    assert (
        service.output == "placet: PLACET_POLICY_DIR `/nowhere` can't be used; expected a folder that is there and holds a policy bundle\n"
    )


@pytest.mark.slow
def test_workers_are_not_given_what_only_the_first_start_needs(start: Start) -> None:
    key = "k" * 30
    service = start(PLACET_BOOTSTRAP_KEY=key)
    assert service.healthy()
    environment = Path(f"/proc/{service.workers[0]}/environ").read_bytes()
    assert b"DATABASE_URL=" in environment
    assert key.encode() not in environment
    assert b"PLACET_MIGRATION_URL" not in environment


@pytest.mark.slow
def test_a_migration_uses_the_running_server_and_stops_only_one_that_it_started(start: Start, data: Path) -> None:
    service = start()
    assert service.healthy()
    for _ in range(2):
        migration = Service(data, command=MIGRATE, PLACET_DATA_DIR=str(data), PYTHONPATH=str(PROJECT))
        assert migration.end() == 0
        assert migration.output == "the schema is up to date\n"
        if service.process.poll() is None:
            assert service.healthy()
            service.signal(signal.SIGTERM)
            assert service.end() == 0
        assert descriptions(service.family()) == {}

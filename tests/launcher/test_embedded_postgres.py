"""The embedded PostgreSQL gets over what kills it (S14.1)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from app.launcher.accounts import postgres_account
from app.launcher.embedded_postgres import EmbeddedPostgres, FolderInUse, PostgresFailed
from app.settings import PROJECT

pytestmark = pytest.mark.faults


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="placet tests ")) / "post gres"
    made.parent.chmod(0o711 if postgres_account().lent else 0o700)
    yield made
    shutil.rmtree(made.parent, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(folder, durable=False, settings={"synchronous_commit": "on"})  # processes die here, machines don't
    yield made
    made.stop(hasten=lambda: True)


def ask(server: EmbeddedPostgres, question: str) -> object:
    async def answer() -> object:
        connection = await asyncpg.connect(server.dsn())
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()

    return asyncio.run(answer())


def postmaster(server: EmbeddedPostgres) -> int:
    return int((server.pgdata / "postmaster.pid").read_text().split()[0])


def gone(pid: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_it_runs_as_somebody_without_rights_in_a_folder_that_only_they_can_enter(server: EmbeddedPostgres, folder: Path) -> None:
    server.start()
    status = folder.stat()
    assert status.st_mode & 0o777 == 0o700
    assert status.st_uid == server.account.uid != 0
    assert ask(server, "select rolsuper from pg_roles where rolname = current_user") is True


def test_plpgsql_is_loaded_before_the_first_connection(server: EmbeddedPostgres) -> None:
    server.start()
    assert ask(server, "show shared_preload_libraries") == "plpgsql"


def test_what_was_written_is_there_after_a_stop_and_a_start(server: EmbeddedPostgres) -> None:
    server.start()
    ask(server, "create table kept as select 7 as n")
    server.stop()
    assert not server.is_running()
    server.start()
    assert ask(server, "select n from kept") == 7


def test_a_killed_postmaster_is_noticed_and_restarted(server: EmbeddedPostgres) -> None:
    server.start()
    ask(server, "create table kept as select 7 as n")
    killed = postmaster(server)
    os.kill(killed, signal.SIGKILL)
    assert gone_or_zombie(killed)
    assert not server.is_running()
    server.restart()
    assert postmaster(server) != killed
    assert ask(server, "select n from kept") == 7


def test_a_backend_that_outlives_its_postmaster_does_not_keep_the_next_one_out(server: EmbeddedPostgres) -> None:
    """A stopped backend (SIGSTOP) can't see that its postmaster died, and still holds the shared memory."""
    server.start()

    async def freeze_a_backend() -> tuple[asyncpg.Connection, int]:
        connection = await asyncpg.connect(server.dsn())
        pid = await connection.fetchval("select pg_backend_pid()")
        os.kill(pid, signal.SIGSTOP)
        connection.terminate()
        return connection, pid

    _, backend = asyncio.run(freeze_a_backend())
    os.kill(postmaster(server), signal.SIGKILL)
    server.restart()
    assert gone_or_zombie(backend)
    assert ask(server, "select 1") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_it_stops_when_its_launcher_is_killed_and_the_next_start_works_at_once(folder: Path, server: EmbeddedPostgres) -> None:
    program = "import sys, time, pathlib; from app.launcher.embedded_postgres import EmbeddedPostgres as E; "
    program += "E(pathlib.Path(sys.argv[1]), durable=False).start(); print('up', flush=True); time.sleep(600)"
    launcher = subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    with launcher.stdout as output:
        assert output.readline() == "up\n"
        left = postmaster(server)
        launcher.kill()
        launcher.wait()
    server.start()
    assert gone(left)
    assert postmaster(server) != left
    assert ask(server, "select 1") == 1


def test_a_pid_file_that_names_an_unrelated_living_process_is_no_obstacle(server: EmbeddedPostgres) -> None:
    server.start()
    server.stop()
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (server.pgdata / "postmaster.pid").write_text(
            f"{bystander.pid}\n{server.pgdata}\n1700000000\n5432\n{server.folder}\n\n  0  0\nready\n"
        )
        server.start()
        assert ask(server, "select 1") == 1
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_half_made_cluster_is_made_anew(server: EmbeddedPostgres, folder: Path) -> None:
    half = folder / "pgdata.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    server.start()
    assert ask(server, "select 1") == 1
    assert not half.exists()


def test_two_launchers_never_own_one_folder_and_the_one_that_shares_stops_nothing(server: EmbeddedPostgres, folder: Path) -> None:
    server.start()
    with pytest.raises(FolderInUse, match="is used by another process"):
        EmbeddedPostgres(folder, start_timeout_s=0.3).start()
    guest = EmbeddedPostgres(folder)
    guest.start(share=True)
    assert not guest.owner
    assert ask(guest, "select 1") == 1
    guest.stop()
    assert server.is_running()
    assert ask(server, "select 1") == 1


def test_a_path_too_long_for_a_socket_or_with_a_comma_gets_a_short_one(folder: Path) -> None:
    deep = EmbeddedPostgres(folder / ("a, b " + "x" * 90), durable=False)
    try:
        deep.start()
        assert deep.socket_folder != deep.folder
        assert ask(deep, "select 1") == 1
    finally:
        deep.stop(hasten=lambda: True)
    assert not deep.socket_folder.exists()


def test_a_cluster_of_another_major_version_is_left_alone(server: EmbeddedPostgres) -> None:
    server.start()
    server.stop()
    (server.pgdata / "PG_VERSION").write_text("12\n")
    with pytest.raises(PostgresFailed, match="was made by PostgreSQL 12 and 18 is installed"):
        server.start()
    assert not server.owner


def gone_or_zombie(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False

"""The preparation runs in a process of its own, and the parent that lives as long as the service never loads the engine (S14.1)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import asyncpg
import pytest

from app.launcher import process_table
from app.launcher.preparing import Preparation, PreparationFailed
from app.settings import PROJECT
from tests.conftest import TestDatabase

pytestmark = pytest.mark.faults


@pytest.fixture
def start_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in tuple(os.environ):
        if name.startswith("PLACET_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PLACET_DEMO", "false")
    return monkeypatch


async def test_it_prepares_and_gives_what_the_workers_connect_to(start_environment: pytest.MonkeyPatch, database: TestDatabase) -> None:
    start_environment.setenv("PLACET_BOOTSTRAP_KEY", "k" * 30)
    with contextlib.closing(Preparation(())) as preparation:
        prepared = preparation.run(database.superuser_url, 8080)
    assert prepared.database_url == database.url
    connection = await asyncpg.connect(database.superuser_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM placet.api_keys WHERE bootstrap AND revoked_at IS NULL") == 1
    finally:
        await connection.close()


def test_what_can_be_foreseen_is_its_message(start_environment: pytest.MonkeyPatch) -> None:
    start_environment.setenv("DATABASE_URL", "postgresql://placet_app:secret@127.0.0.1/placet")
    with contextlib.closing(Preparation(())) as preparation, pytest.raises(PreparationFailed, match=r"^DATABASE_URL alone would make"):
        preparation.run(None, 8080)


def test_what_cannot_be_foreseen_stands_in_the_terminal(start_environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(Preparation(())) as preparation, pytest.raises(PreparationFailed, match=r"what went wrong stands above$"):
        preparation.run("no address", 8080)
    assert "Traceback" in capfd.readouterr().err


def test_it_is_gone_when_it_is_closed_before_it_was_asked() -> None:
    preparation = Preparation(())
    pid = preparation._process.pid
    preparation.close()
    assert process_table.command_line(pid) == ""


def test_the_parent_does_not_load_the_engine() -> None:
    question = "import sys, app.cli, app.launcher.supervisor; print([name for name in ('app.engine', 'sqlalchemy') if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", question], cwd=PROJECT, check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n"

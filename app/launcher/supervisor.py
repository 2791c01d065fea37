"""The parent of a running service: starts the database and the workers in order, keeps them alive, and takes them along when it goes.

It serves nothing and decides nothing. Whatever it starts must stop by itself when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from app.launcher.accounts import postgres_account
from app.launcher.data_folder import data_folder, make_folder
from app.launcher.embedded_postgres import EmbeddedPostgres, PostgresFailed
from app.launcher.instance_lock import take_instance_lock
from app.launcher.listening import Listeners, open_listeners
from app.launcher.preparing import Preparation
from app.launcher.stop_signals import StopRequested, StopSignals, held_back
from app.launcher.worker_pool import WorkerPool
from app.settings import PROJECT, Settings
from app.telemetry import clear_folder

TICK_S = 0.25
POSTGRES_BACK_OFF_S = 5.0


def say(text: str) -> None:
    """Tell the person at the terminal; one that hung up doesn't stop the service."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def serve(settings: Settings) -> int:
    """Run the service until it is told to stop; return the exit code.

    Raises: PlacetError, of what could not be started; nothing is left running then.
    """
    signals = StopSignals()
    service = Service(settings, signals)
    try:
        with signals.interrupting():
            service.start()
        service.keep_alive()
    except StopRequested:
        pass
    finally:
        service.stop()
    return 0


class Service:
    """What one `placet serve` holds; `stop` undoes as much of `start` as was done."""

    def __init__(self, settings: Settings, signals: StopSignals) -> None:
        self._settings = settings
        self._signals = signals
        self._lock: int | None = None
        self._listeners: Listeners | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._preparation: Preparation | None = None
        self._pool: WorkerPool | None = None
        self._told_once: tuple[str, ...] = ()  # keys may stand in it that nobody can see again
        self._greeted = False
        self._postgres_due_at = 0.0

    def start(self) -> None:
        embedded = self._settings.database.url is None
        data = data_folder(self._settings.folders)
        make_folder(data, 0o711 if embedded and postgres_account(data / "postgres" / "pgdata").lent else 0o700)
        run = data / "run"
        make_folder(run, 0o700)
        name = "serve" if embedded else f"serve-{self._settings.listening.port}"  # with a server of their own, several may share a folder
        self._lock = take_instance_lock(run / f"{name}.lock", say)
        self._listeners = open_listeners(self._settings.listening)
        with held_back():
            self._preparation = Preparation((self._lock,))  # its imports take as long as PostgreSQL's start
        if embedded:
            self._postgres = EmbeddedPostgres(data / "postgres")
            if not self._postgres.pgdata.exists():
                say(f"placet: making a database in {data}")
            self._postgres.start()
        prepared = self._preparation.run(self._postgres.dsn() if self._postgres is not None else None, self._listeners.port)
        self._preparation.close()
        self._told_once = prepared.lines
        environment = self._worker_environment(data, run / f"metrics-{name}", prepared.database_url)
        self._pool = WorkerPool(self._listeners, environment, (self._lock,), say)

    def keep_alive(self) -> None:
        """Watch over database and workers until a stop is asked for.

        Raises: WorkersFailed, StopRequested.
        """
        assert self._pool is not None and self._listeners is not None
        while not self._signals.asked:
            self._tend_postgres()
            self._pool.tend()
            if not self._greeted and self._pool.all_ready():
                self._greeted = True
                self._tell()
                say(f"placet: listening on {self._listeners.url} (Ctrl-C stops it)")
            self._signals.wait(TICK_S if self._greeted else 0.02)

    def stop(self) -> None:
        hasten = self._signals.hasten
        self._tell()  # the next start doesn't make these keys again, however this one ended
        if self._pool is not None:
            say("placet: stopping")
            if self._listeners is not None:
                self._listeners.close()  # who connects now is refused at once instead of waiting in a queue
            self._pool.stop(hasten)
        if self._preparation is not None:
            self._preparation.close()
        if self._postgres is not None:
            self._postgres.stop(hasten)
        if self._listeners is not None:
            self._listeners.close()
        if self._lock is not None:
            os.close(self._lock)
        if self._pool is not None:
            say("placet: stopped")

    def _tell(self) -> None:
        lines, self._told_once = self._told_once, ()
        for line in lines:
            say(line)

    def _tend_postgres(self) -> None:
        postgres = self._postgres
        if postgres is None or postgres.is_running() or time.monotonic() < self._postgres_due_at:
            return
        say("placet: PostgreSQL ended; it is started again")
        try:
            with self._signals.interrupting():
                postgres.restart()
        except PostgresFailed as failure:
            self._postgres_due_at = time.monotonic() + POSTGRES_BACK_OFF_S
            say(f"placet: {failure}\nplacet: the next try is in {POSTGRES_BACK_OFF_S:g} s")
        else:
            say("placet: PostgreSQL is back")

    def _worker_environment(self, data: Path, metrics: Path, database_url: str) -> dict[str, str]:
        clear_folder(str(metrics))  # counts of an earlier start; no worker has imported anything yet
        path = os.pathsep.join(part for part in (str(PROJECT), os.environ.get("PYTHONPATH", "")) if part)
        return dict(os.environ) | {
            "DATABASE_URL": database_url,
            "PLACET_DATA_DIR": str(data),
            "PROMETHEUS_MULTIPROC_DIR": str(metrics),
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
        }

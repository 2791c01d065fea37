"""Keeps one worker alive in each slot: starts it, notices its death, starts the next, and stops them all.

A slot's socket and number outlive its process. Start them from the main thread: Linux counts a thread's end as the parent's death.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.domain.errors import PlacetError
from app.launcher.listening import Listeners

DRAIN_S = 5.0
STEADY_AFTER_S = 30.0  # a worker that lived this long starts the back-off anew
BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # the last one for ever
FAILED_STARTS_MAX = 3  # before the first worker was ever ready
NOT_FOR_WORKERS = ("PLACET_BOOTSTRAP_KEY", "PLACET_MIGRATION_URL")


class WorkersFailed(PlacetError):
    """The service doesn't come up at all."""


@dataclass(slots=True)
class Slot:
    number: int
    listener: socket.socket
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None
    ready: bool = False
    started_at: float = 0.0
    deaths: int = 0  # in a row
    due_at: float = 0.0


class WorkerPool:
    """The workers of one service; `tend` does whatever is due and never waits."""

    def __init__(
        self, listeners: Listeners, environment: Mapping[str, str], inherited: tuple[int, ...], say: Callable[[str], None]
    ) -> None:
        self._slots = tuple(Slot(number, listener) for number, listener in enumerate(listeners.sockets))
        self._environment = {name: value for name, value in environment.items() if name not in NOT_FOR_WORKERS}
        self._inherited = inherited
        self._say = say
        self._ever_ready = False
        self._failed_starts = 0

    def tend(self) -> None:
        """Note who is ready, bury the dead, start what is due.

        Raises: WorkersFailed when none was ever ready and several died while they started.
        """
        for slot in self._slots:
            if slot.process is not None:
                self._note_ready(slot)
                if slot.process.poll() is not None:
                    self._bury(slot)
            if slot.process is None and time.monotonic() >= slot.due_at:
                self._start(slot)

    def all_ready(self) -> bool:
        return all(slot.ready for slot in self._slots)

    def processes(self) -> tuple[int, ...]:
        return tuple(slot.process.pid for slot in self._slots if slot.process is not None)

    def stop(self, hasten: Callable[[], bool]) -> None:
        """Let the workers finish what they have begun, 5 s at most, then kill; return when all are gone."""
        living = [slot.process for slot in self._slots if slot.process is not None]
        for process in living:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DRAIN_S
        while any(process.poll() is None for process in living) and time.monotonic() < deadline and not hasten():
            time.sleep(0.02)
        for process in living:
            process.kill()  # nothing happens to one that is gone
            process.wait()
        for slot in self._slots:
            self._forget(slot)

    def _start(self, slot: Slot) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", "app.launcher.worker"]
        numbers = (os.getpid(), slot.listener.fileno(), theirs.fileno())
        slot.process = subprocess.Popen(
            [*command, *(str(number) for number in numbers)],
            stdin=subprocess.DEVNULL,
            env=self._environment | {"PLACET_WORKER_SLOT": str(slot.number)},
            pass_fds=(slot.listener.fileno(), theirs.fileno(), *self._inherited),
            start_new_session=True,  # a terminal's Ctrl-C is the parent's to pass on
        )
        theirs.close()
        slot.control, slot.ready, slot.started_at = ours, False, time.monotonic()

    def _note_ready(self, slot: Slot) -> None:
        if slot.ready or slot.control is None:
            return
        try:
            slot.ready = slot.control.recv(16) != b""
        except OSError:  # nothing yet
            return
        self._ever_ready = self._ever_ready or slot.ready

    def _bury(self, slot: Slot) -> None:
        assert slot.process is not None
        how = _how_it_ended(slot.process.returncode)
        if not self._ever_ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS_MAX:
                raise WorkersFailed(f"the service doesn't start: its worker {how}; what it said stands above")
        if time.monotonic() - slot.started_at > STEADY_AFTER_S:
            slot.deaths = 0
        pause_s = BACK_OFF_S[min(slot.deaths, len(BACK_OFF_S) - 1)]
        slot.deaths += 1
        slot.due_at = time.monotonic() + pause_s
        when = f"in {pause_s:g} s" if pause_s else "now"
        self._say(f"worker {slot.number} (process {slot.process.pid}) {how}; the next one starts {when}")
        self._forget(slot)
        metrics = self._environment.get("PROMETHEUS_MULTIPROC_DIR")
        if metrics:  # what was true of the dead process only; its counters stay
            for file in Path(metrics).iterdir():
                if file.name.startswith("gauge_live") and file.stem.endswith(f"_{slot.number}"):
                    file.unlink(missing_ok=True)

    def _forget(self, slot: Slot) -> None:
        if slot.control is not None:
            slot.control.close()
        slot.process, slot.control, slot.ready = None, None, False


def _how_it_ended(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

"""Turns Ctrl-C, SIGTERM and a closed terminal into one orderly stop, and the second of them into a hasty one.

Handlers raise only while the launcher asked for it (`interrupting`), so no clean-up is cut short by a signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let a stop wait until the body is done: one inside Popen would leave a process that nobody knows. The process inherits this; it
    must call `let_through`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through() -> None:
    """Undo, in a new process, what `held_back` did in the one that started it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class StopRequested(KeyboardInterrupt):
    """A stop was asked for during a long step; not an `Exception`, so no isolation point swallows it."""


class StopSignals:
    """How often a stop was asked for. `wait` returns early on any signal, SIGCHLD included."""

    def __init__(self) -> None:
        self.asked = 0
        self._interrupting = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        for number in STOPPING:
            signal.signal(number, self._on_stop)  # also where the shell had it ignored, as for `./run &`
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a stop break off the body with StopRequested; one asked for before does so at once."""
        self._interrupting = True
        try:
            if self.asked:
                raise StopRequested
            yield
        finally:
            self._interrupting = False

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, `seconds` at most."""
        if select.select([self._reader], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def hasten(self) -> bool:
        return self.asked > 1

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1
        if self._interrupting:
            self._interrupting = False
            raise StopRequested

"""Lets one service at a time run on a data folder, and the next one wait until the last process of a killed one is gone.

The lock is on an open file that the workers inherit: the kernel lets it go with the last of them, however they end.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from app.domain.errors import PlacetError
from app.launcher import process_table
from app.launcher.data_folder import FolderForbidden

LEFT_OVERS_LEAVE_WITHIN_S = 20.0


class AlreadyRunning(PlacetError):
    """A service runs on this data folder."""


def take_instance_lock(file: Path, say: Callable[[str], None]) -> int:
    """Return the descriptor that holds the lock; close it to let go.

    Raises: FolderForbidden; AlreadyRunning when the launcher that holds it lives, or its workers don't leave in time.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderForbidden(f"`{file}` can't be opened ({error.strerror}); set PLACET_DATA_DIR to a folder of this account") from None
    deadline = time.monotonic() + LEFT_OVERS_LEAVE_WITHIN_S
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _recorded(descriptor)
            command = process_table.command_line(holder) if holder > 0 else ""
            alive = "app.cli" in command or "placet" in command
            if alive or time.monotonic() > deadline:
                os.close(descriptor)
                raise AlreadyRunning(
                    f"placet already runs on `{file.parent.parent}` (process {holder}); stop it, or start a second one with its own "
                    "PLACET_DATA_DIR and PLACET_PORT"
                ) from None
            if not told:
                say("waiting for the last processes of a killed start to leave")
                told = True
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor


def _recorded(descriptor: int) -> int:
    try:
        return int(os.pread(descriptor, 32, 0))
    except ValueError:
        return -1  # no process has that number

"""A service started as its users start it, for tests that stop and kill it: what it prints, which processes it has, what is left of it."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from app.launcher import process_table
from app.settings import PROJECT

START_S = 60.0
LEAVE_S = 12.0
NOT_OURS = ("DATABASE_URL", "PYTHONDONTWRITEBYTECODE")  # who has no byte code waits four times as long for every process
OWN_COMMAND = (sys.executable, "-P", "-m", "app.cli", "serve")


class Service:
    """One `placet serve` on `data`; `port` 0 takes any free one and `url` tells it."""

    def __init__(
        self,
        data: Path,
        *,
        workers: int = 1,
        port: int = 0,
        command: tuple[str, ...] = OWN_COMMAND,
        account: tuple[int, int] | None = None,
        **environment: str,
    ) -> None:
        self.data = data
        self.lines: list[str] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PLACET_") and name not in NOT_OURS}
        # `./run` finds both by itself
        own = {"PYTHONPATH": str(PROJECT), "PLACET_DATA_DIR": str(data)} if command == OWN_COMMAND else {}
        self.process = subprocess.Popen(
            command,
            env=kept | own | {"PLACET_PORT": str(port), "PLACET_WORKERS": str(workers)} | environment,
            cwd="/",
            user=account[0] if account else None,
            group=account[1] if account else None,
            extra_groups=[] if account else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        return self.wait_for(r"listening on (http://\S+)")

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(pid for pid in self.family() if "app.launcher.worker" in process_table.command_line(pid))

    @property
    def postmaster(self) -> int:
        return int((self.data / "postgres" / "pgdata" / "postmaster.pid").read_text().split()[0])

    def wait_for(self, pattern: str, within_s: float = START_S) -> str:
        """Return the first group (or the whole match) of `pattern` in what was printed, once it is there."""
        deadline = time.monotonic() + within_s
        while True:
            found = re.search(pattern, self.output)
            if found is not None:
                return found[found.re.groups and 1]
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"`{pattern}` did not come within {within_s} s:\n{self.output}") from None
            assert line is not None, f"it ended before it printed `{pattern}`:\n{self.output}"

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def family(self) -> tuple[int, ...]:
        """Every living process that has this data folder in its command, environment or working folder, the parent's included."""
        wanted = os.fsencode(self.data)
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes() + os.fsencode(os.readlink(entry / "cwd"))
            except OSError:
                continue
            if wanted in told and int(entry.name) != os.getpid() and process_table.command_line(int(entry.name)):
                found.append(int(entry.name))
        return tuple(found)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(LEAVE_S)
        self._reader.join(LEAVE_S)
        return code

    def kill_family(self) -> None:
        """Kill everything of it at once, an install that goes on included."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in (*self.family(), *self.family()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LEAVE_S)
        self._reader.join(LEAVE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)
                self._queue.put(line)
        self._queue.put(None)


def eventually(condition: Callable[[], bool], within_s: float = LEAVE_S) -> bool:
    """Say whether `condition` came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def descriptions(pids: tuple[int, ...]) -> Mapping[int, str]:
    """Return what the processes are, for a failing test's message."""
    return {pid: process_table.command_line(pid) for pid in pids}

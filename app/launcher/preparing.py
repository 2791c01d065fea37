"""Prepares the database in a process of its own: the parent lives as long as the service and must not keep the whole engine in memory.

Run as `python -m app.launcher.preparing PARENT_PID` it imports while PostgreSQL still starts, then waits for one line on its input. What
may be secret (addresses, keys that are shown once) goes through pipes, never through arguments; the environment is the parent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

from app.domain.errors import PlacetError
from app.launcher.die_with_parent import follow_parent
from app.launcher.stop_signals import let_through
from app.settings import PROJECT, load_settings


class PreparationFailed(PlacetError):
    """The database could not be prepared; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the workers connect to, and what the person who started it should read."""

    database_url: str
    lines: tuple[str, ...]


class Preparation:
    """The process, which begins to import at once; `run` tells it the server, `close` ends it wherever it is."""

    def __init__(self, inherited: tuple[int, ...]) -> None:
        path = os.pathsep.join(part for part in (str(PROJECT), os.environ.get("PYTHONPATH", "")) if part)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.launcher.preparing", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ) | {"PYTHONPATH": path},
            text=True,
            pass_fds=inherited,
            start_new_session=True,  # a terminal's Ctrl-C is the parent's to pass on
        )

    def run(self, superuser_dsn: str | None, port: int) -> Prepared:
        """Prepare the database; `superuser_dsn` is the embedded server's, None with DATABASE_URL.

        Raises: PreparationFailed.
        """
        told, _ = self._process.communicate(json.dumps({"superuser_dsn": superuser_dsn, "port": port}) + "\n")
        if self._process.returncode:
            raise PreparationFailed("the database could not be prepared; what went wrong stands above")
        answer = json.loads(told)
        if "error" in answer:
            raise PreparationFailed(answer["error"])
        return Prepared(answer["database_url"], tuple(answer["lines"]))

    def close(self) -> None:
        self._process.kill()  # what it hasn't committed is rolled back; nothing happens to one that is gone
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def main(arguments: list[str]) -> int:
    """Read what to prepare, do it, write one JSON document."""
    let_through()
    if not follow_parent(int(arguments[0]), signal.SIGKILL):
        return 1
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints belongs to the terminal
    try:
        settings = load_settings()
        from app.launcher import first_start  # it imports the whole engine

        line = sys.stdin.readline()
        if not line:  # the parent gave up
            return 1
        asked = json.loads(line)
        settings = replace(settings, listening=replace(settings.listening, port=asked["port"]))
        prepared = asyncio.run(first_start.prepare(settings, asked["superuser_dsn"]))
        document: dict[str, object] = {"database_url": prepared.database_url, "lines": prepared.lines}
    except PlacetError as error:
        document = {"error": str(error)}
    with answer:
        json.dump(document, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

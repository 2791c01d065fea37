"""The service under test: started on a folder and a port of its own, given tenants, keys and orders, and stopped with all that it started.

Everything but orders and pgbench's own tenants goes through its API.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import asyncpg

from app.launcher.embedded_postgres import EmbeddedPostgres
from benchmarks.measuring import processes

PROJECT = Path(__file__).resolve().parent.parent.parent
START_WITHIN_S = 120.0
STOP_WITHIN_S = 60.0
WORKER_MODULE = "app.launcher.worker"
DATABASE = "placet"
CUSTOMER = "cust-1"
PAID_MINOR = 10_000
LIMITS = {"requests_per_minute": 1_000_000, "concurrent": 1_000}
"""Far above what is sent: the run measures decisions."""


class BenchmarkFailed(Exception):
    """Something is wrong, so that the figures would mean nothing."""


@dataclass(slots=True)
class Tenant:
    """A tenant of the run, its agents' keys, and how many of its calls were sent so far."""

    name: str
    tokens: list[str] = field(default_factory=list)
    orders: int = 0
    taken: int = 0


class Service:
    """`placet serve` in a process of its own. The folder outlives a stop, so that another number of workers can serve the same data."""

    def __init__(self, folder: Path, workers: int, bootstrap_key: str) -> None:
        self._folder = folder
        self._workers = workers
        self._key = bootstrap_key
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.host, self.port = "127.0.0.1", 0

    @property
    def log_path(self) -> Path:
        return self._folder / "serve.log"

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            BenchmarkFailed: with the end of its log.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "DATABASE_URL", "PG"))}
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.cli", "serve"],
            cwd=PROJECT,
            env=kept
            | {
                "PLACET_DATA_DIR": str(self._folder),
                "PLACET_HOST": self.host,
                "PLACET_PORT": "0",
                "PLACET_WORKERS": str(self._workers),
                "PLACET_BOOTSTRAP_KEY": self._key,
                "PYTHONPATH": str(PROJECT),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is this program's to handle
        )
        deadline = time.monotonic() + START_WITHIN_S
        while not self.port:
            found = [line for line in self._read_log().splitlines() if "listening on http://" in line]
            if found:
                self.port = int(found[0].split("http://")[1].split()[0].rpartition(":")[2])
            elif self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"the service did not start:\n{self._read_log()[-3000:]}")
            time.sleep(0.05)
        while self.call("GET", "/readyz")[0] != 200:
            if time.monotonic() > deadline:
                raise BenchmarkFailed("the service did not get ready")
            time.sleep(0.1)

    def stop(self) -> None:
        """Tell it to stop and wait; it takes its workers and its PostgreSQL along."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:  # its children follow a killed parent by themselves
                process.kill()
                process.wait(STOP_WITHIN_S)
        if self._log is not None:
            self._log.close()
        self._process = None

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        """Ask as the platform's operator; give status and document (an empty one where the answer isn't JSON)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        except OSError as error:
            raise BenchmarkFailed(f"the service does not answer: {error}") from None
        finally:
            connection.close()
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return answer.status, found
        return answer.status, {}

    def make_tenant(self, name: str, agents: int) -> Tenant:
        """Make a tenant with the served bundle and `agents` keys.

        Raises:
            BenchmarkFailed: the service refused.
        """
        self._made("/tenants", {"tenant": name})
        tenant = Tenant(name)
        for number in range(agents):
            asked = {"tenant": name, "subject": f"agent-{number}", "roles": ["agent"], "segments": ["standard"], "limits": LIMITS}
            made = self._made("/keys", asked)
            tenant.tokens.append(str(made["secret"]))
        return tenant

    def _made(self, path: str, body: object) -> dict[str, object]:
        status, answer = self.call("POST", path, body)
        if status != 201:
            raise BenchmarkFailed(f"POST {path} answered {status}: {json.dumps(answer)[:500]}")
        return answer

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def postgres_id(self) -> int:
        """The process id of the PostgreSQL that it started."""
        return int((self._folder / "postgres" / "pgdata" / "postmaster.pid").read_text().split()[0])

    def workers(self) -> tuple[int, ...]:
        return tuple(pid for pid in processes.children(self.process_id) if WORKER_MODULE in processes.command_line(pid))

    def _read_log(self) -> str:
        return self.log_path.read_text(errors="replace")


def new_bootstrap_key() -> str:
    return f"speed-{secrets.token_hex(24)}"


def postgres_of(folder: Path) -> EmbeddedPostgres:
    """Give where the socket and the programs of the service's PostgreSQL are; it is never started or stopped by this."""
    return EmbeddedPostgres(folder / "postgres", database=DATABASE)


async def connect(folder: Path, user: str = "postgres") -> asyncpg.Connection:
    return await asyncpg.connect(host=str(postgres_of(folder).socket_folder), user=user, database=DATABASE, timeout=20)


async def load_orders(connection: asyncpg.Connection, tenants: Sequence[str], orders: int) -> None:
    """Give each shop one customer with `orders` paid orders."""
    await connection.execute(
        "INSERT INTO shop.customers (tenant, customer_id, name) SELECT t, $2, 'Ada Berg' FROM unnest($1::text[]) t", tenants, CUSTOMER
    )
    await connection.execute(
        "INSERT INTO shop.orders (tenant, order_id, customer_id, status, currency, paid_minor) "
        "SELECT t, 'S-' || lpad(n::text, 8, '0'), $2, 'delivered', 'EUR', $4 FROM unnest($1::text[]) t, generate_series(0, $3 - 1) n",
        tenants,
        CUSTOMER,
        orders,
        PAID_MINOR,
        timeout=240,
    )

"""pgbench beside the service: same server, database and tables, one call at a time. one_call.sql says what is the same and what isn't."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from benchmarks.measuring.service import DATABASE, BenchmarkFailed, connect, load_orders, postgres_of

SCRIPT = Path(__file__).with_name("one_call.sql")
ROLE = "speed_pgbench"
THREADS = 2
OVERTIME_S = 30.0
HASH = "sha256:" + "5b" * 32
TENANT_IDS = "5bee0000-0000-4000-8000-"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What pgbench's calls are made of: as many tenants and orders as the service's, and the texts of a real audit row."""

    tenants: int
    orders: int
    body: str
    payload: str


async def make_baseline(folder: Path, tenants: int, orders: int) -> Baseline:
    """Make pgbench's role, tenants and orders, and read the texts of a decision that the service recorded.

    Raises:
        BenchmarkFailed: the service has recorded no accepted refund yet.
    """
    connection = await connect(folder)
    try:
        row = await connection.fetchrow(
            "SELECT r.body, p.body AS payload FROM placet.audit_rows r "
            "JOIN placet.audit_payloads p USING (tenant_id, recorded_at, sequence) "
            "WHERE r.decision = 'accepted' AND r.tool = 'refund' ORDER BY r.recorded_at DESC LIMIT 1"
        )
        if row is None:
            raise BenchmarkFailed("there is no recorded refund to take the sizes from")
        await _make_role_and_tenants(connection, tenants)
        await load_orders(connection, [f"pgbench-{number}" for number in range(tenants)], orders)
    finally:
        await connection.close()
    return Baseline(tenants, orders, row["body"], row["payload"])


async def _make_role_and_tenants(connection: asyncpg.Connection, tenants: int) -> None:
    # the rights of the service and of its two other roles at once, so that pgbench pays for no change of role; row level security holds
    await connection.execute(f"CREATE ROLE {ROLE} LOGIN")
    await connection.execute(f"GRANT placet_app, placet_facts, placet_sandbox TO {ROLE} WITH INHERIT TRUE")
    ids = [f"{TENANT_IDS}{number:012d}" for number in range(tenants)]
    names = [f"pgbench-{number}" for number in range(tenants)]
    await connection.execute(
        "INSERT INTO placet.tenants (tenant_id, name, follows_directory, created_at) "
        "SELECT t.id, t.name, false, now() FROM unnest($1::uuid[], $2::text[]) t(id, name)",
        ids,
        names,
    )
    await connection.execute(
        "INSERT INTO placet.chain_heads (tenant_id, sequence, hash, recorded_at, authority_version) "
        "SELECT id, 0, $2, now(), 1 FROM unnest($1::uuid[]) id",
        ids,
        HASH,
    )


@dataclass(frozen=True, slots=True)
class Started:
    process: subprocess.Popen[str]
    log_prefix: Path


def start(folder: Path, baseline: Baseline, clients: int, seconds: int, run: str) -> Started:
    """Start pgbench for `seconds` whole seconds; `run` makes its sessions new ones."""
    postgres = postgres_of(folder)
    prefix = folder / f"pgbench-{run}"
    variables = {
        "tenants": baseline.tenants,
        "orders": baseline.orders,
        "n": 0,
        "run": run,
        "hash": HASH,
        "account": "resource:order:S-",
        "budget": f"budget:refunds_per_agent_day|agent|{time.strftime('%Y-%m-%d')}",
        "body": baseline.body,
        "payload": baseline.payload,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    process = subprocess.Popen(
        [
            str(postgres.programs / "pgbench"), "-n", "-M", "prepared", "-T", str(seconds),
            "-c", str(clients), "-j", str(min(THREADS, clients)),
            "-f", str(SCRIPT), "-l", f"--log-prefix={prefix}",
            *(part for name, value in variables.items() for part in ("-D", f"{name}={value}")),
            "-h", str(postgres.socket_folder), "-U", ROLE, DATABASE,
        ],
        env=kept | {"LC_ALL": "C", "PGOPTIONS": "-c jit=off -c timezone=UTC -c lock_timeout=10s -c statement_timeout=10s"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    return Started(process, prefix)


def finish(started: Started, patience_s: float) -> tuple[Sequence[int], Sequence[float]]:
    """Wait for pgbench; give the times at which its calls ended (ns since 1970) and their latencies (µs).

    Raises:
        BenchmarkFailed: it failed, or a client of it gave up.
    """
    try:
        output, complaint = started.process.communicate(timeout=patience_s + OVERTIME_S)
    except subprocess.TimeoutExpired:
        started.process.kill()
        started.process.communicate()
        raise BenchmarkFailed("pgbench did not end in time") from None
    if started.process.returncode or "aborted" in complaint:
        raise BenchmarkFailed(f"pgbench failed ({started.process.returncode}): {complaint[-2000:]}\n{output[-500:]}")
    ended, latencies = [], []
    for log in started.log_prefix.parent.glob(f"{started.log_prefix.name}.*"):
        for line in log.read_text().splitlines():
            fields = line.split()  # client, number, µs, script, s since 1970, µs of it
            latencies.append(float(fields[2]))
            ended.append(int(fields[4]) * 1_000_000_000 + int(fields[5]) * 1000)
        log.unlink()
    return ended, latencies

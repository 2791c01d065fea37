"""The run: set up, then rounds of a few seconds a cell, endpoint and pgbench in turn, so that what else the machine does meets both alike.

A missed bar is printed and is no failure; a run whose figures would mean nothing (calls not accepted, pgbench failing) exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import cerbos, load, pgbench, processes, report
from benchmarks.measuring.report import Cell, Cpu, Figures
from benchmarks.measuring.service import CUSTOMER, BenchmarkFailed, Service, Tenant, connect, load_orders, new_bootstrap_key

TENANTS = 100
HOT_AGENTS = 16  # a budget is EUR 1000.00 an agent and day, and most refunds are of EUR 0.01
SETTLE_S = 1.0  # connections open, statements prepared, caches warm: not measured
LOAD = Path(load.__file__)
Window = tuple[int, int]
NOTHING: tuple[Window, Cpu] = ((0, 0), Cpu(0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    round_s: int
    orders: int  # of the hundred tenants together, and of the hot one
    workers: tuple[int, ...]
    connections: tuple[int, ...] = (1, 16, 64)


QUICK = Plan(rounds=2, round_s=1, orders=40_000, workers=(1,))
FULL = Plan(rounds=4, round_s=5, orders=250_000, workers=(1, 2))


@dataclass(slots=True)
class Bench:
    """What a run holds."""

    folder: Path
    plan: Plan
    say: Callable[[str], None]
    key: str = field(default_factory=new_bootstrap_key)
    many: list[Tenant] = field(default_factory=list)
    hot: list[Tenant] = field(default_factory=list)
    baseline: pgbench.Baseline | None = None
    beside: cerbos.Cerbos | None = None  # a stateless decision point, where its program is there
    runs: int = 0


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if not Path("/proc/self/stat").exists():
        print("speed: CPU and memory are read from /proc, so this needs Linux", file=sys.stderr)
        return 2
    chosen = QUICK if options.quick else FULL
    plan = Plan(options.rounds or chosen.rounds, options.seconds or chosen.round_s, chosen.orders, options.workers or chosen.workers)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way, what was started is stopped
    folder = Path(tempfile.mkdtemp(prefix="placet-speed-", dir=options.dir))
    folder.chmod(0o755)  # as root, PostgreSQL runs under another account
    try:
        results = _measure_all(Bench(folder, plan, lambda text: print(text, flush=True)))
    except BenchmarkFailed as failure:
        print(f"speed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="speed", description="Measures POST /tool-calls/check beside pgbench, interleaved, in one run.")
    parser.add_argument("--quick", action="store_true", help="less than a minute instead of some six; one worker; noisier")
    parser.add_argument("--workers", type=_numbers, help="numbers of workers to measure one after the other, such as 1,2")
    parser.add_argument("--rounds", type=int, choices=range(1, 21), metavar="N", help="rounds for each number of workers")
    parser.add_argument("--seconds", type=int, choices=range(1, 31), metavar="S", help="seconds a cell in each round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="where to make the temporary folder; the disk there is measured too")
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split(","))
    if not all(1 <= number <= 16 for number in found):
        raise ValueError(text)
    return found


def _measure_all(bench: Bench) -> dict[str, object]:
    plan = bench.plan
    bench.say(f"speed: {plan.rounds} rounds of {plan.round_s} s a cell; {os.cpu_count()} cores, Python {platform.python_version()}")
    binary = cerbos.find_binary()
    if binary is None:
        bench.say("speed: without Cerbos beside it; `npm install @cerbos/cerbos-linux-x64` in the checkout, or CERBOS_BINARY, brings it")
        return _measure_workers(bench)
    bench.beside = cerbos.Cerbos(binary, bench.folder / "cerbos")
    try:
        bench.beside.start()
        return _measure_workers(bench)
    finally:
        bench.beside.stop()


def _measure_workers(bench: Bench) -> dict[str, object]:
    plan = bench.plan
    results: dict[str, object] = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    by_workers = []
    for workers in plan.workers:
        with _serving(bench, workers) as service:
            if not bench.many:
                _set_up(bench, service)
            _warm_up(bench, service)
            bench.say(
                f"\n{workers} worker{'s' if workers > 1 else ''}: {TENANTS} tenants; all of the service is on this machine with its load"
            )
            rounds = _rounds(bench, service)
            memory = [processes.memory(pid) for pid in service.workers()]
            found = report.bars(rounds, [each.most_mb for each in memory])
            bench.say(report.table(rounds))
            bench.say("memory of each worker, MB: " + ", ".join(f"{each.now_mb:.0f} (at most {each.most_mb:.0f})" for each in memory))
            bench.say(report.bar_lines(found))
            mb = [{"now": each.now_mb, "most": each.most_mb} for each in memory]
            by_workers.append({"workers": workers, "memory_mb": mb} | report.document(rounds, found))
    return results | {"runs": by_workers}


@contextlib.contextmanager
def _serving(bench: Bench, workers: int) -> Iterator[Service]:
    service = Service(bench.folder, workers, bench.key)
    try:
        service.start()
        yield service
    finally:
        service.stop()


def _set_up(bench: Bench, service: Service) -> None:
    bench.say("speed: making tenants, keys and orders")
    bench.many = [service.make_tenant(f"speed-{number}", 1) for number in range(TENANTS)]
    bench.hot = [service.make_tenant("speed-hot", HOT_AGENTS)]
    each = bench.plan.orders // TENANTS

    async def orders() -> None:
        connection = await connect(bench.folder)
        try:
            await load_orders(connection, [tenant.name for tenant in bench.many], each)
            await load_orders(connection, [bench.hot[0].name], bench.plan.orders)
        finally:
            await connection.close()

    asyncio.run(orders())
    for tenant in bench.many:
        tenant.orders = each
    bench.hot[0].orders = bench.plan.orders


def _warm_up(bench: Bench, service: Service) -> None:
    """Let every worker see every tenant, and pgbench's first run take the texts of a real decision."""
    _endpoint(bench, service, bench.hot, 16, 1)
    _endpoint(bench, service, bench.many, 64, 2)
    if bench.baseline is None:
        bench.baseline = asyncio.run(pgbench.make_baseline(bench.folder, TENANTS, bench.plan.orders // TENANTS))
        asyncio.run(_tidy(bench.folder))
        _pgbench(bench, service, 16, 1)


async def _tidy(folder: Path) -> None:
    """Do now what autovacuum and a checkpoint would do in the middle of a round."""
    connection = await connect(folder)
    try:
        await connection.execute("VACUUM (ANALYZE)", timeout=240)
        await connection.execute("CHECKPOINT", timeout=240)
    finally:
        await connection.close()


def _rounds(bench: Bench, service: Service) -> dict[Cell, list[Figures]]:
    cells = [Cell(who, count) for count in bench.plan.connections for who in ("endpoint", "pgbench")]
    cells.append(Cell("hot tenant", max(bench.plan.connections)))
    if bench.beside is not None:
        cells += [Cell(report.CERBOS, count) for count in bench.plan.connections]
    rounds: dict[Cell, list[Figures]] = {cell: [] for cell in cells}
    for number in range(bench.plan.rounds):
        for cell in cells if number % 2 == 0 else reversed(cells):
            if cell.who == "pgbench":
                found = _pgbench(bench, service, cell.connections, bench.plan.round_s)
            elif cell.who == report.CERBOS:
                found = _cerbos(bench, service, cell.connections, bench.plan.round_s)
            else:
                found = _endpoint(bench, service, bench.many if cell.who == "endpoint" else bench.hot, cell.connections, bench.plan.round_s)
            rounds[cell].append(found)
    return rounds


def _endpoint(bench: Bench, service: Service, tenants: list[Tenant], connections: int, seconds: int) -> Figures:
    plan = {
        "host": service.host,
        "port": service.port,
        "targets": [{"tokens": each.tokens, "customer": CUSTOMER, "orders": each.orders, "taken": each.taken} for each in tenants],
    }
    measured, window, cpu = _load(bench, plan, connections, seconds, lambda load_id: _cpu(service, load_id))
    for tenant, taken in zip(tenants, measured["taken"], strict=True):
        tenant.taken = taken
    return _figures(measured["ended"], measured["latencies_us"], window, measured["refused"], cpu)


def _cerbos(bench: Bench, service: Service, connections: int, seconds: int) -> Figures:
    beside = bench.beside
    assert beside is not None
    plan = {
        "host": beside.host,
        "port": beside.port,
        "path": cerbos.PATH,
        "body": cerbos.BODY,
        "accepted": cerbos.ACCEPTED,
        "targets": [{"tokens": ["none"], "customer": CUSTOMER, "orders": bench.plan.orders, "taken": 0}],
    }

    def cpu(load_id: int) -> Cpu:
        used = _cpu(service, load_id)
        return Cpu(processes.cpu_s(beside.process_id), 0, used.load_s, used.machine_s)

    measured, window, used = _load(bench, plan, connections, seconds, cpu)
    return _figures(measured["ended"], measured["latencies_us"], window, measured["refused"], used)


def _load(
    bench: Bench, plan: dict[str, Any], connections: int, seconds: int, cpu: Callable[[int], Cpu]
) -> tuple[dict[str, Any], Window, Cpu]:
    """Run the load generator on a plan; `cpu` reads what is used, the generator's process id given.

    Raises:
        BenchmarkFailed: it failed, or too many of its calls weren't accepted.
    """
    bench.runs += 1
    plan |= {"connections": connections, "seconds": seconds + SETTLE_S, "seed": bench.runs}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(LOAD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as generator:
        try:
            assert generator.stdin is not None
            assert generator.stdout is not None
            generator.stdin.write(json.dumps(plan))
            generator.stdin.close()
            started = generator.stdout.readline()
            window, used = _watch(lambda: cpu(generator.pid), seconds) if started else NOTHING
            output, complaint = generator.stdout.read(), generator.stderr.read() if generator.stderr is not None else ""
        except BaseException:
            generator.kill()
            raise
    if generator.returncode or not output:
        raise BenchmarkFailed(f"the load generator failed: {complaint[-2000:]}")
    measured: dict[str, Any] = json.loads(output)
    if measured["refused"] > report.REFUSED_SHARE_MAX * len(measured["ended"]):
        raise BenchmarkFailed(
            f"{measured['refused']} of {len(measured['ended'])} calls were not accepted, such as {measured['samples'][0]}"
        )
    return measured, window, used


def _pgbench(bench: Bench, service: Service, clients: int, seconds: int) -> Figures:
    assert bench.baseline is not None
    bench.runs += 1
    started = pgbench.start(bench.folder, bench.baseline, clients, seconds + round(SETTLE_S) + 1, str(bench.runs))
    try:
        window, cpu = _watch(lambda: _cpu(service, started.process.pid), seconds)
        ended, latencies = pgbench.finish(started, seconds)
    except BaseException:
        started.process.kill()
        started.process.communicate()
        raise
    return _figures(ended, latencies, window, 0, cpu)


def _watch(cpu: Callable[[], Cpu], seconds: float) -> tuple[Window, Cpu]:
    """Let a load settle, then give the window in which it counts (ns since 1970) and the CPU that was used in it."""
    time.sleep(SETTLE_S)
    start, before = time.time_ns(), cpu()
    time.sleep(max(0.1, seconds - 0.1))
    end, after = time.time_ns(), cpu()
    return (start, end), after.since(before)


def _cpu(service: Service, load_id: int) -> Cpu:
    postgres = service.postgres_id
    return Cpu(
        processes.cpu_s(service.process_id, without=(postgres,)),
        processes.cpu_s(postgres),
        processes.cpu_s(load_id),
        processes.machine_cpu_s(),
    )


def _figures(ended: Sequence[int], latencies: Sequence[float], window: Window, refused: int, cpu: Cpu) -> Figures:
    found = report.figures(ended, latencies, window, refused, cpu)
    if found is None:
        raise BenchmarkFailed("no call ended while it was measured")
    return found

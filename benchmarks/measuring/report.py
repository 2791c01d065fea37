"""Figures from what was measured: percentiles and medians, the bars, the table, the JSON. Pure: no clock, no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median

WORKER_MB_MAX = 200.0
REFUSED_SHARE_MAX = 0.005
OTHERS_CORES_MAX = 0.2
CERBOS = "cerbos"
"""The name of the cells of a stateless decision point beside ours."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of measurement: `who` with so many connections, repeated in every round."""

    who: str
    connections: int

    @property
    def name(self) -> str:
        return f"{self.who}, {self.connections}"


@dataclass(frozen=True, slots=True)
class Figures:
    """One cell in one round. CPU in µs a decision; the service's is 0 for pgbench. `others_cores`: what other programs used meanwhile."""

    decisions: int
    refused: int
    decisions_s: float
    p50_ms: float
    p99_ms: float
    service_us: float
    postgres_us: float
    load_us: float
    others_cores: float

    @property
    def cpu_us(self) -> float:
        """CPU of a decision without its load's."""
        return self.service_us + self.postgres_us


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds used in a window: of the service, PostgreSQL, the load generator (or pgbench), and of the whole machine."""

    service_s: float
    postgres_s: float
    load_s: float
    machine_s: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(
            self.service_s - before.service_s,
            self.postgres_s - before.postgres_s,
            self.load_s - before.load_s,
            self.machine_s - before.machine_s,
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked, and what was found: the median over the rounds, and every round's value. Nothing asked: it is a comparison."""

    name: str
    found: float
    asked: float | None
    at_least: bool
    rounds: tuple[float, ...]

    @property
    def met(self) -> bool:
        if self.asked is None:
            return True
        return self.found >= self.asked if self.at_least else self.found <= self.asked


def figures(ended_ns: Sequence[int], latencies_us: Sequence[float], window_ns: tuple[int, int], refused: int, cpu: Cpu) -> Figures | None:
    """Give the figures of the calls that ended in the window, or None if there were none."""
    start, end = window_ns
    inside = sorted(latency for at, latency in zip(ended_ns, latencies_us, strict=True) if start <= at < end)
    if not inside:
        return None
    count = len(inside)
    seconds = (end - start) / 1e9
    ours = cpu.service_s + cpu.postgres_s + cpu.load_s
    return Figures(
        decisions=count,
        refused=refused,
        decisions_s=count / seconds,
        p50_ms=percentile(inside, 0.50) / 1000,
        p99_ms=percentile(inside, 0.99) / 1000,
        service_us=cpu.service_s * 1e6 / count,
        postgres_us=cpu.postgres_s * 1e6 / count,
        load_us=cpu.load_s * 1e6 / count,
        others_cores=max(0.0, cpu.machine_s - ours) / seconds,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the smallest value that at least `share` of `ordered` doesn't exceed (nearest rank)."""
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


def bars(rounds: Mapping[Cell, Sequence[Figures]], worker_mb: Sequence[float]) -> list[Bar]:
    """Give the first bars of the speed benchmark; one that wasn't measured is left out. Ratios are of neighbours in the same round."""
    found = []

    def ratio(name: str, top: Cell, bottom: Cell, value: str, asked: float | None, *, at_least: bool) -> None:
        pairs = zip(rounds.get(top, ()), rounds.get(bottom, ()), strict=True) if top in rounds and bottom in rounds else ()
        each = tuple(getattr(upper, value) / getattr(lower, value) for upper, lower in pairs if getattr(lower, value))
        if each:
            found.append(Bar(name, median(each), asked, at_least, each))

    ratio("64 connections: decisions/s of pgbench's", Cell("endpoint", 64), Cell("pgbench", 64), "decisions_s", 1.0, at_least=True)
    ratio("1 connection: p50 of pgbench's", Cell("endpoint", 1), Cell("pgbench", 1), "p50_ms", 2.0, at_least=False)
    ratio("64 connections: one hot tenant of a hundred's", Cell("hot tenant", 64), Cell("endpoint", 64), "decisions_s", 0.9, at_least=True)
    for value, name in (("decisions_s", "decisions/s"), ("p99_ms", "p99"), ("cpu_us", "CPU a decision")):
        ratio(f"64 connections: {name} of Cerbos's", Cell("endpoint", 64), Cell(CERBOS, 64), value, None, at_least=True)
    if worker_mb:
        found.append(Bar("memory of a worker, MB at most", max(worker_mb), WORKER_MB_MAX, False, tuple(worker_mb)))
    return found


def table(rounds: Mapping[Cell, Sequence[Figures]]) -> str:
    """Give the table: medians over the rounds, CPU in µs a decision, then every round's decisions/s."""
    lines = [
        f"{'':<16}{'decisions/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'service µs':>12}{'PostgreSQL µs':>15}{'load µs':>9}{'others':>8}"
        "   each round's decisions/s"
    ]
    for cell, found in rounds.items():
        if not found:
            continue
        middle = {each.name: median(getattr(one, each.name) for one in found) for each in fields(Figures)}
        service = f"{middle['service_us']:>12.0f}" if cell.who != "pgbench" else f"{'-':>12}"
        each = " ".join(f"{one.decisions_s:.0f}" for one in found)
        lines.append(
            f"{cell.name:<16}{middle['decisions_s']:>12.0f}{middle['p50_ms']:>9.2f}{middle['p99_ms']:>9.2f}{service}"
            f"{middle['postgres_us']:>15.0f}{middle['load_us']:>9.0f}{middle['others_cores']:>8.2f}   {each}"
        )
    others = median(one.others_cores for found in rounds.values() for one in found)
    if others > OTHERS_CORES_MAX:
        lines.append(f"other programs used {others:.2f} cores meanwhile: go by the CPU columns and the ratios, not by the rates")
    return "\n".join(lines)


def bar_lines(found: Sequence[Bar]) -> str:
    lines = []
    for bar in found:
        asked = "to compare" if bar.asked is None else f"{'at least' if bar.at_least else 'at most'} {bar.asked:g}"
        each = " ".join(f"{value:.2f}" for value in bar.rounds)
        word = "      " if bar.asked is None else "met   " if bar.met else "MISSED"
        lines.append(f"{word} {bar.name:<48}{bar.found:>8.2f}   {asked}   ({each})")
    return "\n".join(lines)


def document(rounds: Mapping[Cell, Sequence[Figures]], found: Sequence[Bar]) -> dict[str, object]:
    """Give the same for machines."""
    return {
        "cells": [
            {"who": cell.who, "connections": cell.connections, "rounds": [asdict(each) for each in all_]} for cell, all_ in rounds.items()
        ],
        "bars": [asdict(bar) | {"met": bar.met} for bar in found],
    }

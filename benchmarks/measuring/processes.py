"""What processes have used, read from /proc (Linux): CPU of a whole tree, ended children included, and memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's resident memory now and at most so far, in MB of 1,000,000 bytes."""

    now_mb: float
    most_mb: float


def cpu_s(root: int, without: Iterable[int] = ()) -> float:
    """Give the CPU seconds of `root` and all below it, without the trees of `without`. Children that ended count with their parents."""
    parents, ticks = _read_all()
    left_out = set(without)
    total = 0
    for pid, used in ticks.items():
        above: int | None = pid
        while above is not None and above != root and above not in left_out:
            above = parents.get(above)
        if above == root and root not in left_out:
            total += used
    return total / TICKS_A_SECOND


def machine_cpu_s() -> float:
    """Give the CPU seconds that all programs have used since the machine started, what its host took away included."""
    numbers = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = numbers
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS_A_SECOND


def children(root: int) -> tuple[int, ...]:
    parents, _ = _read_all()
    return tuple(sorted(pid for pid, parent in parents.items() if parent == root))


def command_line(pid: int) -> str:
    """Give a process's arguments joined with blanks; empty when it is gone."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")).strip()
    except OSError:
        return ""


def memory(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    now, most = (int(fields[name].split()[0]) * 1024 / 1_000_000 for name in ("VmRSS", "VmHWM"))
    return Memory(now, most)


def _read_all() -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Give every process's parent, and its ticks with those of the children that it has waited for."""
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    return parents, ticks

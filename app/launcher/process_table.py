"""Looks at other processes: whether one lives, what it is, which work in a folder. Reads only; slim images have no `ps`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LINUX = sys.platform == "linux"  # a name, so type checkers read both branches


def exists(pid: int) -> bool:
    """Say whether there is a process or zombie of that number, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def command_line(pid: int) -> str:
    """Return the arguments of a living process joined with blanks; empty for none and for a zombie."""
    if LINUX:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except (OSError, IndexError):
            return ""
        return "" if state in "ZX" else os.fsdecode(arguments).strip()
    listed = subprocess.run(["ps", "-o", "stat=,args=", "-p", str(pid)], check=False, capture_output=True, text=True).stdout
    state, _, arguments_text = listed.strip().partition(" ")
    return "" if state.startswith("Z") else arguments_text.strip()


def program(pid: int) -> str:
    """Return the name of the program that a living process runs, or what it calls itself, such as `postgres: startup` (Linux)."""
    try:
        called = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
    except OSError:
        return ""
    return called.rpartition("/")[2] if called.startswith("/") else called


def working_in(folders: tuple[Path, ...], name: str) -> tuple[int, ...]:
    """Return the living processes of the program `name` whose working folder is one of `folders` (Linux; nothing elsewhere)."""
    wanted = {os.path.realpath(folder) for folder in folders}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") in wanted and program(int(entry.name)).startswith(name):
                found.append(int(entry.name))
        except OSError:  # it left meanwhile, or it is somebody else's
            continue
    return tuple(found)

"""Becomes another program that is told to stop when the process that started it dies, as an account without rights if asked.

Run as a script before the real program: `python die_with_parent.py PARENT_PID SIGNAL UID:GID PROGRAM ARGUMENT…`. The process id
stays the same. A script instead of `preexec_fn`, which is unsafe beside threads; the standard library only, because it runs
isolated from everything installed. Only Linux can do it (prctl(2) PR_SET_PDEATHSIG); elsewhere the next start clears what is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def follow_parent(parent_pid: int, signal_number: int) -> bool:
    """Ask the kernel for `signal_number` when the parent dies; return False if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    return os.getppid() == parent_pid  # it may have died before the call


def main(arguments: list[str]) -> int:
    parent_pid, signal_number, account, *command = arguments
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started it held signals back meanwhile
    if account:
        uid, gid = (int(part) for part in account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)  # before prctl: a change of account clears what prctl set
    if follow_parent(int(parent_pid), int(signal_number)):
        os.execv(command[0], command)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

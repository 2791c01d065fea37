"""Runs a private PostgreSQL on a Unix socket from the programs of a wheel, as root or as an ordinary user, and gets over every `kill -9`.

One launcher owns a folder at a time (a lock on a file). The server is told to stop when its launcher dies; what still is there at
the next start is stopped, never adopted. Start it from the main thread: the kernel counts a thread's end as its children's parent's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from app.domain.errors import PlacetError
from app.launcher import process_table
from app.launcher.accounts import Account, can_enter, postgres_account
from app.launcher.data_folder import make_folder
from app.launcher.postgres_binaries import reachable_prefix
from app.launcher.stop_signals import held_back

SUPERUSER = "postgres"
LOG_LIMIT_BYTES = 20_000_000
SOCKET_PATH_LIMIT = 100  # bytes of sun_path: 108 on Linux, 104 on macOS
PROGRAM_TIMEOUT_S = 120.0  # initdb, createdb
ORPHANS_LEAVE_WITHIN_S = 5.0  # what a killed postmaster left behind sees it within moments, unless it is busy
GROUP_LEAVES_WITHIN_S = 2.0  # a zombie that nobody waits for, as in some containers, is no reason to wait longer
NOT_DURABLE: Mapping[str, str] = MappingProxyType({"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_permissions": "0700",
        "max_connections": "100",
        "shared_buffers": "128MB",
        "shared_preload_libraries": "plpgsql",  # an upgrade of the wheel under a running server broke functions, and only them
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
    }
)


class PostgresFailed(PlacetError):
    """The embedded PostgreSQL could not be started; the message ends with what it logged."""


class FolderInUse(PlacetError):
    """Another launcher holds the folder and didn't leave it in time."""


class EmbeddedPostgres:
    """One cluster in `folder`: its files in `pgdata`, its log and its socket beside them."""

    def __init__(
        self,
        folder: Path,
        *,
        database: str = "placet",
        settings: Mapping[str, str] = MappingProxyType({}),
        durable: bool = True,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self.folder = folder.expanduser().absolute()
        self.pgdata = self.folder / "pgdata"
        self._half = self.folder / "pgdata.new"
        self.log_path = self.folder / "postgres.log"
        self.database = database
        self.owner = False  # whether stopping is ours
        self._settings = dict(DEFAULTS) | (dict(NOT_DURABLE) if not durable else {}) | dict(settings)
        self._durable = durable
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._account: Account | None = None
        self._prefix: Path | None = None

    def start(self, *, share: bool = False) -> None:
        """Start the server, making the cluster and the database first if they aren't there; return when it accepts connections.

        With `share`, a server that another launcher runs here is used as it is, and never stopped.
        Raises: PostgresFailed, FolderInUse, NoAccount, BinariesMissing; nothing is left running then.
        """
        deadline = time.monotonic() + self._start_timeout_s
        self._make_folder()
        self._prefix = reachable_prefix(self.account)
        if not self._take_lock(deadline, share):
            self._wait_ready(deadline)
            return
        try:
            self._clear_left_over()
            if not (self.pgdata / "PG_VERSION").exists():
                self._make_cluster()
            self._check_version()
            self._start_server(deadline)
            self._make_database()
        except BaseException:
            self.stop(hasten=lambda: True)
            raise

    def is_running(self) -> bool:
        """Say whether the server that this launcher started lives (it may still be starting or stopping)."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Start the server again after it died under us; return when it has recovered and accepts connections.

        Raises: PostgresFailed; the folder stays ours, so it can be tried again.
        """
        assert self.owner, "only the launcher that owns the folder restarts its server"
        self._stop_server(lambda: False)
        self._clear_left_over()
        self._start_server(time.monotonic() + self._start_timeout_s)

    def stop(self, hasten: Callable[[], bool] = lambda: False) -> None:
        """Stop the server if it is ours: open transactions end, the rest is checkpointed; once `hasten()` is true, without that."""
        self._stop_server(hasten)
        if self._lock is not None:
            if self.socket_folder != self.folder:
                shutil.rmtree(self.socket_folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
        self.owner = False

    def dsn(self, database: str | None = None, user: str = SUPERUSER, driver: str = "postgresql") -> str:
        """Return the URL of `database` (by default this one's) on the Unix socket; whoever can enter the folder is trusted."""
        return f"{driver}://{user}@/{database or self.database}?host={quote(str(self.socket_folder), safe='/')}"

    @property
    def account(self) -> Account:
        if self._account is None:
            self._account = postgres_account(self.pgdata)
        return self._account

    @property
    def programs(self) -> Path:
        """The folder of psql, pgbench and the others."""
        if self._prefix is None:
            self._prefix = reachable_prefix(self.account)
        return self._prefix / "bin"

    @property
    def socket_folder(self) -> Path:
        """The folder of the socket: beside the data, or a short plain name when that path can't be a socket's."""
        plain = re.search(r"[,\"'\\]", str(self.folder)) is None  # lists of hosts and folders are separated by commas
        if plain and len(os.fsencode(self.folder / ".s.PGSQL.5432")) < SOCKET_PATH_LIMIT:
            return self.folder
        return Path(tempfile.gettempdir()) / f"placet-{self.folder.stat().st_ino:x}"

    def _make_folder(self) -> None:
        make_folder(self.folder.parent, 0o711 if self.account.lent else 0o700)
        if not can_enter(self.account, self.folder.parent):
            raise PostgresFailed(
                f"`{self.folder}` lies below a folder that the account {self.account} can't enter; set PLACET_DATA_DIR to another "
                "folder (such as one below /var/lib), start as an ordinary user, or set DATABASE_URL"
            )
        make_folder(self.folder, 0o700)
        try:
            if self.account.lent:
                os.chown(self.folder, self.account.uid, self.account.gid)
            self.folder.chmod(0o700)
        except PermissionError:
            raise PostgresFailed(f"`{self.folder}` belongs to another account; set PLACET_DATA_DIR to a folder of this one") from None

    def _take_lock(self, deadline: float, share: bool) -> bool:
        lock = os.open(self.folder / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if share or time.monotonic() > deadline:
                    os.close(lock)
                    if share:
                        return False
                    raise FolderInUse(f"`{self.folder}` is used by another process; stop it, or set PLACET_DATA_DIR") from None
                time.sleep(0.1)
            else:
                self._lock, self.owner = lock, True
                return True

    def _clear_left_over(self) -> None:
        """Stop a server whose launcher was killed, and what a killed server left behind; make its pid file harmless."""
        server = self._recorded_pid()
        if self._is_our_server(server):
            for signal_number, patience_s in ((signal.SIGINT, self._stop_timeout_s), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal_number)
                if _wait_until(lambda: not self._is_our_server(server), patience_s):
                    break
        if not _wait_until(lambda: not self._orphans(), ORPHANS_LEAVE_WITHIN_S):
            for orphan in self._orphans():  # safe: recovery comes next anyway
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            _wait_until(lambda: not self._orphans(), ORPHANS_LEAVE_WITHIN_S)
        pid = self._recorded_pid()
        if pid > 0 and process_table.exists(pid):
            # A zombie, or another program that got the number (common in containers); PostgreSQL would refuse to start. Name ourselves
            # instead of deleting the file: it ignores its parent's number, and still checks the old cluster's shared memory.
            file = self.pgdata / "postmaster.pid"
            file.write_text("\n".join([str(os.getpid()), *file.read_text().splitlines()[1:]]) + "\n")

    def _make_cluster(self) -> None:
        half = self._half
        shutil.rmtree(half, ignore_errors=True)  # of a first start that was interrupted
        self._run(
            "initdb", "-D", str(half), "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8",
            "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", *(() if self._durable else ("--no-sync",)),
        )  # fmt: skip
        half.rename(self.pgdata)

    def _check_version(self) -> None:
        made_by = (self.pgdata / "PG_VERSION").read_text().strip()
        installed = self._run("postgres", "--version").split()[-1].partition(".")[0]
        if made_by != installed:
            raise PostgresFailed(
                f"`{self.pgdata}` was made by PostgreSQL {made_by} and {installed} is installed; dump it with the old one and restore it, "
                "or set PLACET_DATA_DIR to a new folder"
            )

    def _start_server(self, deadline: float) -> None:
        while True:
            self._spawn()
            try:
                return self._wait_ready(deadline)
            except PostgresFailed as failure:
                self._stop_server(lambda: True)
                passing = "pre-existing shared memory block" in str(failure) or "lock file" in str(failure)
                if not passing or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)  # a process of the old server isn't gone yet

    def _spawn(self) -> None:
        sockets = self.socket_folder
        if sockets != self.folder:
            sockets.mkdir(mode=0o700, exist_ok=True)
            if sockets.is_symlink() or sockets.stat().st_uid not in (os.geteuid(), self.account.uid):
                raise PostgresFailed(f"`{sockets}` belongs to somebody else; remove it, or set PLACET_DATA_DIR to a shorter path")
            if self.account.lent:
                os.chown(sockets, self.account.uid, self.account.gid)
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        arguments = ["-D", str(self.pgdata), "-c", f"unix_socket_directories={sockets}"]
        for name, value in self._settings.items():
            arguments += ["-c", f"{name}={value}"]
        with self.log_path.open("ab") as log, held_back():
            # A session of its own: a terminal's Ctrl-C reaches the launcher, which lets the service drain before the database goes.
            self._process = subprocess.Popen(
                self._command("postgres", signal.SIGINT, *arguments),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=_environment(), start_new_session=True,
            )  # fmt: skip

    def _wait_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise PostgresFailed(f"PostgreSQL stopped while it started ({self._process.returncode}):\n{self._log_tail()}")
            try:
                lines = (self.pgdata / "postmaster.pid").read_text().splitlines()
                pid = int(lines[0])
                # an old file may still say `ready`: only the line of the server that runs now counts
                current = pid == self._process.pid if self._process is not None else self._is_our_server(pid)
                if current and lines[7].strip() == "ready":
                    return
            except (OSError, ValueError, IndexError):  # not there yet, or half written
                pass
            time.sleep(0.02)
        raise PostgresFailed(f"PostgreSQL did not get ready within {self._start_timeout_s:.0f} s:\n{self._log_tail()}")

    def _stop_server(self, hasten: Callable[[], bool]) -> None:
        process = self._process
        if process is None:
            return
        steps = ((signal.SIGINT, self._stop_timeout_s), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
        for signal_number, patience_s in steps if not hasten() else steps[1:]:
            process.send_signal(signal_number)
            in_a_hurry = hasten if signal_number == signal.SIGINT else lambda: False
            _wait_until(lambda hurry=in_a_hurry: process.poll() is not None or hurry(), patience_s)  # type: ignore[misc]  # a bound default
            if process.poll() is not None:
                break
        self._process = None

    def _make_database(self) -> None:
        if self.database == "postgres":
            return
        question = f"select 1 from pg_database where datname = '{self.database}'"
        if not self._run("psql", "-h", str(self.socket_folder), "-U", SUPERUSER, "-d", "postgres", "-XAtc", question).strip():
            self._run("createdb", "-h", str(self.socket_folder), "-U", SUPERUSER, self.database)

    def _command(self, program: str, signal_number: int, *arguments: str) -> list[str]:
        shim = Path(__file__).with_name("die_with_parent.py")
        account = f"{self.account.uid}:{self.account.gid}" if self.account.lent else ""
        return [
            sys.executable, "-I", "-S", str(shim), str(os.getpid()), str(int(signal_number)), account,
            str(self.programs / program), *arguments,
        ]  # fmt: skip

    def _run(self, program: str, *arguments: str) -> str:
        process: subprocess.Popen[str] | None = None
        try:
            with held_back():
                process = subprocess.Popen(
                    self._command(program, signal.SIGKILL, *arguments),
                    cwd="/",
                    env=_environment(),
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # initdb starts others: they go together
                )
            output, complaint = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        except BaseException:
            if process is not None:
                _end_group(process)
            raise
        if process.returncode:
            raise PostgresFailed(f"{program} failed ({process.returncode}): {complaint.strip()[-2000:]}")
        return output

    def _log_tail(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")[-2000:]
        except OSError:
            return "(it logged nothing)"

    def _recorded_pid(self) -> int:
        try:
            return int((self.pgdata / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return -1  # no process has that number

    def _orphans(self) -> tuple[int, ...]:
        return process_table.working_in((self.pgdata, self._half), "postgres")

    def _is_our_server(self, pid: int) -> bool:
        arguments = process_table.command_line(pid) if pid > 0 else ""
        return "postgres" in arguments and str(self.pgdata) in arguments


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PLACET_", "DATABASE_URL"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _end_group(leader: subprocess.Popen[str]) -> None:
    """Kill a program with what it has started; return when they are gone, which is a moment later for those that it started."""
    with leader, contextlib.suppress(ProcessLookupError):  # leaving it closes its pipes and waits for it
        os.killpg(leader.pid, signal.SIGKILL)
    _wait_until(lambda: not _group_lives(leader.pid), GROUP_LEAVES_WITHIN_S)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition: Callable[[], bool], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""`./run` on a fresh clone with a blank in its path, as whoever runs the tests and as an ordinary user (S14.1)."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.settings import PROJECT
from tests.faults.service import Service, descriptions

pytestmark = [pytest.mark.faults, pytest.mark.slow]
INSTALL_S = 300.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
Run = Callable[..., Service]


@pytest.fixture
def clone() -> Iterator[Path]:
    """What git would clone, in a folder of its own."""
    parent = Path(tempfile.mkdtemp(prefix="placet tests "))
    parent.chmod(0o755)
    folder = parent / "fresh clone"
    if (PROJECT / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (PROJECT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, folder / name)
    else:  # an archive that was unpacked
        ignored = [line.rstrip("/") for line in (PROJECT / ".gitignore").read_text().splitlines()]
        shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns(*ignored))
    yield folder
    shutil.rmtree(parent, ignore_errors=True)


@pytest.fixture
def run(clone: Path) -> Iterator[Run]:
    """Start the clone's `./run` from another folder, through a symbolic link."""
    link = clone.parent / "a link"
    link.symlink_to(clone / "run")
    started: list[Service] = []

    def start(**options: object) -> Service:
        started.append(Service(clone / ".placet", command=(str(link),), **options))  # type: ignore[arg-type]  # the options of Service
        return started[-1]

    yield start
    for service in started:
        service.kill_family()


def serve_twice(run: Run, clone: Path, **options: object) -> None:
    first = run(workers=2, **options)
    first.wait_for("listening on", within_s=INSTALL_S)
    assert first.healthy()
    assert "installed in" in first.output
    first.signal(signal.SIGINT)
    assert first.end() == 0
    assert descriptions(first.family()) == {}
    assert (clone / ".venv" / "bin" / "placet").exists()
    assert (clone / ".placet" / "postgres" / "pgdata").exists()
    second = run(**options)
    assert second.healthy()
    assert "install" not in second.output
    second.signal(signal.SIGTERM)
    assert second.end() == 0
    assert descriptions(second.family()) == {}


def test_it_serves_twice_in_a_row(run: Run, clone: Path) -> None:
    serve_twice(run, clone)


def test_it_serves_an_ordinary_user(run: Run, clone: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("whoever runs the tests is one already")
    question = "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run(["python3", "-c", question], check=False, env={"PATH": SYSTEM_PATH}, capture_output=True).returncode:
        pytest.skip("there is no Python 3.11 or newer outside root's own folders")
    nobody = pwd.getpwnam("nobody")
    for folder, _, names in os.walk(clone.parent):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    serve_twice(run, clone, account=(nobody.pw_uid, nobody.pw_gid), PATH=SYSTEM_PATH, HOME=str(clone.parent))


def test_an_interrupted_install_is_done_again_and_two_at_once_make_one(run: Run, clone: Path) -> None:
    interrupted = run()
    interrupted.wait_for("installing .* packages")
    time.sleep(1)
    interrupted.kill_family()
    first, second = run(), run(PLACET_DATA_DIR=str(clone / "other"))
    for service in (first, second):
        service.wait_for("listening on", within_s=INSTALL_S)
        assert service.healthy()
    assert ("waiting for another install" in first.output) != ("waiting for another install" in second.output)
    assert sum("installed in" in service.output for service in (first, second)) == 1


def test_a_python_that_is_too_old_or_none_is_one_clear_line(clone: Path) -> None:
    told = subprocess.run(
        [str(clone / "run")], check=False, env={"PATH": SYSTEM_PATH, "PYTHON": "/bin/false"}, capture_output=True, text=True
    )
    assert told.returncode == 2
    assert told.stderr == "placet: PYTHON is `/bin/false`, which is not a working Python 3.11 or newer\n"


def test_a_moved_clone_is_installed_anew(clone: Path) -> None:
    assert subprocess.run([str(clone / "run"), "--help"], check=True, capture_output=True, text=True).stderr.count("installed in") == 1
    moved = clone.rename(clone.parent / "moved elsewhere")
    again = subprocess.run([str(moved / "run"), "--help"], check=True, capture_output=True, text=True)
    assert "installed in" in again.stderr
    assert "serve" in again.stdout

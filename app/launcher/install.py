"""Makes `.venv` beside `run` from a hash-locked file, once, whoever asks and however often it was interrupted.

Runs on a bare Python, before anything is installed: the standard library only, and no import of `app`. A stamp is written last,
so an interrupted install is started over; a lock on a file lets two callers wait for one install instead of making two.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location")
SILENCE_S = 20


def main(checkout: Path, lock_name: str) -> int:
    """Install `lock_name` into `checkout`/.venv unless it is there already; return the exit code."""
    venv = checkout / ".venv"
    if is_installed(checkout, venv, lock_name):
        return 0
    if not os.access(checkout, os.W_OK):
        return fail(
            f"`{checkout}` can't be written by this account; run it once as the account that owns it, or clone it again as this one"
        )
    lock = os.open(checkout / "requirements.lock", os.O_RDONLY | os.O_CLOEXEC)  # it is always there, so no file is left behind
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another install to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(checkout, venv, lock_name):
            return 0
        return install(checkout, venv, lock_name)
    finally:
        os.close(lock)


def install(checkout: Path, venv: Path, lock_name: str) -> int:
    started = time.monotonic()
    base_stamp = stamp_path(venv, "requirements.lock")
    if lock_name == "requirements.lock" or not is_installed(checkout, venv, "requirements.lock"):
        say(f"making {venv} with Python {sys.version.split()[0]}")
        shutil.rmtree(venv, ignore_errors=True)
        if not make_venv(venv):
            return fail("the virtual environment could not be made; on Debian or Ubuntu: apt-get install python3-venv")
    count = sum(1 for line in (checkout / lock_name).read_text().splitlines() if line[:1].isalpha())
    say(f"installing {count} packages of {lock_name} (about a minute, once)")
    if not pip(venv, "install", *PIP_OPTIONS, "--require-hashes", "-r", str(checkout / lock_name)):
        return fail(f"pip could not install {lock_name} (see above); check the network and start again")
    if not pip(venv, "install", *PIP_OPTIONS, "--no-deps", "--no-build-isolation", "--editable", str(checkout)):
        return fail("pip could not install the project itself (see above)")
    for stamp, name in ((base_stamp, "requirements.lock"), (stamp_path(venv, lock_name), lock_name)):
        stamp.write_text(fingerprint(checkout, venv, name))
    say(f"installed in {time.monotonic() - started:.0f} s")
    return 0


def make_venv(venv: Path) -> bool:
    """Make it with pip of its own, or, where Debian left out ensurepip, for the pip of this Python to fill."""
    bare = [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]
    made = subprocess.run([sys.executable, "-I", "-m", "venv", *bare, str(venv)], check=False, capture_output=True, text=True)
    if made.returncode:
        print(made.stdout + made.stderr, file=sys.stderr)
    return made.returncode == 0


def pip(venv: Path, *arguments: str) -> bool:
    """Run pip for the environment; what it says is shown only if it fails."""
    own = venv / "bin" / "python"
    if subprocess.run([str(own), "-I", "-c", "import pip"], check=False, capture_output=True).returncode == 0:
        command = [str(own), "-I", "-m", "pip", *arguments]
    else:
        command = [sys.executable, "-m", "pip", "--python", str(own), *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while True:
        try:
            output, _ = process.communicate(timeout=SILENCE_S)
        except subprocess.TimeoutExpired:
            say("still installing")
        else:
            break
    if process.returncode:
        print(output, file=sys.stderr)
    return process.returncode == 0


def is_installed(checkout: Path, venv: Path, lock_name: str) -> bool:
    try:
        return stamp_path(venv, lock_name).read_text() == fingerprint(checkout, venv, lock_name)
    except OSError:
        return False


def fingerprint(checkout: Path, venv: Path, lock_name: str) -> str:
    """Everything that makes a `.venv` a different one: what is locked, the project's metadata, where it stands (scripts hold paths)."""
    digest = hashlib.sha256()
    project = (checkout / "pyproject.toml").read_bytes().partition(b"\n[tool.")[0]  # settings of linters change nothing here
    digest.update((checkout / lock_name).read_bytes() + b"\0" + project + b"\0")
    python = (venv / "bin" / "python").resolve(strict=True)  # gone after an upgrade of the system's Python: made anew
    digest.update(f"{venv}\0{python}".encode())
    return digest.hexdigest() + "\n"


def stamp_path(venv: Path, lock_name: str) -> Path:
    return venv / f".placet-{lock_name.removesuffix('.lock')}"


def say(text: str) -> None:
    print(f"placet: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> int:
    say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))

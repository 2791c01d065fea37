"""Decides which account PostgreSQL runs as: it refuses to run as root, so root lends it one without rights.

An old cluster keeps the account that owns it; files of a cluster never change hands here.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from app.domain.errors import PlacetError

LENT_BY_ROOT = ("postgres", "nobody")


class NoAccount(PlacetError):
    """Root has no account that PostgreSQL could run as."""


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    lent: bool  # root runs it as somebody else

    def __str__(self) -> str:
        try:
            return f"`{pwd.getpwuid(self.uid).pw_name}`"
        except KeyError:
            return f"number {self.uid}"


def postgres_account(cluster: Path | None = None) -> Account:
    """Return whom PostgreSQL runs as; `cluster` is a folder whose owner wins if it exists.

    Raises: NoAccount when root finds neither `postgres` nor `nobody`.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), lent=False)
    owner = cluster.stat().st_uid if cluster is not None and cluster.exists() else 0
    if owner:
        try:
            return Account(owner, pwd.getpwuid(owner).pw_gid, lent=True)
        except KeyError:  # an account of another machine or container: its number is enough
            return Account(owner, cluster.stat().st_gid if cluster is not None else owner, lent=True)
    for name in LENT_BY_ROOT:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, lent=True)
    raise NoAccount(
        "PostgreSQL can't run as root and there is no account `postgres` or `nobody` to run it as; add one, or set DATABASE_URL"
    )


def can_enter(account: Account, folder: Path) -> bool:
    """Say whether `account` may pass through every parent of `folder` and `folder` itself, as far as it exists (mode bits; no ACLs)."""
    resolved = folder.resolve()
    for part in (*reversed(resolved.parents), resolved):
        try:
            status = part.stat()
        except FileNotFoundError:
            return True  # what isn't there yet is made so that it can be entered
        except PermissionError:
            return False
        shift = 6 if status.st_uid == account.uid else 3 if status.st_gid == account.gid else 0
        if account.uid != 0 and not (status.st_mode >> shift) & 1:
            return False
    return True

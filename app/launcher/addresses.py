"""Who connects to the database: the owner, who makes the schema, and the service, which must own nothing. Nothing is made here.

No message repeats a password: whoever adds one shows an address without it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import asyncpg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.domain.errors import PlacetError
from app.settings import Settings
from app.storage.database import driver_url

OWNER = "placet_owner"
SERVICE = "placet_app"
"""The roles of the embedded server; on one's own the addresses name them."""
CONNECT_WITHIN_S = 10


class DatabaseUnsuitable(PlacetError):
    """The server or the roles can't be used as they are; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Who makes the schema, and whom the service connects as."""

    owner: URL
    service: URL


def addresses(settings: Settings, superuser_dsn: str | None) -> Addresses:
    """Give the addresses of the owner and of the service; `superuser_dsn` is the embedded server's, None with DATABASE_URL.

    Raises: DatabaseUnsuitable, when they can't be read or would make the service own its tables.
    """
    service, owner = service_address(settings, superuser_dsn), owner_address(settings, superuser_dsn)
    if superuser_dsn is None and not settings.database.single_role:
        _require_an_owner(owner, service)
    return Addresses(owner if owner is not None else service, service)


def service_address(settings: Settings, superuser_dsn: str | None) -> URL:
    """Give the service's address alone, for what can do without an owner.

    Raises: DatabaseUnsuitable, when it can't be read.
    """
    if superuser_dsn is not None:
        return make_url(superuser_dsn).set(username=SERVICE)
    assert settings.database.url is not None
    return _parsed("DATABASE_URL", settings.database.url)


def owner_address(settings: Settings, superuser_dsn: str | None) -> URL | None:
    """Give the owner's address, None where none is known.

    Raises: DatabaseUnsuitable, when it can't be read.
    """
    if superuser_dsn is not None:
        return make_url(superuser_dsn).set(username=OWNER)
    owner = settings.database.migration_url
    return _parsed("PLACET_MIGRATION_URL", owner) if owner is not None else None


async def connect(url: URL) -> asyncpg.Connection:
    """Connect.

    Raises: DatabaseUnsuitable, with the address but not its password.
    """
    try:
        return await asyncpg.connect(driver_url(url.render_as_string(hide_password=False)), timeout=CONNECT_WITHIN_S)
    except TimeoutError:
        said = f"no answer within {CONNECT_WITHIN_S} s"
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as failure:
        said = said_by(failure)
    where = url.render_as_string(hide_password=True)
    raise DatabaseUnsuitable(f"can't connect to {where}: {said}; check DATABASE_URL and PLACET_MIGRATION_URL")


def said_by(failure: BaseException | None) -> str:
    """Give what a failure says on one line."""
    if isinstance(failure, OSError) and failure.errno is not None and failure.errno > 0:  # a resolver's numbers are negative
        return os.strerror(failure.errno)
    return str(failure).partition("\n")[0]


def _require_an_owner(owner: URL | None, service: URL) -> None:
    if owner is None:
        raise DatabaseUnsuitable(
            "DATABASE_URL alone would make the service own its tables, and an owner can change audit rows; set PLACET_MIGRATION_URL to the "
            "owner and DATABASE_URL to another role (it is made if it is missing), or PLACET_SINGLE_ROLE=true if one role is meant"
        )
    if owner.username == service.username:
        raise DatabaseUnsuitable(
            "DATABASE_URL and PLACET_MIGRATION_URL name the same role, which could change audit rows; name another role in DATABASE_URL "
            "(it is made if it is missing), or set PLACET_SINGLE_ROLE=true if one role is meant"
        )


def _parsed(name: str, address: str) -> URL:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # their messages repeat the password
        url = None
    if url is None or not url.username or not url.database:
        raise DatabaseUnsuitable(
            f"{name} can't be used; expected postgresql://user:password@host:port/database, with special characters of the password "
            "percent-encoded"
        )
    return url

"""Who may do what: tenants, keys, policy versions; freezes are in `freezes`.

Written by `engine/change_authority` through the same files, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.limits import DEFAULT_LIMITS, KeyLimits
from app.storage.freezes import in_force
from app.storage.tables import API_KEYS, CHAIN_HEADS, POLICY_VERSIONS, TENANTS


@dataclass(frozen=True, slots=True)
class TenantRow:
    tenant_id: UUID
    name: str
    follows_directory: bool
    policy_version: int | None
    policy_digest: str | None
    authority_version: int
    freezes: frozenset[tuple[str, str]]
    """What is frozen now, as (kind, target)."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    tenant_id: UUID
    key_id: UUID
    subject: str
    owner: str
    roles: tuple[str, ...]
    segments: tuple[str, ...]
    bootstrap: bool
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    limits: KeyLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class PolicyRow:
    version: int
    name: str
    digest: str
    created_by: str
    created_at: datetime
    active: bool


async def read_tenant(connection: AsyncConnection, tenant_id: UUID) -> TenantRow | None:
    """Give the tenant with its active policy's digest, its freezes and its authority's version, all of one snapshot."""
    statement = (
        select(TENANTS, CHAIN_HEADS.c.authority_version, POLICY_VERSIONS.c.digest, in_force(TENANTS.c.tenant_id).label("freezes"))
        .join(CHAIN_HEADS, CHAIN_HEADS.c.tenant_id == TENANTS.c.tenant_id)
        .outerjoin(
            POLICY_VERSIONS,
            (POLICY_VERSIONS.c.tenant_id == TENANTS.c.tenant_id) & (POLICY_VERSIONS.c.version == TENANTS.c.active_policy_version),
        )
        .where(TENANTS.c.tenant_id == tenant_id)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    return TenantRow(
        row.tenant_id,
        row.name,
        row.follows_directory,
        row.active_policy_version,
        row.digest,
        row.authority_version,
        frozenset((kind, target) for kind, _, target in (each.partition(":") for each in row.freezes)),
    )


async def tenant_of_name(connection: AsyncConnection, name: str) -> UUID | None:
    """Give the id of a tenant by its name; a function of the owner looks, because row level security hides other tenants."""
    found: UUID | None = (await connection.execute(text("SELECT placet.tenant_of_name(:name)"), {"name": name})).scalar_one_or_none()
    return found


async def find_key(connection: AsyncConnection, tenant_id: UUID, secret_sha256: bytes) -> KeyRow | None:
    """Give the key with that hash, whether it still counts or not."""
    statement = select(API_KEYS).where(API_KEYS.c.tenant_id == tenant_id, API_KEYS.c.secret_sha256 == secret_sha256)
    row = (await connection.execute(statement)).one_or_none()
    return _key(row) if row is not None else None


async def read_key(connection: AsyncConnection, tenant_id: UUID, key_id: UUID) -> KeyRow | None:
    statement = select(API_KEYS).where(API_KEYS.c.tenant_id == tenant_id, API_KEYS.c.key_id == key_id).with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return _key(row) if row is not None else None


async def list_keys(connection: AsyncConnection, tenant_id: UUID, limit: int, after: UUID | None) -> list[KeyRow]:
    """Give a page of a tenant's keys in the order of their ids (which is the order of their making)."""
    statement = select(API_KEYS).where(API_KEYS.c.tenant_id == tenant_id).order_by(API_KEYS.c.key_id).limit(limit)
    if after is not None:
        statement = statement.where(API_KEYS.c.key_id > after)
    return [_key(row) for row in (await connection.execute(statement)).all()]


async def insert_tenant(
    connection: AsyncConnection, tenant_id: UUID, name: str, follows_directory: bool, genesis: str, now: datetime
) -> None:
    """Make a tenant and the beginning of its chain.

    Raises:
        sqlalchemy.exc.IntegrityError: there is a tenant of that name.
    """
    await connection.execute(
        insert(TENANTS).values(
            tenant_id=tenant_id, name=name, follows_directory=follows_directory, active_policy_version=None, created_at=now
        )
    )
    await connection.execute(
        insert(CHAIN_HEADS).values(tenant_id=tenant_id, sequence=0, hash=genesis, recorded_at=now, authority_version=1)
    )


async def insert_key(connection: AsyncConnection, key: KeyRow, secret_sha256: bytes) -> None:
    await connection.execute(
        insert(API_KEYS).values(
            tenant_id=key.tenant_id,
            key_id=key.key_id,
            secret_sha256=secret_sha256,
            subject=key.subject,
            owner=key.owner,
            roles=list(key.roles),
            segments=list(key.segments),
            bootstrap=key.bootstrap,
            created_by=key.created_by,
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=None,
            requests_per_minute=key.limits.requests_per_minute,
            concurrent_requests=key.limits.concurrent,
        )
    )


async def end_key(connection: AsyncConnection, tenant_id: UUID, key_id: UUID, *, revoked_at: datetime | None, expires_at: datetime) -> None:
    """Revoke a key, or let it end earlier."""
    await connection.execute(
        update(API_KEYS)
        .where(API_KEYS.c.tenant_id == tenant_id, API_KEYS.c.key_id == key_id)
        .values(revoked_at=revoked_at, expires_at=expires_at)
    )


async def bootstrap_keys(connection: AsyncConnection, tenant_id: UUID) -> list[KeyRow]:
    statement = select(API_KEYS).where(API_KEYS.c.tenant_id == tenant_id, API_KEYS.c.bootstrap, API_KEYS.c.revoked_at.is_(None))
    return [_key(row) for row in (await connection.execute(statement)).all()]


async def insert_policy(
    connection: AsyncConnection, tenant_id: UUID, name: str, digest: str, files: str, created_by: str, now: datetime
) -> int:
    """Store a bundle as the tenant's next version; the caller holds the chain head's lock, so that versions don't collide."""
    newest = select(func.coalesce(func.max(POLICY_VERSIONS.c.version), 0)).where(POLICY_VERSIONS.c.tenant_id == tenant_id)
    version = int((await connection.execute(newest)).scalar_one()) + 1
    await connection.execute(
        insert(POLICY_VERSIONS).values(
            tenant_id=tenant_id, version=version, name=name, digest=digest, files=files, created_by=created_by, created_at=now
        )
    )
    return version


async def read_policy_files(connection: AsyncConnection, tenant_id: UUID, version: int) -> tuple[str, str] | None:
    """Give the digest and the files (canonical JSON) of a version."""
    statement = select(POLICY_VERSIONS.c.digest, POLICY_VERSIONS.c.files).where(
        POLICY_VERSIONS.c.tenant_id == tenant_id, POLICY_VERSIONS.c.version == version
    )
    row = (await connection.execute(statement)).one_or_none()
    return (row.digest, row.files) if row is not None else None


async def list_policies(connection: AsyncConnection, tenant_id: UUID, limit: int, before: int | None) -> list[PolicyRow]:
    """Give a page of a tenant's policy versions, newest first."""
    statement = (
        select(POLICY_VERSIONS, TENANTS.c.active_policy_version)
        .join(TENANTS, TENANTS.c.tenant_id == POLICY_VERSIONS.c.tenant_id)
        .where(POLICY_VERSIONS.c.tenant_id == tenant_id)
        .order_by(POLICY_VERSIONS.c.version.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(POLICY_VERSIONS.c.version < before)
    return [
        PolicyRow(row.version, row.name, row.digest, row.created_by, row.created_at, row.version == row.active_policy_version)
        for row in (await connection.execute(statement)).all()
    ]


async def activate_policy(connection: AsyncConnection, tenant_id: UUID, version: int, *, follows_directory: bool) -> None:
    """Make a version the active one; a tenant that chose for itself no longer follows the served directory."""
    await connection.execute(
        update(TENANTS).where(TENANTS.c.tenant_id == tenant_id).values(active_policy_version=version, follows_directory=follows_directory)
    )


async def raise_authority_version(connection: AsyncConnection, tenant_id: UUID) -> None:
    """Tell every worker that what it remembers of this tenant's keys, policy and freezes is old; the caller holds the chain head's lock."""
    await connection.execute(
        update(CHAIN_HEADS).where(CHAIN_HEADS.c.tenant_id == tenant_id).values(authority_version=CHAIN_HEADS.c.authority_version + 1)
    )


def _key(row: Any) -> KeyRow:
    values: Mapping[str, Any] = row._mapping
    return KeyRow(
        values["tenant_id"],
        values["key_id"],
        values["subject"],
        values["owner"],
        tuple(values["roles"]),
        tuple(values["segments"]),
        values["bootstrap"],
        values["created_by"],
        values["created_at"],
        values["expires_at"],
        values["revoked_at"],
        KeyLimits(values["requests_per_minute"], values["concurrent_requests"]),
    )

"""What a worker remembers of keys, policies and freezes, and how it learns that it is old.

Nothing here decides alone: a decision counts only when its transaction has found each tenant's authority_version unchanged, before it
reads and once more under the chain head's lock. A key that was revoked or a policy that was replaced is therefore gone with the commit
that did it, and a freeze holds from its commit on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import DecisionUnavailable, PolicyInvalid, Unauthenticated
from app.domain.tool_call import Principal
from app.engine.clock import Clock
from app.engine.compiling import compiled
from app.policy.model import Policy
from app.storage import authority as stored
from app.storage.database import Database

PLATFORM_TENANT = UUID(int=0)
TENANTS_MAX = 10_000
KEYS_MAX = 50_000
POLICIES_MAX = 64
ASKING_MAX = 4

_K = TypeVar("_K")
_V = TypeVar("_V")
_TOKEN = re.compile(r"placet_([a-z2-7]{26})_[A-Za-z0-9_-]{43}\Z")
_log = structlog.get_logger(__name__)


class PolicyUnusable(DecisionUnavailable):
    """A tenant's active version isn't there or doesn't compile, so nothing is decided by it; its operators can activate another."""


@dataclass(frozen=True, slots=True)
class TenantAuthority:
    """A tenant as it was at `version` of its authority."""

    tenant_id: UUID
    name: str
    version: int
    policy_version: int | None
    policy: Policy | None
    freezes: frozenset[tuple[str, str]] = frozenset()  # (kind, target)


@dataclass(frozen=True, slots=True)
class _KnownKey:
    principal: Principal
    version: int
    expires_at: datetime


def token_of(tenant_id: UUID, secret: bytes) -> str:
    """Write a key: whose it is, and 32 random bytes. The tenant in it is a pointer; only the whole token's hash opens anything."""
    assert len(secret) == 32
    tenant = base64.b32encode(tenant_id.bytes).decode().rstrip("=").lower()
    return f"placet_{tenant}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def hash_of(token: str) -> bytes:
    """Give the SHA-256 that is stored of a key. The keys are random, so a slow hash would protect nothing more."""
    return hashlib.sha256(token.encode()).digest()


def tenant_of(token: str) -> UUID:
    """Give the tenant that a token points to; a token of another form can only be the operator's own bootstrap key."""
    found = _TOKEN.match(token)
    return UUID(bytes=base64.b32decode(found[1].upper() + "======")) if found else PLATFORM_TENANT


class Authority:
    """One worker's memory of tenants, keys and compiled policies, each bounded."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._tenants: OrderedDict[UUID, TenantAuthority] = OrderedDict()
        self._keys: OrderedDict[bytes, _KnownKey] = OrderedDict()
        self._policies: OrderedDict[str, Policy | None] = OrderedDict()  # None: it doesn't compile
        self._asking: dict[bytes, asyncio.Lock] = {}
        self._turn = asyncio.Semaphore(ASKING_MAX)
        self._compiling = asyncio.Lock()

    async def authenticate(self, token: str, *, fresh: bool = False) -> Principal:
        """Give the principal of a key. `fresh` asks the database whatever is remembered.

        Raises:
            Unauthenticated: no such key, or it was revoked or has expired.
            DecisionUnavailable: the database would have to say, and can't.
        """
        hashed = hash_of(token)
        known = self._keys.get(hashed)
        if known is not None and not fresh and self._is_current(known):
            return known.principal
        if fresh:
            return await self._ask(token, hashed)
        # many requests of one key may come at once to a worker that doesn't know it yet: one of them asks, the others wait for it
        lock = self._asking.setdefault(hashed, asyncio.Lock())
        try:
            async with lock:
                known = self._keys.get(hashed)
                if known is not None and self._is_current(known):
                    return known.principal
                return await self._ask(token, hashed)
        finally:
            if not lock.locked() and self._asking.get(hashed) is lock:
                del self._asking[hashed]

    def remembered(self, token: str) -> Principal | None:
        """Give the principal of a key that this worker knows and believes to be current, without asking the database."""
        known = self._keys.get(hash_of(token))
        return known.principal if known is not None and self._is_current(known) else None

    def _is_current(self, known: _KnownKey) -> bool:
        tenant = self._tenants.get(known.principal.tenant_id)
        return tenant is not None and tenant.version == known.version and self._clock.now() < known.expires_at

    async def _ask(self, token: str, hashed: bytes) -> Principal:
        tenant_id, now = tenant_of(token), self._clock.now()
        async with self._turn, self._database.transaction([tenant_id]) as connection:
            row = await stored.read_tenant(connection, tenant_id)
            key = await stored.find_key(connection, tenant_id, hashed) if row is not None else None
            if row is None or key is None or key.revoked_at is not None or now >= key.expires_at:
                self._keys.pop(hashed, None)
                raise Unauthenticated("no such key, or it was revoked or has expired; ask an operator for another")
            files = await self._files_unless_compiled(connection, row)
        await self._learn(row, files)
        roles, segments = frozenset(key.roles), frozenset(key.segments)
        principal = Principal(tenant_id, row.name, key.key_id, key.subject, key.owner, roles, segments, key.limits)
        _remember(self._keys, hashed, _KnownKey(principal, row.authority_version, key.expires_at), KEYS_MAX)
        return principal

    def of(self, tenant_id: UUID) -> TenantAuthority:
        """Give what calls of a tenant whose key was just authenticated are decided by.

        Raises:
            PolicyUnusable: it has an active version that can't be used.
        """
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            raise DecisionUnavailable  # forgotten between two awaits; the next try reads it again
        if tenant.policy is None and tenant.policy_version is not None:
            raise PolicyUnusable
        return tenant

    def known_tenants(self) -> tuple[TenantAuthority, ...]:
        """Give the tenants that this worker has served, as they are remembered."""
        return tuple(self._tenants.values())

    async def refresh(self, tenants: Iterable[UUID]) -> None:
        """Learn the authority of `tenants` anew; their keys are asked for again one by one."""
        for tenant_id in tenants:
            async with self._database.transaction([tenant_id]) as connection:
                row = await stored.read_tenant(connection, tenant_id)
                if row is None:
                    self._tenants.pop(tenant_id, None)
                    continue
                files = await self._files_unless_compiled(connection, row)
            await self._learn(row, files)

    async def _files_unless_compiled(self, connection: AsyncConnection, row: stored.TenantRow) -> str | None:
        if row.policy_version is None or row.policy_digest in self._policies:
            return None
        found = await stored.read_policy_files(connection, row.tenant_id, row.policy_version)
        return found[1] if found is not None else None

    async def _learn(self, row: stored.TenantRow, files: str | None) -> None:
        digest = row.policy_digest
        if files is not None and digest is not None:
            async with self._compiling:
                if digest not in self._policies:  # another request may have been first
                    _remember(self._policies, digest, await _usable(files, row), POLICIES_MAX)
        if digest is not None and digest not in self._policies:
            raise DecisionUnavailable  # forgotten between two awaits; the next try reads it again
        policy = self._policies[digest] if digest is not None else None
        before = self._tenants.get(row.tenant_id)
        if before is not None and before.version > row.authority_version:
            return  # learned by another request while this one compiled
        learned = TenantAuthority(row.tenant_id, row.name, row.authority_version, row.policy_version, policy, row.freezes)
        _remember(self._tenants, row.tenant_id, learned, TENANTS_MAX)


async def _usable(files: str, row: stored.TenantRow) -> Policy | None:
    try:
        return await compiled(json.loads(files))
    except PolicyInvalid as invalid:  # an earlier version of the service took it, or it was changed behind the service's back
        _log.error("policy_unusable", tenant=row.name, policy_version=row.policy_version, faults=len(invalid.faults))
        return None


def _remember(memory: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > most:
        memory.popitem(last=False)

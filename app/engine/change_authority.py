"""The one module that writes authority: tenants, keys, policy versions, freezes. Every change is an audit row with who made it, in the same
transaction.

Locks: the rows that are changed first, the tenant's chain head after them; what is inserted waits for nobody and may come later.
Under the head's lock the authority's version is raised, so that every decision that hasn't committed yet is made again under the new
authority.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.audit_chain import GENESIS
from app.domain.canonical import canonical
from app.domain.errors import Conflict, NotFound, NotPermitted, PolicyInvalid
from app.domain.limits import DEFAULT_LIMITS, KeyLimits
from app.domain.tool_call import Principal, Role
from app.engine.authority import PLATFORM_TENANT, hash_of, token_of
from app.engine.backfill_history import backfill_history, finish_backfill
from app.engine.chain import Event, append, lock_chain
from app.engine.clock import Clock
from app.engine.compiling import compiled
from app.policy.model import Policy
from app.storage import authority as stored
from app.storage import freezes
from app.storage.authority import KeyRow
from app.storage.database import Database
from app.storage.decision_batch import Head
from app.storage.freezes import FreezeRow

EVENT = "authority.changed"
POLICY_EVENT = "policy.activated"
FREEZE_EVENTS = ("freeze.set", "freeze.lifted")
ACTIVATION_TRIES_MAX = 3
FREEZES_MAX = 1_000
"""In force at once in a tenant: every worker remembers them."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something."""

    subject: str
    roles: tuple[str, ...]


SYSTEM = Actor("placet", ("operator",))


@dataclass(frozen=True, slots=True)
class KeySpec:
    """The key to make; `owner` is the person behind it."""

    subject: str
    owner: str
    roles: tuple[Role, ...]
    segments: tuple[str, ...]
    lifetime: timedelta
    limits: KeyLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A new key and its token, which is stored nowhere and can't be shown again."""

    key: KeyRow
    token: str


@dataclass(frozen=True, slots=True)
class FreezeSpec:
    """What to stop: `kind` is tenant, principal, session or tool, `target` its name or id, `reason` the operator's own words."""

    kind: str
    target: str
    reason: str
    by_platform: bool


@dataclass(frozen=True, slots=True)
class MadeTenant:
    tenant_id: UUID
    name: str
    policy_version: int | None


def actor_of(principal: Principal) -> Actor:
    return Actor(principal.subject, tuple(sorted(principal.roles)))


class AuthorityWriter:
    """Changes authority in transactions of its own."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def platform_bundle(self) -> Mapping[str, str] | None:
        """Give the files of the bundle that the platform serves, which new tenants start with."""
        async with self._database.transaction([PLATFORM_TENANT]) as connection:
            platform = await stored.read_tenant(connection, PLATFORM_TENANT)
            if platform is None or platform.policy_version is None:
                return None
            found = await stored.read_policy_files(connection, PLATFORM_TENANT, platform.policy_version)
        files: Mapping[str, str] | None = json.loads(found[1]) if found is not None else None
        return files

    async def make_tenant(self, actor: Actor, name: str, files: Mapping[str, str] | None, tenant_id: UUID | None = None) -> MadeTenant:
        """Make a tenant, with `files` as its first active policy; without any its calls are all refused (`no_policy`).

        Raises:
            Conflict: there is a tenant of that name (`tenant_exists`).
            PolicyInvalid: the bundle is broken; no tenant was made.
        """
        made = tenant_id if tenant_id is not None else self._clock.new_id()
        policy = await compiled(files) if files is not None else None
        now = self._clock.now()
        try:
            async with self._database.transaction([made]) as connection:
                await stored.insert_tenant(connection, made, name, files is not None, GENESIS, now)
                version = None
                if policy is not None:
                    text = canonical(dict(files or {}))
                    version = await stored.insert_policy(connection, made, policy.name, policy.digest, text, actor.subject, now)
                    await stored.activate_policy(connection, made, version, follows_directory=True)
                facts: dict[str, object] = {"change": "tenant.created", "tenant": name}
                if version is not None and policy is not None:
                    facts |= {"policy_version": version, "policy_digest": policy.digest}
                head, _ = await lock_chain(connection, made)
                await self._append(connection, made, name, head, actor, EVENT, facts)
        except IntegrityError:
            raise Conflict("tenant_exists", f"there is a tenant `{name}` already; choose another name") from None
        return MadeTenant(made, name, version)

    async def make_key(self, actor: Actor, tenant_id: UUID, spec: KeySpec) -> MadeKey:
        """Make a key; its token is given once.

        Raises:
            NotFound: there is no such tenant.
        """
        return await self._store_key(actor, tenant_id, spec, token_of(tenant_id, secrets.token_bytes(32)), bootstrap=False)

    async def set_bootstrap_key(self, token: str | None) -> str | None:
        """Make the platform's operator key at the first start, or replace it when the environment names another.

        Gives the token if one was generated, None if the environment's is in force or nothing had to change.
        """
        async with self._database.transaction([PLATFORM_TENANT]) as connection:
            living = await stored.bootstrap_keys(connection, PLATFORM_TENANT)
            known = await stored.find_key(connection, PLATFORM_TENANT, hash_of(token)) if token is not None else None
        if token is None and living:
            return None
        if known is not None and known.revoked_at is not None:
            raise Conflict("bootstrap_key_revoked", "PLACET_BOOTSTRAP_KEY names a key that was revoked; set a new one")
        new = token if token is not None else token_of(PLATFORM_TENANT, secrets.token_bytes(32))
        if known is None:
            spec = KeySpec("bootstrap", "bootstrap", (Role.OPERATOR,), (), timedelta(days=3650))
            known = (await self._store_key(SYSTEM, PLATFORM_TENANT, spec, new, bootstrap=True)).key
        for old in living:  # also those that a start left which was killed behind the new key
            if old.key_id != known.key_id:
                await self.revoke_key(SYSTEM, PLATFORM_TENANT, old.key_id)
        return new if token is None else None

    async def revoke_key(self, actor: Actor, tenant_id: UUID, key_id: UUID) -> KeyRow:
        """Revoke a key, for all that commits from now on. One that was revoked before stays as it is.

        Raises:
            NotFound: the tenant has no such key.
        """
        now = self._clock.now()
        async with self._database.transaction([tenant_id]) as connection:
            key = await self._key(connection, tenant_id, key_id)
            if key.revoked_at is not None:
                return key
            await stored.end_key(connection, tenant_id, key_id, revoked_at=now, expires_at=key.expires_at)
            await self._record_in(connection, tenant_id, actor, {"change": "key.revoked", "key_id": str(key_id), "subject": key.subject})
        return replace(key, revoked_at=now)

    async def rotate_key(self, actor: Actor, tenant_id: UUID, key_id: UUID, overlap: timedelta) -> MadeKey:
        """Make a key with the same rights and let the old one end after `overlap`.

        Raises:
            NotFound: the tenant has no such key.
            Conflict: the key was revoked or has expired (`key_not_active`).
        """
        now = self._clock.now()
        token = token_of(tenant_id, secrets.token_bytes(32))
        async with self._database.transaction([tenant_id]) as connection:
            old = await self._key(connection, tenant_id, key_id)
            if old.revoked_at is not None or old.expires_at <= now:
                raise Conflict("key_not_active", "this key was revoked or has expired; make a new one instead")
            new = replace(
                old,
                key_id=self._clock.new_id(),
                created_at=now,
                created_by=actor.subject,
                expires_at=now + (old.expires_at - old.created_at),
                bootstrap=False,
            )
            await stored.insert_key(connection, new, hash_of(token))
            await stored.end_key(connection, tenant_id, key_id, revoked_at=None, expires_at=min(old.expires_at, now + overlap))
            facts = {"change": "key.rotated", "key_id": str(key_id), "new_key_id": str(new.key_id), "subject": old.subject}
            await self._record_in(connection, tenant_id, actor, facts)
        return MadeKey(new, token)

    async def set_freeze(self, actor: Actor, tenant_id: UUID, spec: FreezeSpec) -> FreezeRow:
        """Stop something, for all that commits from now on.

        Raises:
            NotFound: there is no such tenant.
            Conflict: FREEZES_MAX are in force (`too_many_freezes`).
        """
        freeze_id, now = self._clock.new_id(), self._clock.now()
        freeze = FreezeRow(
            tenant_id, freeze_id, spec.kind, spec.target, spec.reason, spec.by_platform, actor.subject, now, lifted_at=None, lifted_by=None
        )
        async with self._database.transaction([tenant_id]) as connection:
            head, name = await lock_chain(connection, tenant_id)
            if await freezes.count_in_force(connection, tenant_id) >= FREEZES_MAX:
                raise Conflict("too_many_freezes", f"{FREEZES_MAX} freezes are in force; lift some, or freeze the tenant")
            await freezes.insert_freeze(connection, freeze)
            payload = canonical({"stated_reason": spec.reason})
            await self._append(connection, tenant_id, name, head, actor, FREEZE_EVENTS[0], _freeze_facts(freeze), payload)
            await stored.raise_authority_version(connection, tenant_id)
        return freeze

    async def lift_freeze(self, actor: Actor, tenant_id: UUID, freeze_id: UUID, *, by_platform: bool) -> FreezeRow:
        """Let what was frozen go on. A freeze that was lifted before stays as it is.

        Raises:
            NotFound: the tenant has no such freeze.
            NotPermitted: the platform's operator set it, and somebody else would lift it.
        """
        now = self._clock.now()
        async with self._database.transaction([tenant_id]) as connection:
            freeze = await freezes.read_freeze(connection, tenant_id, freeze_id)
            if freeze is None:
                raise NotFound("there is no such freeze")
            if freeze.by_platform and not by_platform:
                raise NotPermitted("the platform's operator set this freeze, and only they lift it; ask them")
            if freeze.lifted_at is not None:
                return freeze
            await freezes.lift_freeze(connection, tenant_id, freeze_id, now, actor.subject)
            head, name = await lock_chain(connection, tenant_id)
            await self._append(connection, tenant_id, name, head, actor, FREEZE_EVENTS[1], _freeze_facts(freeze))
            await stored.raise_authority_version(connection, tenant_id)
        return replace(freeze, lifted_at=now, lifted_by=actor.subject)

    async def store_policy(self, actor: Actor, tenant_id: UUID, files: Mapping[str, str]) -> tuple[int, Policy]:
        """Store a bundle as the tenant's next version; give the version and the compiled bundle.

        Raises:
            PolicyInvalid: the bundle is broken; it was refused whole and the active version stays.
            NotFound: there is no such tenant.
        """
        policy = await compiled(files)
        async with self._database.transaction([tenant_id]) as connection:
            head, name = await lock_chain(connection, tenant_id)
            text = canonical(dict(files))
            version = await stored.insert_policy(connection, tenant_id, policy.name, policy.digest, text, actor.subject, self._clock.now())
            facts: dict[str, object] = {"change": "policy.stored", "policy_version": version, "policy_digest": policy.digest}
            await self._append(connection, tenant_id, name, head, actor, EVENT, facts)
        return version, policy

    async def activate_policy(self, actor: Actor, tenant_id: UUID, version: int) -> str:
        """Make a stored version the active one; an older one is a rollback. Gives its digest.

        Raises:
            NotFound: the tenant has no such version.
            PolicyInvalid: this version of the service doesn't take it any more.
            Conflict: other activations came in between at every try (`policy_moved`), or calls are decided faster than a new history
                query can look back at them (`history_behind`).
        """
        for _ in range(ACTIVATION_TRIES_MAX):
            async with self._database.transaction([tenant_id]) as connection:
                tenant = await stored.read_tenant(connection, tenant_id)
                old_version = tenant.policy_version if tenant is not None else None
                replaced = await stored.read_policy_files(connection, tenant_id, old_version) if old_version is not None else None
                found = await stored.read_policy_files(connection, tenant_id, version)
            if found is None:
                raise NotFound(f"there is no policy version {version}")
            digest, new = found[0], await compiled(json.loads(found[1]))  # with no transaction open: a large bundle takes seconds
            old = await _compiled_if_it_can_be(replaced[1]) if replaced is not None else None
            seen = await backfill_history(self._database, tenant_id, old, new, self._clock)
            async with self._database.transaction([tenant_id]) as connection:
                head, name = await lock_chain(connection, tenant_id)
                tenant = await stored.read_tenant(connection, tenant_id)
                if tenant is None or tenant.policy_version != old_version:
                    continue  # what was keyed meanwhile went by another version than `old`
                await finish_backfill(connection, tenant_id, old, new, seen)
                await stored.activate_policy(connection, tenant_id, version, follows_directory=actor is SYSTEM)
                facts: dict[str, object] = {"policy_version": version, "policy_digest": digest}
                await self._append(connection, tenant_id, name, head, actor, POLICY_EVENT, facts)
                await stored.raise_authority_version(connection, tenant_id)
            return digest
        raise Conflict("policy_moved", "other versions were activated meanwhile; look which one is active, and activate again")

    async def _store_key(self, actor: Actor, tenant_id: UUID, spec: KeySpec, token: str, *, bootstrap: bool) -> MadeKey:
        now = self._clock.now()
        key = KeyRow(
            tenant_id,
            self._clock.new_id(),
            spec.subject,
            spec.owner,
            tuple(spec.roles),
            spec.segments,
            bootstrap,
            actor.subject,
            now,
            now + spec.lifetime,
            None,
            spec.limits,
        )
        async with self._database.transaction([tenant_id]) as connection:
            if await stored.read_tenant(connection, tenant_id) is None:
                raise NotFound("there is no such tenant")
            await stored.insert_key(connection, key, hash_of(token))
            facts: dict[str, object] = {"change": "key.created", "key_id": str(key.key_id), "subject": spec.subject}
            facts |= {"key_roles": sorted(spec.roles), **_limits_facts(spec.limits)}
            await self._record_in(connection, tenant_id, actor, facts)
        return MadeKey(key, token)

    async def _key(self, connection: AsyncConnection, tenant_id: UUID, key_id: UUID) -> KeyRow:
        key = await stored.read_key(connection, tenant_id, key_id)
        if key is None:
            raise NotFound("there is no such key")
        return key

    async def _record_in(self, connection: AsyncConnection, tenant_id: UUID, actor: Actor, facts: Mapping[str, object]) -> None:
        head, name = await lock_chain(connection, tenant_id)
        await self._append(connection, tenant_id, name, head, actor, EVENT, facts)
        await stored.raise_authority_version(connection, tenant_id)

    async def _append(
        self,
        connection: AsyncConnection,
        tenant_id: UUID,
        name: str,
        head: Head,
        actor: Actor,
        event: str,
        facts: Mapping[str, object],
        payload: str | None = None,
    ) -> Head:
        happened = Event(event, self._clock.now(), actor.subject, actor.roles, facts, payload)
        return await append(connection, tenant_id, name, head, happened, self._clock.salt())


async def _compiled_if_it_can_be(files: str) -> Policy | None:
    try:
        return await compiled(json.loads(files))
    except PolicyInvalid:  # another version can still be activated, and looks back at all that was decided
        return None


def _limits_facts(limits: KeyLimits) -> dict[str, object]:
    own = {"requests_per_minute": limits.requests_per_minute, "concurrent": limits.concurrent}
    own = {name: value for name, value in own.items() if value is not None}
    return {"limits": own} if own else {}


def _freeze_facts(freeze: FreezeRow) -> dict[str, object]:
    """Give the audit row's own fields; the operator's words are in its payload, which can be erased."""
    facts: dict[str, object] = {"freeze_id": str(freeze.freeze_id), "target": f"{freeze.target_kind}:{freeze.target}"}
    column = {"session": "session_id", "tool": "tool"}.get(freeze.target_kind)
    return facts | ({column: freeze.target} if column is not None else {})

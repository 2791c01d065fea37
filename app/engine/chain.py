"""Audit rows: how an event becomes the next row of a tenant's chain (SPEC S10.1, S10.2, API.md 4).

Whoever appends holds the lock of the chain's head. recorded_at never goes back, so a clock that steps back can't fork a chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.audit_chain import payload_digest
from app.domain.canonical import canonical, digest_text
from app.domain.errors import NotFound
from app.encoding import canonical_text
from app.engine.clock import rfc3339
from app.storage import audit, authority
from app.storage.decision_batch import Head

COPIED = (
    "session_id", "task_id", "tool", "resources", "decision_id", "approval_id", "decision", "reason", "refused_by", "risk_score",
    "policy_version",
)  # fmt: skip
"""Facts of a row that are also columns, to search by."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, before it has a place in the chain. `facts` are the row's own fields, JSON values."""

    name: str
    occurred_at: datetime
    subject: str
    roles: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    payload: str | None = None  # canonical text


@dataclass(frozen=True, slots=True)
class Link:
    """An event in its place: the row's columns, the text that was hashed, and the head after it."""

    columns: dict[str, object]
    body: str
    payload: str | None
    salt: bytes | None
    head: Head


@dataclass(frozen=True, slots=True)
class OpenLink:
    """An event whose place isn't known yet: its text is before + previous hash + between + sequence + after."""

    columns: dict[str, object]
    before: str
    between: str
    after: str


def link(tenant_id: UUID, chain: str, head: Head, event: Event, salt: bytes) -> Link:
    """Put an event behind `head`, whose lock the caller holds."""
    sequence = head.sequence + 1
    body = canonical({**_row(chain, event, salt), "previous_hash": head.hash, "sequence": sequence})
    after = Head(sequence, digest_text(body), max(event.occurred_at, head.recorded_at), head.authority_version)
    columns = {
        **_columns(event),
        "tenant_id": tenant_id,
        "recorded_at": after.recorded_at,
        "sequence": sequence,
        "previous_hash": head.hash,
        "hash": after.hash,
    }
    return Link(columns, body, event.payload, salt if event.payload is not None else None, after)


async def lock_chain(connection: AsyncConnection, tenant_id: UUID) -> tuple[Head, str]:
    """Lock the end of a tenant's chain; give it with the chain's name.

    Raises:
        NotFound: there is no such tenant.
    """
    head = await audit.lock_head(connection, tenant_id)
    tenant = await authority.read_tenant(connection, tenant_id)
    if head is None or tenant is None:
        raise NotFound("there is no such tenant")
    return head, tenant.name


async def append(connection: AsyncConnection, tenant_id: UUID, chain: str, head: Head, event: Event, salt: bytes) -> Head:
    """Store an event behind `head`, whose lock the caller holds; give the head after it."""
    linked = link(tenant_id, chain, head, event, salt)
    await audit.append_row(connection, linked.columns, linked.body, linked.payload, linked.salt, linked.head)
    return linked.head


def open_link(chain: str, event: Event, salt: bytes, mark: str) -> OpenLink:
    """Prepare an event for the place that the write will give it; `mark` is a random text that stands where the two values go."""
    text = canonical_text({**_row(chain, event, salt), "previous_hash": mark, "sequence": f"{mark}#"})
    before, _, rest = text.partition(mark)
    between, found, after = rest.partition(f'"{mark}#"')
    assert found, "previous_hash stands before sequence in the canonical form"
    return OpenLink(_columns(event), before, between, after)


def _row(chain: str, event: Event, salt: bytes) -> dict[str, object]:
    row: dict[str, object] = {
        "chain": chain,
        "event": event.name,
        "occurred_at": rfc3339(event.occurred_at),
        "actor": {"subject": event.subject, "roles": list(event.roles)},
        **event.facts,
    }
    if event.payload is not None:
        row["payload_digest"] = payload_digest(salt, event.payload)
    return row


def _columns(event: Event) -> dict[str, object]:
    return {"event": event.name, "subject": event.subject, **{name: event.facts.get(name) for name in COPIED}}

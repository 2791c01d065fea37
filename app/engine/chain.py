"""Audit rows: how an event becomes the next row of a tenant's chain (SPEC S10.1, S10.2, API.md 4).

Whoever appends holds the lock of the chain's head. recorded_at never goes back, so a clock that steps back can't fork a chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from app.domain.audit_chain import payload_digest
from app.domain.canonical import canonical, digest_text
from app.engine.clock import rfc3339
from app.storage.decision_batch import Head


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


def link(tenant_id: UUID, chain: str, head: Head, event: Event, salt: bytes) -> Link:
    """Put an event behind `head`."""
    recorded_at = max(event.occurred_at, head.recorded_at)
    sequence = head.sequence + 1
    row: dict[str, object] = {
        "chain": chain,
        "sequence": sequence,
        "event": event.name,
        "occurred_at": rfc3339(event.occurred_at),
        "actor": {"subject": event.subject, "roles": list(event.roles)},
        **event.facts,
        "previous_hash": head.hash,
    }
    if event.payload is not None:
        row["payload_digest"] = payload_digest(salt, event.payload)
    body = canonical(row)
    row_hash = digest_text(body)
    columns: dict[str, object] = {
        "tenant_id": tenant_id,
        "recorded_at": recorded_at,
        "sequence": sequence,
        "event": event.name,
        "previous_hash": head.hash,
        "hash": row_hash,
        "subject": event.subject,
    }
    for name in (
        "session_id",
        "task_id",
        "tool",
        "resources",
        "decision_id",
        "approval_id",
        "decision",
        "reason",
        "refused_by",
        "risk_score",
    ):
        columns[name] = event.facts.get(name)
    columns["policy_version"] = event.facts.get("policy_version")
    after = Head(sequence, row_hash, recorded_at, head.authority_version)
    return Link(columns, body, event.payload, salt if event.payload is not None else None, after)

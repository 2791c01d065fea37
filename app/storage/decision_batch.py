"""The decision transaction's round trips: values in, one SQL function each, values out (migrations/sql/0001_functions.sql).

No rule lives here. What comes back is checked to belong to a tenant of the batch: row level security is the second lock, not the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import jiter

from app.domain.canonical import canonical

FACTS_ROLE = "placet_facts"
SANDBOX_ROLE = "placet_sandbox"
SANDBOX_LOCK_TIMEOUT_MS = 200


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """A call id to claim; `accounts` are what to lock if the call is to be decided."""

    index: int
    tenant_id: UUID
    subject: str
    session_id: str
    call_id: str
    digest: str
    accounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """The approval that a call id waits for, and what it is bound to."""

    approval_id: UUID
    expires_at: datetime
    bound_digest: str
    effects_digest: str | None
    policy_digest: str
    state_version: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """A call id that was decided before, and the stored decision."""

    digest: str
    attempt: int
    settled: bool
    decision_id: UUID
    sequence: int
    hash: str
    payload: str | None
    approval: PendingApproval | None


@dataclass(frozen=True, slots=True)
class Opened:
    """What the first round trip found; an index in neither `claimed` nor `known` came with another subject's session."""

    authority: Mapping[UUID, int]
    claimed: frozenset[int]
    known: Mapping[int, Known]
    accounts: Mapping[tuple[UUID, str], tuple[str | None, int, int]]


async def open_batch(connection: asyncpg.Connection, asks: Sequence[ClaimAsk]) -> Opened:
    """Claim call ids and lock the accounts of the calls that are to be decided."""
    calls = [
        {"i": a.index, "tenant": str(a.tenant_id), "subject": a.subject, "session": a.session_id, "call": a.call_id, "digest": a.digest}
        for a in asks
    ]
    accounts = [{"i": a.index, "tenant": str(a.tenant_id), "account": account} for a in asks for account in a.accounts]
    text = await connection.fetchval("SELECT placet.open_batch($1::jsonb, $2::jsonb)", json.dumps(calls), json.dumps(accounts))
    found = json.loads(text)
    tenants = {a.tenant_id for a in asks}
    authority = {UUID(tenant): version for tenant, version in found["authority"]}
    locked = {(UUID(tenant), account): (unit, held, spent) for tenant, account, unit, held, spent in found["accounts"]}
    assert set(authority) <= tenants and {tenant for tenant, _ in locked} <= tenants, "rows of a tenant that isn't in the batch"
    known = {
        each["i"]: Known(
            each["digest"],
            each["attempt"],
            each["settled"],
            UUID(each["decision_id"]),
            each["sequence"],
            each["hash"],
            each["payload"],
            _pending(each["approval"]),
        )
        for each in found["known"]
    }
    return Opened(authority, frozenset(found["claimed"]), known, locked)


def _pending(found: Mapping[str, Any] | None) -> PendingApproval | None:
    if found is None:
        return None
    return PendingApproval(
        UUID(found["approval_id"]),
        datetime.fromisoformat(found["expires_at"]),
        found["bound_digest"],
        found["effects_digest"],
        found["policy_digest"],
        found["state_version"],
    )


@dataclass(frozen=True, slots=True)
class HistoryAsk:
    index: int
    name: str
    tenant_id: UUID
    key: str  # hex
    since: datetime
    statuses: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefusalsAsk:
    index: int
    tenant_id: UUID
    session_id: str
    task_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class FactsAsk:
    """The facts of one call: by the fact's name, the SQL and the values of its one jsonb parameter."""

    index: int
    tenant: str
    facts: Mapping[str, tuple[str, Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class FactsFound:
    """A call's rows by fact, or the SQLSTATE that stopped it."""

    rows: Mapping[str, Mapping[str, object] | None]
    failed: str | None


@dataclass(frozen=True, slots=True)
class Read:
    """`facts` lacks the calls that weren't reached because one before them timed out."""

    history: Mapping[tuple[int, str], int]
    refusals: Mapping[int, Mapping[str, int]]
    facts: Mapping[int, FactsFound]


async def read_facts(
    connection: asyncpg.Connection, history: Sequence[HistoryAsk], refusals: Sequence[RefusalsAsk], facts: Sequence[FactsAsk]
) -> Read:
    """Read what the rules need, every call's facts in a subtransaction of its own."""
    queries: dict[str, str] = {}
    names: dict[str, str] = {}
    wanted = []
    for ask in facts:
        each = []
        for name, (sql, _) in ask.facts.items():
            query = names.setdefault(sql, str(len(names)))
            queries[query] = sql
            each.append({"name": name, "query": query})
        wanted.append(
            {"i": ask.index, "tenant": ask.tenant, "facts": each, "binds": {name: binds for name, (_, binds) in ask.facts.items()}}
        )
    text = await connection.fetchval(
        "SELECT placet.read_facts($1::jsonb, $2::jsonb, $3::jsonb, $4::jsonb, $5)",
        json.dumps(
            [
                {
                    "i": h.index,
                    "name": h.name,
                    "tenant": str(h.tenant_id),
                    "key": h.key,
                    "since": h.since.isoformat(),
                    "statuses": sorted(h.statuses),
                }
                for h in history
            ]
        ),
        json.dumps(
            [{"i": r.index, "tenant": str(r.tenant_id), "session": r.session_id, "task": r.task_id, "tool": r.tool} for r in refusals]
        ),
        json.dumps(queries),
        canonical(wanted),
        FACTS_ROLE,
    )
    found = jiter.from_json(text.encode(), float_mode="decimal")
    counted: dict[int, dict[str, int]] = {}
    for index, rule, times in found["refusals"]:
        counted.setdefault(index, {})[rule] = times
    return Read(
        {(index, name): count for index, name, count in found["history"]},
        counted,
        {each["i"]: FactsFound(each.get("rows", {}), each.get("failed")) for each in found["facts"]},
    )


@dataclass(frozen=True, slots=True)
class DryRunAsk:
    """The effects of one call to try: its plan's statements and the values of each one's parameter."""

    index: int
    tenant: str
    statements: tuple[str, ...]
    binds: tuple[Mapping[str, object], ...]


async def dry_run(connection: asyncpg.Connection, asks: Sequence[DryRunAsk]) -> Mapping[int, Mapping[str, object]]:
    """Try effects and roll them back; the raw findings by index. A call that isn't there was not reached before a time-out."""
    plans: dict[tuple[str, ...], str] = {}
    calls = [
        {"i": a.index, "tenant": a.tenant, "plan": plans.setdefault(a.statements, str(len(plans))), "binds": list(a.binds)} for a in asks
    ]
    text = await connection.fetchval(
        "SELECT placet.dry_run($1::jsonb, $2::jsonb, $3, $4)",
        json.dumps({name: list(statements) for statements, name in plans.items()}),
        canonical(calls),
        SANDBOX_ROLE,
        SANDBOX_LOCK_TIMEOUT_MS,
    )
    return {each["i"]: each for each in jiter.from_json(text.encode(), float_mode="decimal")}


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a tenant's chain."""

    sequence: int
    hash: str
    recorded_at: datetime
    authority_version: int


async def lock_heads(connection: asyncpg.Connection, tenants: Sequence[UUID]) -> Mapping[UUID, Head]:
    """Lock the chain heads of `tenants`, in their order; nothing is locked after this."""
    rows = await connection.fetch("SELECT * FROM placet.lock_heads($1)", sorted(tenants))
    heads = {row["tenant_id"]: Head(row["sequence"], row["hash"], row["recorded_at"], row["authority_version"]) for row in rows}
    assert set(heads) <= set(tenants), "rows of a tenant that isn't in the batch"
    return heads


@dataclass(slots=True)
class BatchWrite:
    """What the one write stores: lists of column values by table, and the long texts of the audit rows beside them."""

    rows: dict[str, list[dict[str, object]]]
    bodies: list[str]
    payloads: list[str | None]
    salts: list[bytes | None]

    def add(self, table: str, row: dict[str, object]) -> None:
        self.rows.setdefault(table, []).append(row)


async def record_batch(connection: asyncpg.Connection, write: BatchWrite) -> None:
    """Store all that the batch decided."""
    assert len(write.bodies) == len(write.payloads) == len(write.salts) == len(write.rows.get("audit", []))
    await connection.execute(
        "SELECT placet.record_batch($1::jsonb, $2, $3, $4)", json.dumps(write.rows, default=str), write.bodies, write.payloads, write.salts
    )

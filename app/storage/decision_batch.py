"""The decision transaction's round trips: values in, one SQL function each, values out (migrations/sql/0001_functions.sql).

No rule lives here. What comes back is checked to belong to a tenant of the batch: row level security is the second lock, not the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import jiter

from app.domain.canonical import normalise_number
from app.encoding import json_text

FACTS_ROLE = "placet_facts"
SANDBOX_ROLE = "placet_sandbox"
SANDBOX_LOCK_TIMEOUT_MS = 200
AUTHORITY_MOVED = "PL002"
"""The SQLSTATE of a write whose tenant's keys or policy changed since its calls were prepared."""

Prepared = Mapping[str, str]
"""SQL -> `@` and the name of the statement that the connection has prepared of it."""


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
    task_id: str | None
    on_behalf_of_id: str | None
    segment: str | None


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
        {"i": a.index, "tenant": a.tenant_id, "subject": a.subject, "session": a.session_id, "call": a.call_id, "digest": a.digest}
        for a in asks
    ]
    accounts = [{"i": a.index, "tenant": a.tenant_id, "account": account} for a in asks for account in a.accounts]
    text = await connection.fetchval("SELECT placet.open_batch($1::jsonb, $2::jsonb)", json_text(calls), json_text(accounts))
    found = jiter.from_json(text.encode())
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
        found["task_id"],
        found["on_behalf_of_id"],
        found["segment"],
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
    connection: asyncpg.Connection,
    history: Sequence[HistoryAsk],
    refusals: Sequence[RefusalsAsk],
    facts: Sequence[FactsAsk],
    prepared: Prepared,
) -> Read:
    """Read what the rules need, every call's facts in a subtransaction of its own."""
    queries: dict[str, str] = {}
    names: dict[str, str] = {}
    wanted = []
    for ask in facts:
        each = []
        for name, (sql, _) in ask.facts.items():
            query = names.get(sql)
            if query is None:
                query = names[sql] = str(len(names))
                queries[query] = prepared.get(sql, sql)
            each.append({"name": name, "query": query})
        binds = {name: values for name, (_, values) in ask.facts.items()}
        wanted.append({"i": ask.index, "tenant": ask.tenant, "facts": each, "binds": binds})
    text = await connection.fetchval(
        "SELECT placet.read_facts($1::jsonb, $2::jsonb, $3::jsonb, $4::jsonb, $5)",
        json_text(
            [
                {
                    "i": h.index,
                    "name": h.name,
                    "tenant": h.tenant_id,
                    "key": h.key,
                    "since": h.since.isoformat(),
                    "statuses": sorted(h.statuses),
                }
                for h in history
            ]
        ),
        json_text([{"i": r.index, "tenant": r.tenant_id, "session": r.session_id, "task": r.task_id, "tool": r.tool} for r in refusals]),
        json_text(queries),
        json_text(wanted),
        FACTS_ROLE,
    )
    found = jiter.from_json(text.encode(), float_mode="decimal")
    counted: dict[int, dict[str, int]] = {}
    for index, rule, times in found["refusals"]:
        counted.setdefault(index, {})[rule] = times
    return Read(
        {(index, name): count for index, name, count in found["history"]},
        counted,
        {each["i"]: FactsFound(_normalised(each.get("rows", {})), each.get("failed")) for each in found["facts"]},
    )


@dataclass(frozen=True, slots=True)
class CountedTables:
    """The tables whose rows a dry run counts."""

    ids: list[int]
    names: list[str]


async def counted_tables(connection: asyncpg.Connection) -> CountedTables:
    row = await connection.fetchrow("SELECT ids, names FROM placet.counted_tables()")
    assert row is not None
    return CountedTables(row["ids"], row["names"])


@dataclass(frozen=True, slots=True)
class DryRunAsk:
    """The effects of one call to try: its plan's statements and the values of each one's parameter."""

    index: int
    tenant: str
    statements: tuple[str, ...]
    binds: tuple[Mapping[str, object], ...]


async def dry_run(
    connection: asyncpg.Connection, asks: Sequence[DryRunAsk], prepared: Prepared, tables: CountedTables
) -> Mapping[int, Mapping[str, object]]:
    """Try effects and roll them back; the raw findings by index. A call that isn't there was not reached before a time-out.

    A trigger with its owner's rights can take a session's lock, which no rollback gives back: so all are given back with the answer.
    """
    plans: dict[tuple[str, ...], str] = {}
    calls = [
        {"i": a.index, "tenant": a.tenant, "plan": plans.setdefault(a.statements, str(len(plans))), "binds": list(a.binds)} for a in asks
    ]
    text = await connection.fetchval(
        "SELECT placet.dry_run($1::jsonb, $2::jsonb, $3, $4, $5, $6), pg_advisory_unlock_all()",
        json_text({name: [prepared.get(sql, sql) for sql in statements] for statements, name in plans.items()}),
        json_text(calls),
        SANDBOX_ROLE,
        SANDBOX_LOCK_TIMEOUT_MS,
        tables.ids,
        tables.names,
    )
    return {each["i"]: _normalised(each) for each in jiter.from_json(text.encode(), float_mode="decimal")}


def _normalised(value: Any) -> Any:
    """Give rows with every number by its value: 129.90 is 129.9, and 60.00 is 60."""
    if isinstance(value, dict):
        return {name: _normalised(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_normalised(each) for each in value]
    return normalise_number(value) if isinstance(value, Decimal) else value


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a tenant's chain."""

    sequence: int
    hash: str
    recorded_at: datetime
    authority_version: int


@dataclass(slots=True)
class BatchWrite:
    """What the one write stores, ordered by tenant: rows by table, and of every new decision its tenant, the version of the authority that
    it was made under, its moment, the audit row's text around previous hash and sequence, and its payload with salt."""

    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    tenants: list[UUID] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    happened: list[datetime] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)
    salts: list[bytes] = field(default_factory=list)

    def add(self, table: str, row: dict[str, object]) -> None:
        self.rows.setdefault(table, []).append(row)


async def record_batch(connection: asyncpg.Connection, write: BatchWrite) -> list[tuple[int, str]]:
    """Store all that the batch decided; give each decision's sequence and hash in the chain.

    Raises:
        asyncpg.PostgresError: among others with SQLSTATE AUTHORITY_MOVED, its detail a tenant's id.
    """
    assert write.tenants == sorted(write.tenants), "heads are locked in the order of the tenants"
    rows = await connection.fetch(
        "SELECT sequence, hash FROM placet.record_batch($1::jsonb, $2, $3, $4, $5, $6, $7, $8, $9)",
        json_text(write.rows),
        write.tenants,
        write.versions,
        write.happened,
        write.before,
        write.between,
        write.after,
        write.payloads,
        write.salts,
    )
    return [(row["sequence"], row["hash"]) for row in rows]

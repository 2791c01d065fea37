"""The tables as SQLAlchemy Core knows them, for the statements that aren't on the decision path.

The migrations make the tables; a test holds this file against what they made. Every tenant table's key begins with tenant_id.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Integer, LargeBinary, MetaData, Numeric, Table, Text, Uuid, and_
from sqlalchemy.dialects.postgresql import ARRAY

METADATA = MetaData(schema="placet")


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


TENANTS = Table(
    "tenants",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    _text("name"),
    Column("follows_directory", Boolean, nullable=False),
    Column("active_policy_version", Integer),
    _time("created_at"),
)
API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("secret_sha256", LargeBinary, nullable=False),
    _text("subject"),
    _text("owner"),
    Column("roles", ARRAY(Text), nullable=False),
    Column("segments", ARRAY(Text), nullable=False),
    Column("bootstrap", Boolean, nullable=False),
    _text("created_by"),
    _time("created_at"),
    _time("expires_at"),
    _time("revoked_at", nullable=True),
    Column("requests_per_minute", Integer),
    Column("concurrent_requests", Integer),
)
POLICY_VERSIONS = Table(
    "policy_versions",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("version", Integer, primary_key=True),
    _text("name"),
    _text("digest"),
    _text("files"),
    _text("created_by"),
    _time("created_at"),
)
CHAIN_HEADS = Table(
    "chain_heads",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    _text("hash"),
    _time("recorded_at"),
    Column("authority_version", BigInteger, nullable=False),
)
DECISIONS = Table(
    "decisions",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("decision_id", Uuid, primary_key=True),
    _text("kind"),
    _text("subject"),
    _text("session_id"),
    _text("task_id", nullable=True),
    _text("call_id"),
    Column("attempt", BigInteger, nullable=False),
    _text("tool"),
    _text("decision"),
    _text("reason"),
    _text("refused_by", nullable=True),
    _text("status"),
    Column("policy_version", Integer),
    _time("decided_at"),
    _time("recorded_at"),
    Column("sequence", BigInteger, nullable=False),
    _text("resource", nullable=True),
    Column("risk_score", Numeric(5, 4)),
)
CALL_KEYS = Table(
    "call_keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("decided_at", DateTime(timezone=True), primary_key=True),
    Column("decision_id", Uuid, primary_key=True),
)
APPROVALS = Table(
    "approvals",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("approval_id", Uuid, primary_key=True),
    _text("kind"),
    _text("status"),
    Column("decision_id", Uuid, nullable=False),
    _text("requested_by"),
    _text("requested_by_owner"),
    _text("session_id"),
    _text("task_id", nullable=True),
    _text("call_id"),
    _text("tool"),
    _text("scope"),
    _text("bound_digest"),
    _text("effects_digest", nullable=True),
    _text("policy_digest"),
    Column("state_version", BigInteger),
    _text("review"),
    _text("seen_digest"),
    Column("quorum_required", Integer, nullable=False),
    Column("quorum_roles", ARRAY(Text), nullable=False),
    _text("on_expiry"),
    _time("created_at"),
    _time("expires_at"),
)
AUDIT_ROWS = Table(
    "audit_rows",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("recorded_at", DateTime(timezone=True), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    _text("event"),
    _text("body"),
    _text("previous_hash"),
    _text("hash"),
    _text("subject", nullable=True),
    _text("session_id", nullable=True),
    _text("task_id", nullable=True),
    _text("tool", nullable=True),
    Column("resources", ARRAY(Text)),
    Column("decision_id", Uuid),
    Column("approval_id", Uuid),
    _text("decision", nullable=True),
    _text("reason", nullable=True),
    _text("refused_by", nullable=True),
    Column("risk_score", Numeric(5, 4)),
    Column("policy_version", Integer),
)
AUDIT_PAYLOADS = Table(
    "audit_payloads",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("recorded_at", DateTime(timezone=True), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("salt", LargeBinary),
    _text("body", nullable=True),
    _time("erased_at", nullable=True),
)
AUDIT_CHECKPOINTS = Table(
    "audit_checkpoints",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("checkpoint_id", Uuid, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    _text("hash"),
    _time("signed_at"),
    _text("kid"),
    _text("token"),
)
FREEZES = Table(
    "freezes",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("freeze_id", Uuid, primary_key=True),
    _text("target_kind"),
    _text("target"),
    _text("reason"),
    Column("by_platform", Boolean, nullable=False),
    _text("created_by"),
    _time("created_at"),
    _time("lifted_at", nullable=True),
    _text("lifted_by", nullable=True),
)
IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("idempotency_key", Text, primary_key=True),
    _text("route"),
    _text("body_digest"),
    Column("answer_status", Integer),
    _text("answer", nullable=True),
    _time("created_at"),
)

ROW_OF_DECISION = and_(
    AUDIT_ROWS.c.tenant_id == DECISIONS.c.tenant_id,
    AUDIT_ROWS.c.recorded_at == DECISIONS.c.recorded_at,
    AUDIT_ROWS.c.sequence == DECISIONS.c.sequence,
)
PAYLOAD_OF_DECISION = and_(
    AUDIT_PAYLOADS.c.tenant_id == DECISIONS.c.tenant_id,
    AUDIT_PAYLOADS.c.recorded_at == DECISIONS.c.recorded_at,
    AUDIT_PAYLOADS.c.sequence == DECISIONS.c.sequence,
)
"""How a decision finds its audit row and that row's payload: by the partitions' whole key."""

-- The tables of Placet. Every tenant table starts its keys with tenant_id, has row level security that holds for the owner
-- too, and is opened by `app.tenants`, the comma-separated tenants of the running transaction.

CREATE TABLE placet.tenants (
    tenant_id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    follows_directory boolean NOT NULL,
    active_policy_version integer,
    created_at timestamptz NOT NULL
);

CREATE TABLE placet.api_keys (
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
    subject text NOT NULL,
    owner text NOT NULL,
    roles text[] NOT NULL CHECK (cardinality(roles) > 0),
    segments text[] NOT NULL,
    bootstrap boolean NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    PRIMARY KEY (tenant_id, key_id),
    UNIQUE (tenant_id, secret_sha256)
);

CREATE TABLE placet.policy_versions (
    tenant_id uuid NOT NULL,
    version integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    files text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, version)
);

-- One row a tenant: the end of its audit chain, and the version of its authority (keys, policy). Whoever changes authority raises
-- authority_version under this row's lock; a decision that locks the row and finds another version than it read decides again.
CREATE TABLE placet.chain_heads (
    tenant_id uuid PRIMARY KEY,
    sequence bigint NOT NULL,
    hash text NOT NULL,
    recorded_at timestamptz NOT NULL,
    authority_version bigint NOT NULL
) WITH (fillfactor = 10); -- a row is updated by every batch

CREATE TABLE placet.sessions (
    tenant_id uuid NOT NULL,
    session_id text NOT NULL,
    subject text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id)
);

-- One row a call id; it is what serialises retries of one call. decision_id is null only while the claiming transaction is open.
CREATE TABLE placet.claims (
    tenant_id uuid NOT NULL,
    session_id text NOT NULL,
    call_id text NOT NULL,
    call_digest text NOT NULL,
    attempt bigint NOT NULL,
    settled boolean NOT NULL,
    decision_id uuid,
    approval_id uuid,
    PRIMARY KEY (tenant_id, session_id, call_id)
) WITH (fillfactor = 50); -- each row is updated once, in the transaction that makes it: on its own page, no index is touched

-- Neutral to their kind: tool calls now, meta-requests later. What was asked and answered is in audit_payloads.
CREATE TABLE placet.decisions (
    tenant_id uuid NOT NULL,
    decision_id uuid NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    session_id text NOT NULL,
    task_id text,
    call_id text NOT NULL,
    attempt bigint NOT NULL,
    tool text NOT NULL,
    decision text NOT NULL,
    reason text NOT NULL,
    refused_by text,
    status text NOT NULL,
    policy_version integer,
    decided_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (tenant_id, decision_id)
);

-- What history queries count: one row for every (tool, arguments to match) that a policy names.
CREATE TABLE placet.call_keys (
    tenant_id uuid NOT NULL,
    key bytea NOT NULL,
    decided_at timestamptz NOT NULL,
    decision_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, key, decided_at, decision_id)
);

CREATE TABLE placet.rule_refusals (
    tenant_id uuid NOT NULL,
    session_id text NOT NULL,
    task_id text NOT NULL,
    tool text NOT NULL,
    rule text NOT NULL,
    refusals bigint NOT NULL,
    PRIMARY KEY (tenant_id, session_id, task_id, tool, rule)
);

-- held and spent are sums of the holds rows. The first hold fixes the unit; until then the row is only there to be locked.
CREATE TABLE placet.accounts (
    tenant_id uuid NOT NULL,
    account text NOT NULL,
    unit text,
    held bigint NOT NULL CHECK (held >= 0),
    spent bigint NOT NULL CHECK (spent >= 0),
    PRIMARY KEY (tenant_id, account)
) WITH (fillfactor = 50);

CREATE TABLE placet.holds (
    tenant_id uuid NOT NULL,
    hold_id uuid NOT NULL,
    decision_id uuid NOT NULL,
    account text NOT NULL,
    unit text NOT NULL,
    quantity bigint NOT NULL CHECK (quantity >= 0),
    status text NOT NULL CHECK (status IN ('held', 'spent', 'released')),
    created_at timestamptz NOT NULL,
    outcome_due_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, hold_id)
);
CREATE INDEX holds_of_decision ON placet.holds (tenant_id, decision_id);
CREATE INDEX holds_of_account ON placet.holds (tenant_id, account);

CREATE TABLE placet.approvals (
    tenant_id uuid NOT NULL,
    approval_id uuid NOT NULL,
    kind text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'approved', 'refused', 'expired', 'cancelled', 'spent', 'void')),
    decision_id uuid NOT NULL,
    requested_by text NOT NULL,
    requested_by_owner text NOT NULL,
    session_id text NOT NULL,
    task_id text,
    on_behalf_of_id text,
    segment text,
    call_id text NOT NULL,
    tool text NOT NULL,
    scope text NOT NULL,
    bound_digest text NOT NULL,
    effects_digest text,
    policy_digest text NOT NULL,
    state_version bigint,
    review text NOT NULL,
    seen_digest text NOT NULL,
    quorum_required integer NOT NULL CHECK (quorum_required > 0),
    quorum_roles text[] NOT NULL CHECK (cardinality(quorum_roles) > 0),
    on_expiry text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, approval_id)
);
CREATE INDEX approvals_pending ON placet.approvals (tenant_id, expires_at) WHERE status = 'pending';

-- The chain. `body` is the canonical text that was hashed; the columns beside it are copies to search by.
CREATE TABLE placet.audit_rows (
    tenant_id uuid NOT NULL,
    recorded_at timestamptz NOT NULL,
    sequence bigint NOT NULL,
    event text NOT NULL,
    body text NOT NULL,
    previous_hash text NOT NULL,
    hash text NOT NULL,
    subject text,
    session_id text,
    task_id text,
    tool text,
    resources text[],
    decision_id uuid,
    approval_id uuid,
    decision text,
    reason text,
    refused_by text,
    risk_score numeric(5, 4),
    policy_version integer,
    PRIMARY KEY (tenant_id, recorded_at, sequence)
) PARTITION BY RANGE (recorded_at);

-- What a row's payload_digest is over. Erasable, so no foreign key and no part in the chain but its salted digest.
CREATE TABLE placet.audit_payloads (
    tenant_id uuid NOT NULL,
    recorded_at timestamptz NOT NULL,
    sequence bigint NOT NULL,
    salt bytea,
    body text,
    erased_at timestamptz,
    PRIMARY KEY (tenant_id, recorded_at, sequence)
) PARTITION BY RANGE (recorded_at);

CREATE TABLE placet.audit_checkpoints (
    tenant_id uuid NOT NULL,
    checkpoint_id uuid NOT NULL,
    sequence bigint NOT NULL,
    hash text NOT NULL,
    signed_at timestamptz NOT NULL,
    kid text NOT NULL,
    token text NOT NULL,
    PRIMARY KEY (tenant_id, checkpoint_id)
);
CREATE INDEX audit_checkpoints_in_order ON placet.audit_checkpoints (tenant_id, sequence);

-- The stored answers of other POSTs, by Idempotency-Key.
CREATE TABLE placet.idempotency_keys (
    tenant_id uuid NOT NULL,
    subject text NOT NULL,
    idempotency_key text NOT NULL,
    route text NOT NULL,
    body_digest text NOT NULL,
    answer_status integer,
    answer text,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, subject, idempotency_key)
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tenants', 'api_keys', 'policy_versions', 'chain_heads', 'sessions', 'claims', 'decisions', 'call_keys',
        'rule_refusals', 'accounts', 'holds', 'approvals', 'audit_rows', 'audit_payloads', 'audit_checkpoints', 'idempotency_keys']
    LOOP
        EXECUTE format('ALTER TABLE placet.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE placet.%I FORCE ROW LEVEL SECURITY', name);
        -- the sub-select is evaluated once a statement, not once a row
        EXECUTE format($policy$
            CREATE POLICY tenants_of_the_transaction ON placet.%I
            USING (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]))
            WITH CHECK (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]))
            $policy$, name);
    END LOOP;
END
$$;

-- The owner migrates, hands the served bundle to every tenant and counts for the metrics, so it may read these; the service's role may not.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tenants', 'chain_heads', 'approvals', 'holds'] LOOP
        EXECUTE format('CREATE POLICY owner_reads ON placet.%I FOR SELECT TO %I USING (true)', name, current_user);
    END LOOP;
END
$$;

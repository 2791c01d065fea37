-- What auditors search decisions by (SPEC 10.4). Each index ends in `sequence`, the order of the pages, so that a page is read from one index and
-- stops when it is full; `storage/decision_history` chooses the index and bounds what is read behind it.

ALTER TABLE placet.decisions ADD COLUMN resource text, ADD COLUMN risk_score numeric(5, 4);

-- row level security holds for the owner as well, and no tenant is named here
ALTER TABLE placet.decisions NO FORCE ROW LEVEL SECURITY;
ALTER TABLE placet.audit_rows NO FORCE ROW LEVEL SECURITY;
UPDATE placet.decisions d SET resource = r.resources[1], risk_score = r.risk_score
FROM placet.audit_rows r
WHERE r.tenant_id = d.tenant_id AND r.recorded_at = d.recorded_at AND r.sequence = d.sequence
  AND (r.resources IS NOT NULL OR r.risk_score IS NOT NULL);
ALTER TABLE placet.decisions FORCE ROW LEVEL SECURITY;
ALTER TABLE placet.audit_rows FORCE ROW LEVEL SECURITY;

CREATE INDEX decisions_in_order ON placet.decisions (tenant_id, sequence);
CREATE INDEX decisions_of_session ON placet.decisions (tenant_id, session_id, sequence);
CREATE INDEX decisions_of_task ON placet.decisions (tenant_id, task_id, sequence) WHERE task_id IS NOT NULL;
CREATE INDEX decisions_of_resource ON placet.decisions (tenant_id, resource, sequence) WHERE resource IS NOT NULL;
CREATE INDEX decisions_of_subject ON placet.decisions (tenant_id, subject, sequence);
CREATE INDEX decisions_with_reason ON placet.decisions (tenant_id, reason, sequence);
CREATE INDEX decisions_of_tool ON placet.decisions (tenant_id, tool, sequence);

-- The one write. rows: {decisions, claims, call_keys, refusals, accounts, holds, approvals, void, audit}, lists of objects. `decisions` and
-- `audit` have a row each for every new decision, in the order of the arrays beside them, which is by tenant; a decision names its place, n.
-- Last of all the chain heads are locked, one after the other, each tenant's authority is compared with the version that was decided under
-- (SQLSTATE PL002 where it moved), and the rows are chained: an audit row's text is before || previous hash || between || sequence || after.
-- Answers the sequence and the hash of every row.
CREATE OR REPLACE FUNCTION placet.record_batch(rows jsonb, tenants uuid[], versions bigint[], happened timestamptz[], text_before text[], text_between text[],
    text_after text[], payloads text[], salts bytea[]) RETURNS TABLE (sequence bigint, hash text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head record;
    tenant uuid;
    last_sequence bigint;
    last_hash text;
    last_recorded timestamptz;
    body text;
    bodies text[] := '{}';
    sequences bigint[] := '{}';
    previous text[] := '{}';
    hashes text[] := '{}';
    recorded timestamptz[] := '{}';
BEGIN
    IF rows ? 'claims' THEN
        UPDATE placet.claims k SET attempt = c.attempt, settled = c.settled, decision_id = c.decision_id, approval_id = c.approval_id
        FROM jsonb_to_recordset(rows -> 'claims') AS c(tenant_id uuid, session_id text, call_id text, attempt bigint, settled boolean,
            decision_id uuid, approval_id uuid)
        WHERE k.tenant_id = c.tenant_id AND k.session_id = c.session_id AND k.call_id = c.call_id;
    END IF;
    IF rows ? 'call_keys' THEN
        INSERT INTO placet.call_keys (tenant_id, key, decided_at, decision_id)
        SELECT tenant_id, decode(key, 'hex'), decided_at, decision_id
        FROM jsonb_to_recordset(rows -> 'call_keys') AS k(tenant_id uuid, key text, decided_at timestamptz, decision_id uuid);
    END IF;
    IF rows ? 'refusals' THEN
        INSERT INTO placet.rule_refusals AS r (tenant_id, session_id, task_id, tool, rule, refusals)
        SELECT tenant_id, session_id, task_id, tool, rule, count(*)
        FROM jsonb_to_recordset(rows -> 'refusals') AS f(tenant_id uuid, session_id text, task_id text, tool text, rule text)
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (tenant_id, session_id, task_id, tool, rule) DO UPDATE SET refusals = r.refusals + excluded.refusals;
    END IF;
    IF rows ? 'accounts' THEN
        UPDATE placet.accounts t SET held = a.held, unit = a.unit
        FROM jsonb_to_recordset(rows -> 'accounts') AS a(tenant_id uuid, account text, unit text, held bigint)
        WHERE t.tenant_id = a.tenant_id AND t.account = a.account;
        INSERT INTO placet.holds (tenant_id, hold_id, decision_id, account, unit, quantity, status, created_at, outcome_due_at)
        SELECT * FROM jsonb_to_recordset(rows -> 'holds') AS h(tenant_id uuid, hold_id uuid, decision_id uuid, account text, unit text,
            quantity bigint, status text, created_at timestamptz, outcome_due_at timestamptz);
    END IF;
    IF rows ? 'void' THEN
        UPDATE placet.approvals p SET status = 'void'
        FROM jsonb_to_recordset(rows -> 'void') AS v(tenant_id uuid, approval_id uuid)
        WHERE p.tenant_id = v.tenant_id AND p.approval_id = v.approval_id AND p.status = 'pending';
    END IF;
    IF rows ? 'approvals' THEN
        INSERT INTO placet.approvals (tenant_id, approval_id, kind, status, decision_id, requested_by, requested_by_owner, session_id, task_id,
            on_behalf_of_id, segment, call_id, tool, scope, bound_digest, effects_digest, policy_digest, state_version, review, seen_digest, quorum_required,
            quorum_roles, on_expiry, created_at, expires_at)
        SELECT * FROM jsonb_to_recordset(rows -> 'approvals') AS p(tenant_id uuid, approval_id uuid, kind text, status text, decision_id uuid,
            requested_by text, requested_by_owner text, session_id text, task_id text, on_behalf_of_id text, segment text, call_id text, tool text, scope text,
            bound_digest text,
            effects_digest text, policy_digest text, state_version bigint, review text, seen_digest text, quorum_required int,
            quorum_roles text[], on_expiry text, created_at timestamptz, expires_at timestamptz);
    END IF;

    FOR n IN 1 .. array_length(tenants, 1) LOOP
        IF tenant IS DISTINCT FROM tenants[n] THEN
            IF tenant IS NOT NULL THEN
                UPDATE placet.chain_heads h SET sequence = last_sequence, hash = last_hash, recorded_at = last_recorded WHERE h.tenant_id = tenant;
            END IF;
            tenant := tenants[n];
            SELECT h.sequence, h.hash, h.recorded_at, h.authority_version INTO head
            FROM placet.chain_heads h WHERE h.tenant_id = tenant FOR UPDATE;
            IF head.authority_version IS DISTINCT FROM versions[n] THEN
                RAISE EXCEPTION 'placet: the authority moved' USING ERRCODE = 'PL002', DETAIL = tenant::text;
            END IF;
            last_sequence := head.sequence;
            last_hash := head.hash;
            last_recorded := head.recorded_at;
        END IF;
        last_sequence := last_sequence + 1;
        last_recorded := greatest(last_recorded, happened[n]);
        previous := previous || last_hash;
        body := text_before[n] || last_hash || text_between[n] || last_sequence::text || text_after[n];
        last_hash := 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex');
        bodies := bodies || body;
        sequences := sequences || last_sequence;
        hashes := hashes || last_hash;
        recorded := recorded || last_recorded;
    END LOOP;
    UPDATE placet.chain_heads h SET sequence = last_sequence, hash = last_hash, recorded_at = last_recorded WHERE h.tenant_id = tenant;

    INSERT INTO placet.decisions (tenant_id, decision_id, kind, subject, session_id, task_id, call_id, attempt, tool, decision, reason,
        refused_by, status, policy_version, decided_at, recorded_at, sequence, resource, risk_score)
    SELECT d.tenant_id, d.decision_id, d.kind, d.subject, d.session_id, d.task_id, d.call_id, d.attempt, d.tool, d.decision, d.reason,
        d.refused_by, d.status, d.policy_version, d.decided_at, recorded[d.n], sequences[d.n], d.resource, d.risk_score
    FROM jsonb_to_recordset(rows -> 'decisions') AS d(n int, tenant_id uuid, decision_id uuid, kind text, subject text, session_id text,
        task_id text, call_id text, attempt bigint, tool text, decision text, reason text, refused_by text, status text, policy_version int,
        decided_at timestamptz, resource text, risk_score numeric);

    INSERT INTO placet.audit_rows (tenant_id, recorded_at, sequence, event, body, previous_hash, hash, subject, session_id, task_id, tool,
        resources, decision_id, approval_id, decision, reason, refused_by, risk_score, policy_version)
    SELECT tenants[a.n], recorded[a.n], sequences[a.n], a.event, bodies[a.n], previous[a.n], hashes[a.n], a.subject, a.session_id, a.task_id,
        a.tool, a.resources, a.decision_id, a.approval_id, a.decision, a.reason, a.refused_by, a.risk_score, a.policy_version
    FROM jsonb_to_recordset(rows -> 'audit') AS a(n int, event text, subject text, session_id text, task_id text, tool text, resources text[],
        decision_id uuid, approval_id uuid, decision text, reason text, refused_by text, risk_score numeric, policy_version int);

    INSERT INTO placet.audit_payloads (tenant_id, recorded_at, sequence, salt, body)
    SELECT p.tenant_id, p.recorded_at, p.sequence, p.salt, p.body
    FROM unnest(tenants, recorded, sequences, salts, payloads) AS p(tenant_id, recorded_at, sequence, salt, body);

    RETURN QUERY SELECT p.sequence, p.hash FROM unnest(sequences, hashes) AS p(sequence, hash);
END
$$;

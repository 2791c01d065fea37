-- The decision transaction's round trips, one function each, in the order of docs/transaction.md. They hold no rule: they claim, lock,
-- read, try and write what the engine asks, and answer with values. All are VOLATILE, so that each inner statement has a fresh snapshot.

-- Makes the month partitions from this month to three months ahead; the service may call it but owns no table.
CREATE FUNCTION placet.ensure_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    month date;
    parent text;
    partition text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('placet.ensure_partitions'));
    FOR offset_months IN -1..3 LOOP
        month := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => offset_months))::date;
        FOREACH parent IN ARRAY ARRAY['audit_rows', 'audit_payloads'] LOOP
            partition := parent || '_' || to_char(month, 'YYYY_MM');
            IF to_regclass('placet.' || partition) IS NULL THEN
                EXECUTE format('CREATE TABLE placet.%I PARTITION OF placet.%I FOR VALUES FROM (%L) TO (%L)', partition, parent,
                    month::timestamp AT TIME ZONE 'UTC', (month + interval '1 month') AT TIME ZONE 'UTC');
                EXECUTE format('ALTER TABLE placet.%I ENABLE ROW LEVEL SECURITY', partition);
                EXECUTE format('ALTER TABLE placet.%I FORCE ROW LEVEL SECURITY', partition);
            END IF;
        END LOOP;
    END LOOP;
END
$$;

-- Claims the call ids, then locks the accounts of the calls that are to be decided.
-- calls: [{i, tenant, subject, session, call, digest}]; accounts: [{i, tenant, account}].
-- Answers {authority: [[tenant, version]], claimed: [i], known: [{i, ...}], accounts: [[tenant, account, unit, held, spent]]}. A call that is in
-- neither list came with a session of another subject. The engine sends each (tenant, session, call) once a batch.
CREATE FUNCTION placet.open_batch(calls jsonb, accounts jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    claimed jsonb;
    known jsonb;
    locked jsonb;
    authority jsonb;
    wanted_tenants uuid[];
    wanted_accounts text[];
BEGIN
    INSERT INTO placet.sessions (tenant_id, session_id, subject, created_at)
    SELECT DISTINCT ON (c.tenant, c.session) c.tenant, c.session, c.subject, now()
    FROM jsonb_to_recordset(calls) AS c(i int, tenant uuid, subject text, session text)
    ORDER BY c.tenant, c.session, c.i
    ON CONFLICT DO NOTHING;

    WITH asked AS (
        SELECT c.* FROM jsonb_to_recordset(calls) AS c(i int, tenant uuid, subject text, session text, call text, digest text)
        JOIN placet.sessions s ON s.tenant_id = c.tenant AND s.session_id = c.session AND s.subject = c.subject
    ), inserted AS (
        INSERT INTO placet.claims (tenant_id, session_id, call_id, call_digest, attempt, settled)
        SELECT tenant, session, call, digest, 0, false FROM asked ORDER BY tenant, session, call
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, session_id, call_id
    )
    SELECT coalesce(jsonb_agg(a.i), '[]') INTO claimed
    FROM inserted n JOIN asked a ON a.tenant = n.tenant_id AND a.session = n.session_id AND a.call = n.call_id;

    IF jsonb_array_length(claimed) < jsonb_array_length(calls) THEN
        WITH held AS (
            SELECT c.i, k.*
            FROM jsonb_to_recordset(calls) AS c(i int, tenant uuid, subject text, session text, call text)
            JOIN placet.sessions s ON s.tenant_id = c.tenant AND s.session_id = c.session AND s.subject = c.subject
            JOIN placet.claims k ON k.tenant_id = c.tenant AND k.session_id = c.session AND k.call_id = c.call
            WHERE k.decision_id IS NOT NULL
            ORDER BY c.tenant, c.session, c.call
            FOR UPDATE OF k
        )
        SELECT jsonb_agg(to_jsonb(held)) INTO known FROM held;
        -- a locked row is read afresh, what it joins is not: so the rest in a statement of its own
        SELECT jsonb_agg(jsonb_build_object('i', k.i, 'digest', k.call_digest, 'attempt', k.attempt, 'settled', k.settled,
            'decision_id', k.decision_id, 'sequence', d.sequence, 'hash', r.hash, 'payload', p.body,
            'approval', CASE WHEN a.status = 'pending' THEN jsonb_build_object('approval_id', a.approval_id, 'expires_at', a.expires_at,
                'bound_digest', a.bound_digest, 'effects_digest', a.effects_digest, 'policy_digest', a.policy_digest,
                'state_version', a.state_version, 'task_id', a.task_id, 'on_behalf_of_id', a.on_behalf_of_id, 'segment', a.segment) END))
        INTO known
        FROM jsonb_to_recordset(coalesce(known, '[]')) AS k(i int, tenant_id uuid, call_digest text, attempt bigint, settled boolean,
            decision_id uuid, approval_id uuid)
        LEFT JOIN placet.decisions d ON d.tenant_id = k.tenant_id AND d.decision_id = k.decision_id
        LEFT JOIN placet.audit_rows r ON r.tenant_id = k.tenant_id AND r.recorded_at = d.recorded_at AND r.sequence = d.sequence
        LEFT JOIN placet.audit_payloads p ON p.tenant_id = k.tenant_id AND p.recorded_at = d.recorded_at AND p.sequence = d.sequence
        LEFT JOIN placet.approvals a ON a.tenant_id = k.tenant_id AND a.approval_id = k.approval_id;
    END IF;

    SELECT array_agg(w.tenant ORDER BY w.tenant, w.account), array_agg(w.account ORDER BY w.tenant, w.account)
    INTO wanted_tenants, wanted_accounts
    FROM (SELECT DISTINCT a.tenant, a.account
          FROM jsonb_to_recordset(accounts) AS a(i int, tenant uuid, account text)
          WHERE a.i IN (SELECT value::int FROM jsonb_array_elements_text(claimed))
             OR a.i IN (SELECT (k ->> 'i')::int FROM jsonb_array_elements(coalesce(known, '[]')) k
                        WHERE NOT (k ->> 'settled')::boolean)) w;

    IF wanted_tenants IS NOT NULL THEN
        INSERT INTO placet.accounts (tenant_id, account, held, spent)
        SELECT w.tenant, w.account, 0, 0 FROM unnest(wanted_tenants, wanted_accounts) AS w(tenant, account)
        ORDER BY w.tenant, w.account
        ON CONFLICT DO NOTHING;

        WITH locked_rows AS (
            SELECT t.tenant_id, t.account, t.unit, t.held, t.spent
            FROM unnest(wanted_tenants, wanted_accounts) AS w(tenant, account)
            JOIN placet.accounts t ON t.tenant_id = w.tenant AND t.account = w.account
            ORDER BY t.tenant_id, t.account
            FOR UPDATE OF t
        )
        SELECT jsonb_agg(jsonb_build_array(tenant_id, account, unit, held, spent)) INTO locked FROM locked_rows;
    END IF;

    SELECT coalesce(jsonb_agg(jsonb_build_array(h.tenant_id, h.authority_version)), '[]') INTO authority
    FROM placet.chain_heads h
    WHERE h.tenant_id IN (SELECT DISTINCT c.tenant FROM jsonb_to_recordset(calls) AS c(tenant uuid));

    RETURN jsonb_build_object('authority', authority, 'claimed', claimed, 'known', coalesce(known, '[]'), 'accounts', coalesce(locked, '[]'));
END
$$;

-- Reads what the rules see. history: [{i, name, tenant, key, since, statuses}]; refusals: [{i, tenant, session, task, tool}];
-- queries: {name: sql, or @ and the name of a prepared statement}; facts: [{i, tenant, facts: [{name, query}], binds}], `tenant` here the name that state tables use.
-- Answers {history: [[i, name, count]], refusals: [[i, rule, n]], facts: [{i, rows: {name: row|null}} | {i, failed: sqlstate}]}. Each call's facts are read
-- in a subtransaction as a SELECT-only role, read-only. After a time-out the function stops: the calls that it lists no more were not read.
CREATE FUNCTION placet.read_facts(history jsonb, refusals jsonb, queries jsonb, facts jsonb, facts_role text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    counts jsonb;
    refused jsonb;
    results jsonb[] := '{}';
    wanted jsonb;
    fact jsonb;
    fact_row jsonb;
    fact_rows jsonb;
    number_of_rows bigint;
    query text;
    state text;
    stop boolean := false;
BEGIN
    SELECT coalesce(jsonb_agg(jsonb_build_array(q.i, q.name, (
        SELECT count(*) FROM (
            SELECT 1 FROM placet.call_keys k JOIN placet.decisions d ON d.tenant_id = k.tenant_id AND d.decision_id = k.decision_id
            WHERE k.tenant_id = q.tenant AND k.key = decode(q.key, 'hex') AND k.decided_at >= q.since AND d.status = ANY (q.statuses)
            LIMIT 1000) found))), '[]')
    INTO counts
    FROM jsonb_to_recordset(history) AS q(i int, name text, tenant uuid, key text, since timestamptz, statuses text[]);

    SELECT coalesce(jsonb_agg(jsonb_build_array(q.i, r.rule, r.refusals)), '[]') INTO refused
    FROM jsonb_to_recordset(refusals) AS q(i int, tenant uuid, session text, task text, tool text)
    JOIN placet.rule_refusals r ON r.tenant_id = q.tenant AND r.session_id = q.session AND r.task_id = q.task AND r.tool = q.tool;

    IF jsonb_array_length(facts) > 0 THEN
        BEGIN
            PERFORM set_config('role', facts_role, true), set_config('transaction_read_only', 'on', true);
            FOR wanted IN SELECT value FROM jsonb_array_elements(facts) LOOP
                BEGIN
                    PERFORM set_config('app.tenant', wanted ->> 'tenant', true);
                    fact_rows := '{}';
                    FOR fact IN SELECT value FROM jsonb_array_elements(wanted -> 'facts') LOOP
                        fact_row := NULL;
                        IF current_user <> facts_role THEN  -- whatever the call before it did
                            PERFORM set_config('role', facts_role, true);
                        END IF;
                        query := queries ->> (fact ->> 'query');
                        IF left(query, 1) = '@' THEN
                            EXECUTE format('EXECUTE %I(%L)', substr(query, 2), wanted -> 'binds' -> (fact ->> 'name')) INTO fact_row;
                        ELSE
                            EXECUTE query INTO fact_row USING wanted -> 'binds' -> (fact ->> 'name');
                        END IF;
                        GET DIAGNOSTICS number_of_rows = ROW_COUNT;
                        IF current_user <> facts_role OR current_setting('app.tenant') <> wanted ->> 'tenant' THEN
                            RAISE EXCEPTION 'placet: a fact left its role or tenant' USING ERRCODE = 'insufficient_privilege';
                        END IF;
                        IF number_of_rows > 1 THEN
                            RAISE EXCEPTION 'placet: a fact has one row' USING ERRCODE = 'cardinality_violation';
                        END IF;
                        fact_rows := jsonb_set(fact_rows, ARRAY[fact ->> 'name'], coalesce(fact_row, 'null'), true);
                    END LOOP;
                    results := results || jsonb_build_object('i', wanted -> 'i', 'rows', fact_rows);
                EXCEPTION
                    WHEN query_canceled OR lock_not_available THEN
                        results := results || jsonb_build_object('i', wanted -> 'i', 'failed', '57014');
                        stop := true;
                    WHEN OTHERS THEN
                        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
                        results := results || jsonb_build_object('i', wanted -> 'i', 'failed', state);
                END;
                EXIT WHEN stop;
            END LOOP;
            RAISE EXCEPTION 'placet: read' USING ERRCODE = 'PL001';
        EXCEPTION
            WHEN SQLSTATE 'PL001' THEN NULL;  -- variables survive; the role and the read-only mark don't
        END;
    END IF;
    RETURN jsonb_build_object('history', counts, 'refusals', refused, 'facts', to_jsonb(results));
END
$$;

-- The tables whose rows a dry run counts: every one that isn't Placet's own or the system's.
CREATE FUNCTION placet.counted_tables() RETURNS TABLE (ids oid[], names text[])
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(c.oid ORDER BY c.oid), '{}'), coalesce(array_agg(n.nspname || '.' || c.relname ORDER BY c.oid), '{}')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('placet', 'pg_catalog', 'information_schema', 'pg_toast') AND c.relpersistence <> 't'
$$;

-- Tries each call's effects in a subtransaction that is always rolled back. plans: {name: [sql or @prepared]};
-- calls: [{i, tenant, plan, binds: [..]}]; tables and names: what counted_tables() gave.
-- Answers [{i, rows: [[[old, new], ..] a statement], counts: {table: [inserted, updated, deleted]}} | {i, failed: sqlstate, constraint, table, column}].
-- Counts are of every user table, cascades and triggers included. After a time-out the function stops, as read_facts does.
CREATE FUNCTION placet.dry_run(plans jsonb, calls jsonb, sandbox_role text, lock_timeout_ms integer, tables oid[], names text[])
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    results jsonb[] := '{}';
    wanted jsonb;
    statements jsonb;
    touched jsonb;
    all_touched jsonb;
    query text;
    before_counts bigint[];
    counts jsonb;
    inserted bigint;
    updated bigint;
    deleted bigint;
    state text;
    failed_constraint text;
    failed_table text;
    failed_column text;
    stop boolean := false;
BEGIN
    FOR wanted IN SELECT value FROM jsonb_array_elements(calls) LOOP
        BEGIN
            PERFORM set_config('role', sandbox_role, true), set_config('lock_timeout', lock_timeout_ms::text, true),
                set_config('app.tenant', wanted ->> 'tenant', true);
            SELECT array_agg(c ORDER BY o) INTO before_counts
            FROM unnest(tables) WITH ORDINALITY t(id, o), LATERAL (VALUES
                (3 * o - 2, pg_stat_get_xact_tuples_inserted(id)), (3 * o - 1, pg_stat_get_xact_tuples_updated(id)),
                (3 * o, pg_stat_get_xact_tuples_deleted(id))) v(k, c);
            all_touched := '[]';
            statements := plans -> (wanted ->> 'plan');
            FOR n IN 0 .. jsonb_array_length(statements) - 1 LOOP
                query := statements ->> n;
                IF left(query, 1) = '@' THEN
                    EXECUTE format('EXECUTE %I(%L)', substr(query, 2), wanted -> 'binds' -> n) INTO touched;
                ELSE
                    EXECUTE query INTO touched USING wanted -> 'binds' -> n;
                END IF;
                IF current_user <> sandbox_role OR current_setting('app.tenant') <> wanted ->> 'tenant' THEN
                    RAISE EXCEPTION 'placet: an effect left its role or tenant' USING ERRCODE = 'insufficient_privilege';
                END IF;
                all_touched := all_touched || jsonb_build_array(touched);
            END LOOP;
            SET CONSTRAINTS ALL IMMEDIATE;  -- deferred ones would never fire: there is no COMMIT
            counts := '{}';
            FOR n IN 1 .. coalesce(array_length(tables, 1), 0) LOOP
                inserted := pg_stat_get_xact_tuples_inserted(tables[n]) - before_counts[3 * n - 2];
                updated := pg_stat_get_xact_tuples_updated(tables[n]) - before_counts[3 * n - 1];
                deleted := pg_stat_get_xact_tuples_deleted(tables[n]) - before_counts[3 * n];
                IF inserted + updated + deleted > 0 THEN
                    counts := counts || jsonb_build_object(names[n], jsonb_build_array(inserted, updated, deleted));
                END IF;
            END LOOP;
            results := results || jsonb_build_object('i', wanted -> 'i', 'rows', all_touched, 'counts', counts);
            RAISE EXCEPTION 'placet: tried' USING ERRCODE = 'PL001';
        EXCEPTION
            WHEN SQLSTATE 'PL001' THEN NULL;
            WHEN query_canceled THEN
                results := results || jsonb_build_object('i', wanted -> 'i', 'failed', '57014');
                stop := true;
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, failed_constraint = CONSTRAINT_NAME, failed_table = TABLE_NAME,
                    failed_column = COLUMN_NAME;
                results := results || jsonb_build_object('i', wanted -> 'i', 'failed', state, 'constraint', failed_constraint,
                    'table', failed_table, 'column', failed_column);
        END;
        EXIT WHEN stop;
    END LOOP;
    RETURN to_jsonb(results);
END
$$;

-- The one write. rows: {decisions, claims, call_keys, refusals, accounts, holds, approvals, void, audit}, lists of objects. `decisions` and
-- `audit` have a row each for every new decision, in the order of the arrays beside them, which is by tenant; a decision names its place, n.
-- Last of all the chain heads are locked, one after the other, each tenant's authority is compared with the version that was decided under
-- (SQLSTATE PL002 where it moved), and the rows are chained: an audit row's text is before || previous hash || between || sequence || after.
-- Answers the sequence and the hash of every row.
CREATE FUNCTION placet.record_batch(rows jsonb, tenants uuid[], versions bigint[], happened timestamptz[], text_before text[], text_between text[],
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
        refused_by, status, policy_version, decided_at, recorded_at, sequence)
    SELECT d.tenant_id, d.decision_id, d.kind, d.subject, d.session_id, d.task_id, d.call_id, d.attempt, d.tool, d.decision, d.reason,
        d.refused_by, d.status, d.policy_version, d.decided_at, recorded[d.n], sequences[d.n]
    FROM jsonb_to_recordset(rows -> 'decisions') AS d(n int, tenant_id uuid, decision_id uuid, kind text, subject text, session_id text,
        task_id text, call_id text, attempt bigint, tool text, decision text, reason text, refused_by text, status text, policy_version int,
        decided_at timestamptz);

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

-- Sums over all tenants for the metrics; nothing of one tenant can be told from them.
CREATE FUNCTION placet.platform_gauges() RETURNS TABLE (approvals_waiting bigint, holds_open bigint, chain_rows numeric, policy_version integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT count(*) FROM placet.approvals WHERE status = 'pending' AND expires_at > now()),
           (SELECT count(*) FROM placet.holds WHERE status = 'held'),
           (SELECT coalesce(sum(sequence), 0) FROM placet.chain_heads),
           (SELECT max(active_policy_version) FROM placet.tenants)
$$;

-- The platform's operator makes the first keys of a tenant by its name; a name is no secret to the service, a tenant's rows are.
CREATE FUNCTION placet.tenant_of_name(wanted text) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT tenant_id FROM placet.tenants WHERE name = wanted
$$;

-- One decided refund, as a careful program without batches would write it: the reads and writes of a decision, one statement each.
--
-- The same as in the service: server, database, tables, indexes, row level security by app.tenants, fsync, the rows written (session, claim,
-- two accounts, decision, history key, two holds, audit row, payload, chain head), the sizes of body and payload (real texts of a decision of
-- this run), the two facts, the history count, the dry run in a subtransaction with its counts, the order of locks, tenants and orders at random.
-- Not the same, all to pgbench's advantage: no HTTP, no policy, no hashes, no JSON; one role that may do everything instead of a change of role for
-- facts and one for effects; no fresh snapshot, role or read-only mark a call; nothing is compared or decided.
-- To its disadvantage: a round trip for each statement, and a commit and a lock of the chain head for each call. That is what is measured.
-- pgbench replaces a colon and a name in texts too, so those with colons come as variables.
\set number random(0, :tenants - 1)
\set order random(0, :orders - 1)
\set n :n + 1
\set session :n / 8
BEGIN;
SELECT set_config('app.tenants', '5bee0000-0000-4000-8000-' || lpad(:number::text, 12, '0'), true) AS tenant,
    set_config('app.tenant', 'pgbench-' || :number, true) AS state_tenant,
    'pgbench-' || :number::text AS name, 'S-' || lpad(:order::text, 8, '0') AS order_id, :account::text || lpad(:order::text, 8, '0') AS resource,
    'chat-' || :run::text || '-' || :client_id::text || '-' || :session::text AS session_id, 'call-' || :n::text AS call_id, md5(:number::text || ' ' || :order::text) AS key,
    uuidv7() AS decision_id, uuidv7() AS hold_1, uuidv7() AS hold_2, now() AS decided_at \gset
INSERT INTO placet.sessions (tenant_id, session_id, subject, created_at) VALUES (:tenant, :session_id, 'agent', :decided_at)
    ON CONFLICT DO NOTHING;
INSERT INTO placet.claims (tenant_id, session_id, call_id, call_digest, attempt, settled) VALUES (:tenant, :session_id, :call_id, :hash, 0, false)
    ON CONFLICT DO NOTHING RETURNING call_id;
INSERT INTO placet.accounts (tenant_id, account, held, spent) VALUES (:tenant, :budget, 0, 0), (:tenant, :resource, 0, 0) ON CONFLICT DO NOTHING;
SELECT account, unit, held, spent FROM placet.accounts WHERE tenant_id = :tenant AND account IN (:budget, :resource) ORDER BY account FOR UPDATE;
SELECT authority_version FROM placet.chain_heads WHERE tenant_id = :tenant;
SELECT count(*) FROM (SELECT 1 FROM placet.call_keys k JOIN placet.decisions d ON d.tenant_id = k.tenant_id AND d.decision_id = k.decision_id
    WHERE k.tenant_id = :tenant AND k.key = decode(:key, 'hex') AND k.decided_at >= now() - interval '1 day'
    AND d.status = ANY ('{permitted,succeeded,unknown}') LIMIT 1000) found;
SELECT rule, refusals FROM placet.rule_refusals WHERE tenant_id = :tenant AND session_id = :session_id AND task_id = 'task-1' AND tool = 'refund';
SELECT status, currency, paid_minor, refunded_minor FROM shop.orders WHERE tenant = :name AND order_id = :order_id AND customer_id = 'cust-1';
SELECT complaints FROM shop.customers WHERE tenant = :name AND customer_id = 'cust-1';
SAVEPOINT dry_run;
SELECT pg_stat_get_xact_tuples_inserted(t), pg_stat_get_xact_tuples_updated(t), pg_stat_get_xact_tuples_deleted(t)
    FROM unnest(ARRAY['shop.customers'::regclass, 'shop.orders'::regclass, 'shop.refunds'::regclass]) t;
UPDATE shop.orders SET refunded_minor = refunded_minor + 1 WHERE tenant = :name AND order_id = :order_id
    RETURNING to_jsonb(old), to_jsonb(new);
INSERT INTO shop.refunds (tenant, order_id, amount_minor, currency) VALUES (:name, :order_id, 1, 'EUR') RETURNING to_jsonb(new);
SET CONSTRAINTS ALL IMMEDIATE;
SELECT pg_stat_get_xact_tuples_inserted(t), pg_stat_get_xact_tuples_updated(t), pg_stat_get_xact_tuples_deleted(t)
    FROM unnest(ARRAY['shop.customers'::regclass, 'shop.orders'::regclass, 'shop.refunds'::regclass]) t;
ROLLBACK TO SAVEPOINT dry_run;
SELECT sequence + 1 AS sequence, hash AS previous, greatest(recorded_at, :decided_at) AS recorded_at, authority_version
    FROM placet.chain_heads WHERE tenant_id = :tenant FOR UPDATE \gset
INSERT INTO placet.decisions (tenant_id, decision_id, kind, subject, session_id, task_id, call_id, attempt, tool, decision, reason, status,
    policy_version, decided_at, recorded_at, sequence)
    VALUES (:tenant, :decision_id, 'tool_call', 'agent', :session_id, 'task-1', :call_id, 1, 'refund', 'accepted', 'within_policy', 'permitted',
    1, :decided_at, :recorded_at, :sequence);
UPDATE placet.claims SET attempt = 1, settled = true, decision_id = :decision_id
    WHERE tenant_id = :tenant AND session_id = :session_id AND call_id = :call_id;
INSERT INTO placet.call_keys (tenant_id, key, decided_at, decision_id) VALUES (:tenant, decode(:key, 'hex'), :decided_at, :decision_id);
UPDATE placet.accounts SET held = held + 1, unit = 'EUR' WHERE tenant_id = :tenant AND account IN (:budget, :resource);
INSERT INTO placet.holds (tenant_id, hold_id, decision_id, account, unit, quantity, status, created_at, outcome_due_at)
    VALUES (:tenant, :hold_1, :decision_id, :resource, 'EUR', 1, 'held', :decided_at, :decided_at::timestamptz + interval '15 minutes'),
    (:tenant, :hold_2, :decision_id, :budget, 'EUR', 1, 'held', :decided_at, :decided_at::timestamptz + interval '15 minutes');
INSERT INTO placet.audit_rows (tenant_id, recorded_at, sequence, event, body, previous_hash, hash, subject, session_id, task_id, tool,
    resources, decision_id, decision, reason, risk_score, policy_version)
    VALUES (:tenant, :recorded_at, :sequence, 'tool_call.decided', :body, :previous, :hash, 'agent', :session_id, 'task-1', 'refund',
    ARRAY[:resource], :decision_id, 'accepted', 'within_policy', 0.0001, 1);
INSERT INTO placet.audit_payloads (tenant_id, recorded_at, sequence, salt, body)
    VALUES (:tenant, :recorded_at, :sequence, decode(:key, 'hex'), :payload);
UPDATE placet.chain_heads SET sequence = :sequence, hash = :hash, recorded_at = :recorded_at WHERE tenant_id = :tenant;
COMMIT;

-- A key's own limits (SPEC 12.2); NULL is the service's default, 0 stops the first request.
ALTER TABLE placet.api_keys
    ADD COLUMN requests_per_minute integer CHECK (requests_per_minute >= 0),
    ADD COLUMN concurrent_requests integer CHECK (concurrent_requests >= 0);

-- What workers have taken of a key's minute, in blocks; `leased` never goes over the limit, so what is spent can't. `recorded`: the codes of refusals that
-- have their audit row in this window. The space between rows lets an update stay on its page.
CREATE TABLE placet.request_windows (
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    window_start timestamptz NOT NULL,
    leased integer NOT NULL CHECK (leased >= 0),
    recorded text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, key_id, window_start)
) WITH (fillfactor = 60);
CREATE INDEX request_windows_old ON placet.request_windows (window_start);

ALTER TABLE placet.request_windows ENABLE ROW LEVEL SECURITY;
ALTER TABLE placet.request_windows FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants_of_the_transaction ON placet.request_windows
    USING (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]))
    WITH CHECK (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]));

DO $$
BEGIN
    EXECUTE format('CREATE POLICY owner_reads ON placet.request_windows FOR SELECT TO %I USING (true)', current_user);
    EXECUTE format('CREATE POLICY owner_forgets ON placet.request_windows FOR DELETE TO %I USING (window_start < now() - interval ''1 hour'')', current_user);
END
$$;

-- Removes windows that ended long ago, `most` of them at once: an hour is far more than clocks of two machines may differ. The service may call it and may delete
-- nothing itself.
CREATE FUNCTION placet.forget_request_windows(most integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (
        DELETE FROM placet.request_windows w
        USING (
            SELECT tenant_id, key_id, window_start FROM placet.request_windows
            WHERE window_start < now() - interval '1 hour' ORDER BY window_start LIMIT most
        ) old
        WHERE w.tenant_id = old.tenant_id AND w.key_id = old.key_id AND w.window_start = old.window_start
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

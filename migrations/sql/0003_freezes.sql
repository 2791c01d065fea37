-- What an operator has stopped (SPEC 12.3). A row is never deleted: lifting it sets lifted_at. `by_platform`: the platform's operator set it on another's
-- tenant, whose own operators can't lift it.
CREATE TABLE placet.freezes (
    tenant_id uuid NOT NULL,
    freeze_id uuid NOT NULL,
    target_kind text NOT NULL CHECK (target_kind IN ('tenant', 'principal', 'session', 'tool')),
    target text NOT NULL,
    reason text NOT NULL,
    by_platform boolean NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    lifted_at timestamptz,
    lifted_by text,
    PRIMARY KEY (tenant_id, freeze_id),
    CHECK ((lifted_at IS NULL) = (lifted_by IS NULL))
);
-- read with the tenant, each time a worker learns its authority
CREATE INDEX freezes_in_force ON placet.freezes (tenant_id, target_kind, target) WHERE lifted_at IS NULL;

ALTER TABLE placet.freezes ENABLE ROW LEVEL SECURITY;
ALTER TABLE placet.freezes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants_of_the_transaction ON placet.freezes
    USING (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]))
    WITH CHECK (tenant_id = ANY ((SELECT string_to_array(current_setting('app.tenants', true), ','))::uuid[]));

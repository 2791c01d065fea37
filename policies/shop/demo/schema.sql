-- The shop's own tables, as a state database has them. Idempotent. Run by the owner; the roles exist already.
-- Every row belongs to a tenant (its name), and every key begins with it.
CREATE SCHEMA IF NOT EXISTS shop;

CREATE TABLE IF NOT EXISTS shop.customers (
    tenant text NOT NULL,
    customer_id text NOT NULL,
    name text NOT NULL,
    complaints integer NOT NULL DEFAULT 0 CHECK (complaints >= 0), -- of the last year
    PRIMARY KEY (tenant, customer_id)
);

CREATE TABLE IF NOT EXISTS shop.orders (
    tenant text NOT NULL,
    order_id text NOT NULL,
    customer_id text NOT NULL,
    status text NOT NULL CHECK (
        status IN ('new', 'paid', 'shipped', 'delivered', 'cancelled', 'refunded', 'partially_refunded', 'chargeback')
    ),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    paid_minor bigint NOT NULL CHECK (paid_minor >= 0),
    refunded_minor bigint NOT NULL DEFAULT 0 CHECK (refunded_minor >= 0),
    PRIMARY KEY (tenant, order_id),
    FOREIGN KEY (tenant, customer_id) REFERENCES shop.customers (tenant, customer_id)
);

-- no identity column: a dry run would consume its values although it is rolled back
CREATE TABLE IF NOT EXISTS shop.refunds (
    tenant text NOT NULL,
    refund_id uuid NOT NULL DEFAULT uuidv7(),
    order_id text NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor > 0),
    currency text NOT NULL,
    PRIMARY KEY (tenant, refund_id),
    FOREIGN KEY (tenant, order_id) REFERENCES shop.orders (tenant, order_id)
);

-- where an order is sent
CREATE TABLE IF NOT EXISTS shop.addresses (
    tenant text NOT NULL,
    order_id text NOT NULL,
    customer_id text NOT NULL,
    name text NOT NULL,
    street text NOT NULL,
    postcode text NOT NULL,
    city text NOT NULL,
    country text NOT NULL CHECK (country ~ '^[A-Z]{2}$'),
    PRIMARY KEY (tenant, order_id),
    FOREIGN KEY (tenant, order_id) REFERENCES shop.orders (tenant, order_id),
    FOREIGN KEY (tenant, customer_id) REFERENCES shop.customers (tenant, customer_id)
);
CREATE INDEX IF NOT EXISTS addresses_of_customer ON shop.addresses (tenant, customer_id);

-- what was written to a customer
CREATE TABLE IF NOT EXISTS shop.messages (
    tenant text NOT NULL,
    message_id uuid NOT NULL DEFAULT uuidv7(),
    customer_id text NOT NULL,
    order_id text NOT NULL,
    subject text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, message_id),
    FOREIGN KEY (tenant, customer_id) REFERENCES shop.customers (tenant, customer_id)
);
CREATE INDEX IF NOT EXISTS messages_of_customer ON shop.messages (tenant, customer_id);

-- what a customer did in the shop: the largest part of a customer's data
CREATE TABLE IF NOT EXISTS shop.events (
    tenant text NOT NULL,
    customer_id text NOT NULL,
    event_number integer NOT NULL,
    kind text NOT NULL,
    PRIMARY KEY (tenant, customer_id, event_number),
    FOREIGN KEY (tenant, customer_id) REFERENCES shop.customers (tenant, customer_id)
);

-- a shop that was made by an earlier version of this file knows one status less
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_constraint
        WHERE conrelid = 'shop.orders'::regclass AND conname = 'orders_status_check' AND pg_get_constraintdef(oid) LIKE '%partially_refunded%'
    ) THEN
        ALTER TABLE shop.orders DROP CONSTRAINT IF EXISTS orders_status_check;
        ALTER TABLE shop.orders ADD CONSTRAINT orders_status_check CHECK (
            status IN ('new', 'paid', 'shipped', 'delivered', 'cancelled', 'refunded', 'partially_refunded', 'chargeback')
        );
    END IF;
END
$$;

REVOKE ALL ON SCHEMA shop FROM PUBLIC;
GRANT USAGE ON SCHEMA shop TO placet_facts, placet_sandbox;
GRANT SELECT ON shop.customers, shop.orders, shop.refunds, shop.addresses, shop.messages, shop.events TO placet_facts;
GRANT SELECT, UPDATE (status, refunded_minor) ON shop.orders TO placet_sandbox;
GRANT SELECT, INSERT (tenant, order_id, amount_minor, currency) ON shop.refunds TO placet_sandbox;
GRANT SELECT, UPDATE (name) ON shop.customers TO placet_sandbox;
GRANT SELECT, DELETE ON shop.addresses, shop.messages, shop.events TO placet_sandbox;

-- What a fact or an effect sees is one tenant's, whatever its text says: the service sets app.tenant for each call.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['customers', 'orders', 'refunds', 'addresses', 'messages', 'events'] LOOP
        EXECUTE format('ALTER TABLE shop.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('DROP POLICY IF EXISTS tenant_of_the_call ON shop.%I', name);
        EXECUTE format($policy$
            CREATE POLICY tenant_of_the_call ON shop.%I TO placet_facts, placet_sandbox
            USING (tenant = (SELECT current_setting('app.tenant', true))) WITH CHECK (tenant = (SELECT current_setting('app.tenant', true)))
            $policy$, name);
    END LOOP;
END
$$;

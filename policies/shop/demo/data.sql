-- Demo rows of one tenant, whose name is the setting placet.demo_tenant. Idempotent: what is there stays as it is.
INSERT INTO shop.customers (tenant, customer_id, name, complaints)
SELECT current_setting('placet.demo_tenant'), customer_id, name, complaints
FROM (VALUES
    ('cust-77', 'Ada Berg', 0),
    ('cust-78', 'Bo Lind', 0),
    ('cust-79', 'Cleo Maas', 5),             -- complains often, which is known
    ('cust-80', 'Dov Adler', 0),             -- has more data than one call may delete
    ('cust-81', 'Eva Roth', 0)               -- has little
) AS demo (customer_id, name, complaints)
ON CONFLICT DO NOTHING;

INSERT INTO shop.orders (tenant, order_id, customer_id, status, currency, paid_minor, refunded_minor)
SELECT current_setting('placet.demo_tenant'), order_id, customer_id, status, currency, paid_minor, refunded_minor
FROM (VALUES
    ('A-1001', 'cust-77', 'delivered', 'EUR', 12990, 0),
    ('A-1002', 'cust-77', 'delivered', 'EUR', 10000, 0),
    ('A-1003', 'cust-77', 'shipped', 'JPY', 80000, 0),
    ('A-1004', 'cust-77', 'paid', 'KWD', 250500, 0),
    ('A-1005', 'cust-77', 'cancelled', 'EUR', 5000, 0),
    ('A-1006', 'cust-77', 'delivered', 'EUR', 2700, 700),
    ('A-1007', 'cust-77', 'delivered', 'EUR', 14505, 0),
    ('A-1008', 'cust-77', 'refunded', 'EUR', 1999, 1999),
    ('A-1009', 'cust-77', 'new', 'EUR', 0, 0),
    ('A-1010', 'cust-77', 'chargeback', 'EUR', 60003, 0),
    ('A-2001', 'cust-78', 'delivered', 'EUR', 4500, 0),
    ('A-3001', 'cust-79', 'delivered', 'EUR', 12990, 0),
    ('T-9001', 'cust-77', 'paid', 'EUR', 100, 0),
    -- an order for each act of the story
    ('A-5001', 'cust-77', 'delivered', 'EUR', 12990, 0),    -- a hundred times too much
    ('A-5002', 'cust-77', 'delivered', 'EUR', 12990, 0),    -- all of it
    ('A-5003', 'cust-77', 'delivered', 'EUR', 12990, 0),    -- 20.00, replayed, its call id used again
    ('A-5004', 'cust-77', 'delivered', 'EUR', 12990, 0),    -- 100.00 twice at once
    ('A-5005', 'cust-77', 'delivered', 'EUR', 12990, 0),    -- the same refund under another call id
    ('A-5006', 'cust-77', 'shipped', 'JPY', 80000, 0),      -- 500.5 yen
    ('A-5007', 'cust-77', 'paid', 'EUR', 8000, 0),          -- a refund, then a cancellation
    ('A-5008', 'cust-77', 'paid', 'EUR', 8000, 0),          -- a cancellation, then a refund
    ('A-5009', 'cust-77', 'delivered', 'EUR', 2500, 0),     -- a look
    ('A-5010', 'cust-77', 'shipped', 'EUR', 4900, 0),       -- a message
    ('A-5011', 'cust-77', 'paid', 'EUR', 3900, 0),          -- another address
    ('A-5012', 'cust-77', 'paid', 'KWD', 12345, 0),         -- a cancellation in dinars
    ('A-5013', 'cust-77', 'delivered', 'KWD', 250500, 0)    -- 1.255 dinars
) AS demo (order_id, customer_id, status, currency, paid_minor, refunded_minor)
ON CONFLICT DO NOTHING;

INSERT INTO shop.addresses (tenant, order_id, customer_id, name, street, postcode, city, country)
SELECT current_setting('placet.demo_tenant'), order_id, customer_id, name, street, postcode, city, country
FROM (VALUES
    ('A-1001', 'cust-77', 'Ada Berg', 'Lindenstraße 4', '10969', 'Berlin', 'DE'),
    ('A-1004', 'cust-77', 'Ada Berg', 'Lindenstraße 4', '10969', 'Berlin', 'DE'),
    ('A-1009', 'cust-77', 'Ada Berg', 'Lindenstraße 4', '10969', 'Berlin', 'DE'),
    ('A-5011', 'cust-77', 'Ada Berg', 'Lindenstraße 4', '10969', 'Berlin', 'DE')
) AS demo (order_id, customer_id, name, street, postcode, city, country)
ON CONFLICT DO NOTHING;

-- a message has an id of its own, so what makes it the same is looked up
INSERT INTO shop.messages (tenant, customer_id, order_id, subject, body)
SELECT current_setting('placet.demo_tenant'), 'cust-81', 'A-0001', 'Welcome', 'Thank you for your first order.'
WHERE NOT EXISTS (SELECT FROM shop.messages WHERE tenant = current_setting('placet.demo_tenant') AND customer_id = 'cust-81');

INSERT INTO shop.events (tenant, customer_id, event_number, kind)
SELECT current_setting('placet.demo_tenant'), customer_id, number, 'viewed'
FROM (VALUES ('cust-80', 5000), ('cust-81', 12)) AS demo (customer_id, events), generate_series(1, events) AS number
ON CONFLICT DO NOTHING;

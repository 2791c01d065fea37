-- Demo rows of one tenant, whose name is the setting placet.demo_tenant. Idempotent: what is there stays as it is.
INSERT INTO shop.customers (tenant, customer_id, name, complaints)
SELECT current_setting('placet.demo_tenant'), customer_id, name, complaints
FROM (VALUES
    ('cust-77', 'Ada Berg', 0),
    ('cust-78', 'Bo Lind', 0),
    ('cust-79', 'Cleo Maas', 5)
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
    ('T-9001', 'cust-77', 'paid', 'EUR', 100, 0)
) AS demo (order_id, customer_id, status, currency, paid_minor, refunded_minor)
ON CONFLICT DO NOTHING;

-- The tables of the service payments. See the comments in tables_orders_postgres.sql.

CREATE TABLE IF NOT EXISTS payments (
    order_id    text        NOT NULL,
    message_id  text        NOT NULL,
    customer    text        NOT NULL,
    currency    text        NOT NULL,
    amount      bigint      NOT NULL, -- in the currency's smallest unit
    captured_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS payments_order ON payments (order_id);

CREATE TABLE IF NOT EXISTS refunds (
    order_id    text        NOT NULL,
    message_id  text        NOT NULL,
    amount      bigint      NOT NULL,
    refunded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS refunds_order ON refunds (order_id);

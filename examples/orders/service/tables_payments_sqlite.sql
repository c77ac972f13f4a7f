-- The same tables as in tables_payments_postgres.sql. See the comments there.

CREATE TABLE IF NOT EXISTS payments (
    order_id    text        NOT NULL,
    message_id  text        NOT NULL,
    customer    text        NOT NULL,
    currency    text        NOT NULL,
    amount      integer     NOT NULL, -- in the currency's smallest unit
    captured_at timestamp   NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS payments_order ON payments (order_id);

CREATE TABLE IF NOT EXISTS refunds (
    order_id    text        NOT NULL,
    message_id  text        NOT NULL,
    amount      integer     NOT NULL,
    refunded_at timestamp   NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS refunds_order ON refunds (order_id);

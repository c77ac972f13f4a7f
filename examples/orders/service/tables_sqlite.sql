-- The same tables as in tables_postgres.sql. See the comments there.

CREATE TABLE IF NOT EXISTS orders (
    id        text      PRIMARY KEY,
    shop      text      NOT NULL,
    customer  text      NOT NULL,
    currency  text      NOT NULL,
    total     integer   NOT NULL,
    placed_at timestamp NOT NULL
);

CREATE TABLE IF NOT EXISTS order_lines (
    order_id   text    NOT NULL REFERENCES orders (id),
    line       integer NOT NULL,
    sku        text    NOT NULL,
    quantity   integer NOT NULL,
    unit_price integer NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE IF NOT EXISTS payments (
    order_id    text      NOT NULL,
    message_id  text      NOT NULL,
    amount      integer   NOT NULL,
    captured_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS payments_order ON payments (order_id);

CREATE TABLE IF NOT EXISTS reservations (
    order_id    text      NOT NULL,
    message_id  text      NOT NULL,
    reserved_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS reservations_order ON reservations (order_id);

CREATE TABLE IF NOT EXISTS stock (
    sku      text    PRIMARY KEY,
    reserved integer NOT NULL
);

CREATE TABLE IF NOT EXISTS shipments (
    order_id   text      NOT NULL,
    message_id text      NOT NULL,
    shipped_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS shipments_order ON shipments (order_id);

CREATE TABLE IF NOT EXISTS revenue (
    order_id   text      NOT NULL,
    message_id text      NOT NULL,
    shop       text      NOT NULL,
    currency   text      NOT NULL,
    amount     integer   NOT NULL,
    booked_at  timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS revenue_order ON revenue (order_id);

CREATE TABLE IF NOT EXISTS history (
    entry      integer   PRIMARY KEY AUTOINCREMENT,
    order_id   text      NOT NULL,
    message_id text      NOT NULL,
    version    integer   NOT NULL,
    status     text      NOT NULL,
    written_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS history_order ON history (order_id);

CREATE TABLE IF NOT EXISTS tracking (
    order_id text PRIMARY KEY,
    status   text NOT NULL
);

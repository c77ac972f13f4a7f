-- The tables of the service orders. These statements run at every start and create the
-- tables that are missing. Your service should have numbered migrations.

CREATE TABLE IF NOT EXISTS orders (
    id        text        PRIMARY KEY,
    shop      text        NOT NULL,
    customer  text        NOT NULL,
    currency  text        NOT NULL,
    total     bigint      NOT NULL, -- in the currency's smallest unit
    placed_at timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS order_lines (
    order_id   text    NOT NULL REFERENCES orders (id),
    line       integer NOT NULL,
    sku        text    NOT NULL,
    quantity   bigint  NOT NULL,
    unit_price bigint  NOT NULL,
    PRIMARY KEY (order_id, line)
);

-- The effects of the consumers. There is no unique constraint on purpose: an
-- effect that happened twice would show as two rows. The inbox prevents that.
CREATE TABLE IF NOT EXISTS reservations (
    order_id    text        NOT NULL,
    message_id  text        NOT NULL,
    outcome     text        NOT NULL, -- reserved or refused
    reserved_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS reservations_order ON reservations (order_id);

CREATE TABLE IF NOT EXISTS stock (
    sku      text   PRIMARY KEY,
    on_hand  bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0
);
INSERT INTO stock (sku, on_hand) VALUES
    ('tea', 1000000000000), ('coffee', 1000000000000), ('cake', 1000000000000), ('mug', 1000000000000),
    ('pot', 1000000000000), ('spoon', 1000000000000), ('sugar', 1000000000000), ('milk', 1000000000000),
    ('lemon', 1000000000000), ('honey', 1000000000000), ('unicorn', 0)
ON CONFLICT (sku) DO NOTHING;

CREATE TABLE IF NOT EXISTS shipments (
    order_id   text        NOT NULL,
    message_id text        NOT NULL,
    shipped_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS shipments_order ON shipments (order_id);

CREATE TABLE IF NOT EXISTS cancellations (
    order_id     text        NOT NULL,
    message_id   text        NOT NULL,
    cancelled_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS cancellations_order ON cancellations (order_id);

CREATE TABLE IF NOT EXISTS revenue (
    order_id   text        NOT NULL,
    message_id text        NOT NULL,
    shop       text        NOT NULL,
    currency   text        NOT NULL,
    amount     bigint      NOT NULL,
    booked_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS revenue_order ON revenue (order_id);

CREATE TABLE IF NOT EXISTS history (
    entry      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- ascends with each insert
    order_id   text        NOT NULL,
    message_id text        NOT NULL,
    version    bigint      NOT NULL,
    status     text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS history_order ON history (order_id);

CREATE TABLE IF NOT EXISTS tracking (
    order_id text PRIMARY KEY, -- the latest state, not an effect
    status   text NOT NULL
);

-- The outbox: events that wait to be forwarded. The statement that records the
-- outcome of a message deletes its row, so the table stays as small as the
-- backlog. The primary key is the only full index: the forwarder reads rows in the
-- order of their positions, and each further index would slow down the business
-- transaction. metadata is json and not jsonb, because no query looks into it.
-- The checks refuse rows that were edited by hand and that a forwarder would not
-- find or would try for ever.
--
-- The position is taken after the transaction has got its id. An identity column
-- would take it earlier. The forwarder relies on this order: before it reads
-- past a position, it waits for the running transactions by their ids.
CREATE SEQUENCE {outbox_position};
CREATE TABLE {outbox} (
    position     bigint PRIMARY KEY CHECK (position > 0)
                 DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{outbox_position}') END,
    message_id   text        NOT NULL,
    topic        text        NOT NULL,
    ordering_key text        CHECK (octet_length(ordering_key) <= 1000), -- indexes cannot store longer keys
    slot         smallint    NOT NULL CHECK (slot BETWEEN 0 AND 63),
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    due_at       timestamptz CHECK (isfinite(due_at)),
    attempts     integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    unknown      boolean     NOT NULL DEFAULT false, -- an earlier attempt may have sent the message
    last_error   text,
    failing_since timestamptz CHECK (isfinite(failing_since)) -- the time of the first failure
) WITH (
    -- All rows of a queue are deleted soon. Its size is near zero most of the
    -- time, so vacuum must depend on the number of dead rows, not on their share.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

ALTER SEQUENCE {outbox_position} OWNED BY {outbox}.position;

-- Finds rows with a due time: delayed messages, and messages that wait for
-- another attempt. Rows that are due at once are not in the index.
CREATE INDEX {index outbox_due} ON {outbox} (due_at) WHERE due_at IS NOT NULL;

-- Finds the messages that have failed, and the time since the first failure.
CREATE INDEX {index outbox_failing} ON {outbox} (failing_since) WHERE failing_since IS NOT NULL;

-- Blocked ordering keys: the broker refused the head of the key, or the head is
-- a dead letter, and its successors wait. position is that of the head. The row
-- is deleted together with the head. The successors have positions above
-- successors_after, which may differ from position: a successor that commits late
-- may have a lower position than the head, and a replayed dead letter gets a new
-- position above those of its successors.
CREATE TABLE {blocked_keys} (
    ordering_key     text        PRIMARY KEY,
    position         bigint      NOT NULL,
    successors_after bigint      NOT NULL,
    reason           text        NOT NULL,
    blocked_at       timestamptz NOT NULL DEFAULT now()
);

-- Dead letters of the forwarder. They have an id of their own, because a position
-- may be used again after a failover to a replica that lagged behind.
CREATE TABLE {outbox_dead} (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    topic        text        NOT NULL,
    ordering_key text,
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL,
    attempts     integer     NOT NULL,
    last_error   text        NOT NULL,
    reason       text        NOT NULL,
    unknown      boolean     NOT NULL,
    died_at      timestamptz NOT NULL DEFAULT now()
);

-- Tells whether the dead letter that blocks a key still exists.
CREATE INDEX {index outbox_dead_key} ON {outbox_dead} (ordering_key, position) WHERE ordering_key IS NOT NULL;

-- Forwarded messages, if the forwarder keeps them for a time. Ids ascend with
-- sent_at, so the primary key finds the oldest rows.
CREATE TABLE {outbox_sent} (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    topic        text        NOT NULL,
    ordering_key text,
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL,
    sent_at      timestamptz NOT NULL DEFAULT now()
);

-- Running forwarders. Each forwarder computes its share of the slots from them,
-- and all must send to one destination. The row of the last forwarder stays after
-- its end, until the next one starts and compares the destinations.
CREATE TABLE {forwarders} (
    owner       text        PRIMARY KEY,
    lease_until timestamptz NOT NULL CHECK (isfinite(lease_until)), -- an infinite lease would never end
    destination text        NOT NULL DEFAULT '' -- '' if it is not known
);

-- The forwarder of each slot. A slot is a part of the outbox. Slots have
-- leases, because session locks do not work with a pooler in transaction mode.
CREATE TABLE {slots} (
    slot        smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner       text,
    lease_until timestamptz CHECK (isfinite(lease_until))
);
INSERT INTO {slots} (slot) SELECT generate_series(0, 63);

-- The inbox: the messages that each consumer has handled. The primary key
-- guarantees that a consumer handles a message once. Ids are ordered by their
-- bytes, whatever the locale of the database is, so that the ids of one day are a
-- range.
CREATE TABLE {inbox} (
    message_id   text        COLLATE "C" NOT NULL,
    consumer     text        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    digest       bytea       NOT NULL,
    tenant       text,
    PRIMARY KEY (message_id, consumer)
);

-- Finds the oldest rows for retention. A BRIN index would not work: new rows reuse
-- the space of deleted rows.
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);

-- The last version of each aggregate that a consumer has applied, and the version
-- since which it has applied all versions. The transaction of a message writes and
-- locks the row, so that two versions are decided one after the other.
CREATE TABLE {versions} (
    consumer       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    version        bigint      NOT NULL,
    complete_from  bigint      NOT NULL,
    applied_at     timestamptz NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 80); -- leaves room to update a row within its page

-- Messages that wait for their consumer: between two attempts, after a redelivery,
-- in quarantine, stored by the embedded transport or by a durable consumer. The
-- envelope is the message byte for byte. The text columns are bounded copies
-- without the characters that a text column cannot store.
CREATE TABLE {parked} (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer        text        NOT NULL,
    topic           text        NOT NULL,
    message_id      text        COLLATE "C" NOT NULL, -- the collation of the inbox, for joins
    ordering_key    text,    -- NULL if the row is in no order
    tenant          text COLLATE "C" NOT NULL DEFAULT '',
    digest          bytea       NOT NULL,
    envelope        bytea       NOT NULL,
    state           text        NOT NULL CHECK (state IN ('waiting', 'held', 'quarantined', 'resolved', 'discarded')),
    priority_class  text        NOT NULL DEFAULT 'live' CHECK (priority_class IN ('live', 'retry', 'replay')),
    due_at          timestamptz NOT NULL CHECK (isfinite(due_at)),
    owner           text,
    token           text,
    attempts        integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    rounds          integer     NOT NULL DEFAULT 0 CHECK (rounds >= 0),
    crashes         integer     NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    replays         integer     NOT NULL DEFAULT 0 CHECK (replays >= 0),
    replay_id       bigint,  -- the latest replay that included it
    edited_from     bigint,  -- the entry that it replaces
    origin          text,    -- of an imported entry: its identity where it was exported
    early_since     timestamptz, -- since when a lower version of its sequence is missing
    early_of        text,        -- the sequence
    early_version   bigint,      -- the version of this message
    reason          text        NOT NULL DEFAULT '',
    error           text        NOT NULL DEFAULT '',
    error_type      text        NOT NULL DEFAULT '',
    fingerprint     text        NOT NULL DEFAULT '',
    dedup_key       text COLLATE "C", -- the id of its business key in the inbox: '' if it has none, NULL if not known yet
    created_at      timestamptz NOT NULL DEFAULT now(),
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    finished_at     timestamptz,
    CHECK (state <> 'held' OR ordering_key IS NOT NULL)
);

-- Two copies of a message have one row. Messages without an id cannot be
-- distinguished, so each of them has a row. message_id is the first column, so
-- that a search for a message does not need the names of its consumers.
CREATE UNIQUE INDEX {index parked_message} ON {parked} (message_id, consumer, digest) WHERE message_id <> '';

-- Finds due rows of a consumer and topic: by priority class, within a class by
-- tenant, and of a tenant by due time. The rows of a tenant are found in one step,
-- however many rows other tenants have.
CREATE INDEX {index parked_due} ON {parked} (consumer, topic, priority_class, tenant, due_at, id) WHERE state = 'waiting' AND crashes = 0;

-- Finds the other waiting rows: claimed rows, which are due again when their lease
-- ends, and rows whose crash count is above zero. A waiting row is in one of the
-- two indexes.
CREATE INDEX {index parked_crashed} ON {parked} (consumer, topic, due_at, id) WHERE state = 'waiting' AND crashes > 0;

-- Finds the tenants with due retries, because most waiting retries are not due.
-- The || restricts the index to the query that uses the same expression. For other
-- queries it is slow, but a planner with old statistics would choose it.
CREATE INDEX {index parked_retry} ON {parked} (consumer, topic, due_at)
    WHERE priority_class || '' = 'retry' AND state = 'waiting' AND crashes = 0;

-- The head of each ordering key, for which the held rows of the key wait. A key has
-- at most one head.
CREATE UNIQUE INDEX {index parked_head} ON {parked} (consumer, topic, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined');

-- The held rows behind the head, in their order.
CREATE INDEX {index parked_held} ON {parked} (consumer, topic, ordering_key, id) WHERE state = 'held';

-- Tells whether a lower version of a sequence is also parked early.
CREATE INDEX {index parked_early} ON {parked} (consumer, early_of, early_version)
    WHERE early_of IS NOT NULL AND state = 'waiting';

-- Finds the final rows that retention deletes.
CREATE INDEX {index parked_finished} ON {parked} (finished_at) WHERE state IN ('resolved', 'discarded');

-- Finds the handled rows of a durable consumer that keeps them for a time of its
-- own. Without || the planner could take the index above, which also contains the
-- rows that other consumers keep for longer.
CREATE INDEX {index parked_kept} ON {parked} (consumer, topic, finished_at) WHERE state || '' = 'resolved' AND replays = 0;

-- Lists the quarantine.
CREATE INDEX {index parked_quarantined} ON {parked} (id) WHERE state = 'quarantined';

-- Lists the quarantine of one consumer, which may have few of very many entries.
-- The || keeps the planner from choosing the index for other queries about a
-- consumer.
CREATE INDEX {index parked_consumer} ON {parked} (consumer, id) WHERE state || '' = 'quarantined';

-- Lists failure groups page by page, and the entries of a group. Without it each
-- batch of a group with a new cause, which the statistics do not contain, would
-- sort the whole group.
CREATE INDEX {index parked_fingerprint} ON {parked} (fingerprint, id) WHERE state = 'quarantined';

-- Finds the entries of a replay, by their outcomes.
CREATE INDEX {index parked_replay} ON {parked} (replay_id, state) WHERE replay_id IS NOT NULL;

-- Finds the replayed messages that have not been handled since.
CREATE INDEX {index parked_replayed} ON {parked} (id) WHERE replays > 0 AND state IN ('waiting', 'held');

-- Prevents that an entry is imported twice.
CREATE UNIQUE INDEX {index parked_origin} ON {parked} (origin) WHERE origin IS NOT NULL;

-- Tells whether a parked message has a business key that inbox retention would
-- delete.
CREATE INDEX {index parked_key} ON {parked} (dedup_key, consumer) WHERE dedup_key <> '';

-- The consumers that have subscribed, with the time at which each last renewed
-- its registration. The embedded transport stores a message for every consumer
-- that is registered for its topic, even if the consumer is not running.
CREATE TABLE {consumers} (
    topic         text        NOT NULL,
    consumer      text        NOT NULL,
    embedded      boolean     NOT NULL DEFAULT false, -- subscribed through the embedded transport
    key_order     boolean     NOT NULL DEFAULT false, -- keeps the order of ordering keys
    program       text        NOT NULL DEFAULT '',    -- the program that ran it last
    handler       text        NOT NULL DEFAULT '',    -- the handler's name in the router of that program
    owner         text        NOT NULL DEFAULT '',    -- host, process and subscription that ran it last
    registered_at timestamptz NOT NULL DEFAULT now(),
    seen_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, consumer)
);

-- The audit: each replay, edit, discard and import of a message, with the person
-- and the reason. The transaction of the change writes the row.
CREATE TABLE {audit} (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    actor      text        NOT NULL,
    action     text        NOT NULL,
    subject    text        NOT NULL,
    consumer   text        NOT NULL DEFAULT '',
    message_id text        NOT NULL DEFAULT '',
    why        text        NOT NULL DEFAULT '',
    replay_id  bigint      -- the replay that includes the change
);

-- Replays of many messages, with their filter and progress. A running replay has a
-- lease: a consumer has one running replay at a time, and a replay can be resumed
-- when its process has died.
CREATE TABLE {replays} (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text        NOT NULL, -- '' stands for all consumers
    filter      json        NOT NULL CHECK (json_typeof(filter) = 'object'),
    plan        json        NOT NULL CHECK (json_typeof(plan) = 'object'),
    actor       text        NOT NULL,
    why         text        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'finished')),
    stop_reason text        NOT NULL DEFAULT '',
    total       bigint      NOT NULL, -- entries that matched at the start
    until_id    bigint      NOT NULL, -- the last of these entries
    after_id    bigint      NOT NULL DEFAULT 0, -- the last entry that was replayed
    replayed    bigint      NOT NULL DEFAULT 0,
    resolved    bigint      NOT NULL DEFAULT 0, -- at the latest end of a run
    failed      bigint      NOT NULL DEFAULT 0, -- at the latest end of a run
    token       text,
    lease_until timestamptz,
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz
);

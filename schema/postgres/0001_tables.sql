-- The outbox. Only pending rows live here: a row leaves it in the statement
-- that records what became of it, so the table stays as small as the backlog.
-- The primary key is its only full index: the forwarder reads in position
-- order, and every further index would be paid by the business transaction.
-- The metadata is json, not jsonb: nobody looks into it here, it is written and
-- read as text.
-- The checks are for rows that are edited by hand: what no forwarder would find,
-- or would try for ever, is refused.
--
-- A position is taken when its transaction has an id, and not as an identity a
-- moment before: a forwarder waits for ids before it passes positions.
CREATE SEQUENCE {outbox_position};
CREATE TABLE {outbox} (
    position     bigint PRIMARY KEY CHECK (position > 0)
                 DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{outbox_position}') END,
    message_id   text        NOT NULL,
    topic        text        NOT NULL,
    ordering_key text        CHECK (octet_length(ordering_key) <= 1000), -- it has to fit into indexes
    slot         smallint    NOT NULL CHECK (slot BETWEEN 0 AND 63),
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    due_at       timestamptz CHECK (isfinite(due_at)),
    attempts     integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    unknown      boolean     NOT NULL DEFAULT false, -- may have been sent already, by some attempt
    last_error   text,
    failing_since timestamptz CHECK (isfinite(failing_since)) -- when it was put off first
) WITH (
    -- A queue turns over completely: vacuum by count, not by share of a size
    -- that is near zero most of the time.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

ALTER SEQUENCE {outbox_position} OWNED BY {outbox}.position;

-- Finds delayed and backed-off rows. Rows that are due at once are not in it.
CREATE INDEX {index outbox_due} ON {outbox} (due_at) WHERE due_at IS NOT NULL;

-- How long the broker has refused messages. Only those are in it.
CREATE INDEX {index outbox_failing} ON {outbox} (failing_since) WHERE failing_since IS NOT NULL;

-- An ordering key whose head was refused or died: its successors wait for the
-- row at that position. Gone with the head. The successors lie above
-- successors_after, which is not always the head's position: one that is
-- committed late may lie below it, and a dead letter that was put back has a new
-- position, above theirs.
CREATE TABLE {blocked_keys} (
    ordering_key     text        PRIMARY KEY,
    position         bigint      NOT NULL,
    successors_after bigint      NOT NULL,
    reason           text        NOT NULL,
    blocked_at       timestamptz NOT NULL DEFAULT now()
);

-- Dead letters of the forwarder. They have an id of their own: after a failover
-- to a replica that lagged behind, positions are given out again.
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

-- Whether the dead letter that holds a key is still there.
CREATE INDEX {index outbox_dead_key} ON {outbox_dead} (ordering_key, position) WHERE ordering_key IS NOT NULL;

-- What was forwarded, if that is to be kept for a while. Ids ascend with
-- sent_at, so that the oldest rows are found by the primary key.
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

-- Forwarders at work, so that each knows its share of the slots, and that all
-- send to one destination. The last one that has ended stays until another one
-- comes, which says so if it sends elsewhere.
CREATE TABLE {forwarders} (
    owner       text        PRIMARY KEY,
    lease_until timestamptz NOT NULL CHECK (isfinite(lease_until)), -- one for ever would keep its share for ever
    destination text        NOT NULL DEFAULT '' -- that is not known
);

-- Who forwards which part of the outbox. A lease, not a session lock: those
-- leak through a pooler in transaction mode.
CREATE TABLE {slots} (
    slot        smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner       text,
    lease_until timestamptz CHECK (isfinite(lease_until))
);
INSERT INTO {slots} (slot) SELECT generate_series(0, 63);

-- What each consumer has done. The primary key is the promise. Ids are ordered
-- by their bytes, whatever the database's language: days of them are ranges.
CREATE TABLE {inbox} (
    message_id   text        COLLATE "C" NOT NULL,
    consumer     text        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    digest       bytea       NOT NULL,
    tenant       text,
    PRIMARY KEY (message_id, consumer)
);

-- For retention, which reads its front end. A BRIN forgets what is in a page
-- when the space of old rows is used again.
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);

-- The last version of each aggregate that a consumer has applied, and the one from which on it has applied all. Written in the
-- transaction of the message, and locked by it, so that two versions are decided one after the other.
CREATE TABLE {versions} (
    consumer       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    version        bigint      NOT NULL,
    complete_from  bigint      NOT NULL,
    applied_at     timestamptz NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 80); -- a row is updated where it lies

-- Messages that wait for their consumer, for whatever reason: between two
-- attempts, after a redelivery, in quarantine, on their way in the embedded
-- transport. The envelope is the message byte for byte; the text columns are
-- cleaned and bounded copies, so that everything can be stored.
CREATE TABLE {parked} (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer        text        NOT NULL,
    topic           text        NOT NULL,
    message_id      text        COLLATE "C" NOT NULL, -- as in the inbox: they are joined
    ordering_key    text,    -- in whose order it has its place, if in any
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
    replay_id       bigint,  -- the replay that it was part of last
    edited_from     bigint,  -- the entry that it is the edited form of
    origin          text,    -- where it was exported, for what was imported
    early_since     timestamptz, -- when it came before its turn
    early_of        text,        -- in which sequence
    early_version   bigint,      -- and as which version
    reason          text        NOT NULL DEFAULT '',
    error           text        NOT NULL DEFAULT '',
    error_type      text        NOT NULL DEFAULT '',
    fingerprint     text        NOT NULL DEFAULT '',
    dedup_key       text COLLATE "C", -- what the inbox has of its business key: '' if it has none, NULL if that is not known
    created_at      timestamptz NOT NULL DEFAULT now(),
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    finished_at     timestamptz,
    CHECK (state <> 'held' OR ordering_key IS NOT NULL)
);

-- A copy of a message that is parked already is the same entry. Messages
-- without an id cannot be told apart and are all kept. The id comes first: who
-- looks for a message need not know which consumers failed it.
CREATE UNIQUE INDEX {index parked_message} ON {parked} (message_id, consumer, digest) WHERE message_id <> '';

-- The one sweep of waiting rows: of one consumer and topic, by priority_class, in the
-- priority_class by tenant, and of a tenant by due time. So one whose turn it is is found
-- in one step, however many rows others have.
CREATE INDEX {index parked_due} ON {parked} (consumer, topic, priority_class, tenant, due_at, id) WHERE state = 'waiting' AND crashes = 0;

-- Its other half: what is claimed, due again when its lease ends, and what a
-- process has ended under. A row is in one of the two.
CREATE INDEX {index parked_crashed} ON {parked} (consumer, topic, due_at, id) WHERE state = 'waiting' AND crashes > 0;

-- Which tenants have retries that are due: most of those that wait are not.
-- With || only the question that is put so takes it: for others it is the wrong
-- one, and seems right to a planner that has not seen many rows yet.
CREATE INDEX {index parked_retry} ON {parked} (consumer, topic, due_at)
    WHERE priority_class || '' = 'retry' AND state = 'waiting' AND crashes = 0;

-- The head of each ordering key: what is held of the key waits for it. There is
-- one.
CREATE UNIQUE INDEX {index parked_head} ON {parked} (consumer, topic, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined');

-- What waits behind it, and in which order.
CREATE INDEX {index parked_held} ON {parked} (consumer, topic, ordering_key, id) WHERE state = 'held';

-- Whether a lower version of a sequence is early too.
CREATE INDEX {index parked_early} ON {parked} (consumer, early_of, early_version)
    WHERE early_of IS NOT NULL AND state = 'waiting';

-- For retention of what is over.
CREATE INDEX {index parked_finished} ON {parked} (finished_at) WHERE state IN ('resolved', 'discarded');

-- For a durable inbox that keeps what was handled for a time of its own: not
-- past what others keep for longer. With || that question cannot take the one
-- above, which seems good enough to a planner.
CREATE INDEX {index parked_kept} ON {parked} (consumer, topic, finished_at) WHERE state || '' = 'resolved' AND replays = 0;

-- Listing the quarantine.
CREATE INDEX {index parked_quarantined} ON {parked} (id) WHERE state = 'quarantined';

-- Of one consumer, which may have few of very many. With || no other question
-- about a consumer takes it for the better one.
CREATE INDEX {index parked_consumer} ON {parked} (consumer, id) WHERE state || '' = 'quarantined';

-- Its groups, page by page, and of each its entries: all would be sorted for
-- every batch of them otherwise, of a cause that is new to the planner.
CREATE INDEX {index parked_fingerprint} ON {parked} (fingerprint, id) WHERE state = 'quarantined';

-- What became of the entries of a replay.
CREATE INDEX {index parked_replay} ON {parked} (replay_id, state) WHERE replay_id IS NOT NULL;

-- What was replayed and not handled since.
CREATE INDEX {index parked_replayed} ON {parked} (id) WHERE replays > 0 AND state IN ('waiting', 'held');

-- What was imported once is not imported again.
CREATE UNIQUE INDEX {index parked_origin} ON {parked} (origin) WHERE origin IS NOT NULL;

-- Whether a message that may run has a key that the inbox is to forget.
CREATE INDEX {index parked_key} ON {parked} (dedup_key, consumer) WHERE dedup_key <> '';

-- The consumers that have subscribed, and when each was last running. The
-- embedded transport stores a message for every consumer that is registered for
-- its topic here, running or not.
CREATE TABLE {consumers} (
    topic         text        NOT NULL,
    consumer      text        NOT NULL,
    embedded      boolean     NOT NULL DEFAULT false, -- subscribed through the embedded transport
    key_order     boolean     NOT NULL DEFAULT false, -- handles messages of one ordering key in order
    program       text        NOT NULL DEFAULT '',    -- that ran it last
    handler       text        NOT NULL DEFAULT '',    -- in the router of that program
    owner         text        NOT NULL DEFAULT '',    -- host, process and subscription that ran it last
    registered_at timestamptz NOT NULL DEFAULT now(),
    seen_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, consumer)
);

-- Who replayed, edited or discarded what, and why: written in the transaction
-- that does it.
CREATE TABLE {audit} (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    actor      text        NOT NULL,
    action     text        NOT NULL,
    subject    text        NOT NULL,
    consumer   text        NOT NULL DEFAULT '',
    message_id text        NOT NULL DEFAULT '',
    why        text        NOT NULL DEFAULT '',
    replay_id  bigint      -- the replay that it is part of
);

-- Replays of many messages: what was to be replayed, and how far that is.
-- While one runs it is leased, so that there is one of a consumer at a time and
-- one whose process died can be taken up.
CREATE TABLE {replays} (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text        NOT NULL, -- '' is all of them
    filter      json        NOT NULL CHECK (json_typeof(filter) = 'object'),
    plan        json        NOT NULL CHECK (json_typeof(plan) = 'object'),
    actor       text        NOT NULL,
    why         text        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'finished')),
    stop_reason text        NOT NULL DEFAULT '',
    total       bigint      NOT NULL, -- entries that matched when it began
    until_id    bigint      NOT NULL, -- the last of them
    after_id    bigint      NOT NULL DEFAULT 0, -- how far it is
    replayed    bigint      NOT NULL DEFAULT 0,
    resolved    bigint      NOT NULL DEFAULT 0, -- as it was when it stopped
    failed      bigint      NOT NULL DEFAULT 0, -- the same
    token       text,
    lease_until timestamptz,
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz
);

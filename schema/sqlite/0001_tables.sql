-- Times are whole milliseconds since 1970 in UTC. The tables are strict: a word
-- in the place of a number, which somebody writes by hand, could not be read,
-- and with it no other row. Columns of bytes are ANY, which takes text for bytes.

-- The outbox. Only pending rows live here. AUTOINCREMENT, because a position
-- that is used again would let a repeated delete remove another row.
CREATE TABLE {outbox} (
    position     INTEGER PRIMARY KEY AUTOINCREMENT CHECK (position > 0),
    message_id   TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    ordering_key TEXT,
    slot         INTEGER NOT NULL CHECK (slot BETWEEN 0 AND 63),
    payload      ANY     NOT NULL,
    metadata     TEXT    NOT NULL,
    created_at   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    due_at       INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    unknown      INTEGER NOT NULL DEFAULT 0, -- may have been sent already, by some attempt
    last_error   TEXT,
    failing_since INTEGER -- when it was put off first
) STRICT;

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
    ordering_key     TEXT    PRIMARY KEY,
    position         INTEGER NOT NULL,
    successors_after INTEGER NOT NULL,
    reason           TEXT    NOT NULL,
    blocked_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

-- Dead letters of the forwarder.
CREATE TABLE {outbox_dead} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    position     INTEGER NOT NULL,
    message_id   TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    ordering_key TEXT,
    payload      ANY     NOT NULL,
    metadata     TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    last_error   TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    unknown      INTEGER NOT NULL,
    died_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

-- Whether the dead letter that holds a key is still there.
CREATE INDEX {index outbox_dead_key} ON {outbox_dead} (ordering_key, position) WHERE ordering_key IS NOT NULL;

-- What was forwarded, if that is to be kept for a while. Ids ascend with
-- sent_at, so that the oldest rows are found by the primary key.
CREATE TABLE {outbox_sent} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    position     INTEGER NOT NULL,
    message_id   TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    ordering_key TEXT,
    payload      ANY     NOT NULL,
    metadata     TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    sent_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

-- Forwarders at work, so that each knows its share of the slots, and that all
-- send to one destination. The last one that has ended stays until another one
-- comes, which says so if it sends elsewhere.
CREATE TABLE {forwarders} (
    owner       TEXT    PRIMARY KEY,
    lease_until INTEGER NOT NULL CHECK (lease_until < 253402300800000), -- the year 10000
    destination TEXT    NOT NULL DEFAULT '' -- that is not known
) STRICT;

-- Who forwards which part of the outbox.
CREATE TABLE {slots} (
    slot        INTEGER PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner       TEXT,
    lease_until INTEGER CHECK (lease_until < 253402300800000)
) STRICT;
INSERT INTO {slots} (slot)
WITH RECURSIVE n(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM n WHERE slot < 63)
SELECT slot FROM n;

-- What each consumer has done. The primary key is the promise.
CREATE TABLE {inbox} (
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    processed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    digest       ANY     NOT NULL,
    tenant       TEXT,
    PRIMARY KEY (message_id, consumer)
) STRICT;

-- For retention.
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);

-- The last version of each aggregate that a consumer has applied, and the one from which on it has applied all. Written in the
-- transaction of the message.
CREATE TABLE {versions} (
    consumer       TEXT    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    complete_from  INTEGER NOT NULL,
    applied_at     INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) STRICT;

-- Messages that wait for their consumer, for whatever reason. The envelope is
-- the message byte for byte; the text columns are cleaned and bounded copies.
CREATE TABLE {parked} (
    id              INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0),
    consumer        TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    ordering_key    TEXT,    -- in whose order it has its place, if in any
    tenant          TEXT    NOT NULL DEFAULT '',
    digest          ANY     NOT NULL,
    envelope        ANY     NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('waiting', 'held', 'quarantined', 'resolved', 'discarded')),
    priority_class  TEXT    NOT NULL DEFAULT 'live' CHECK (priority_class IN ('live', 'retry', 'replay')),
    due_at          INTEGER NOT NULL,
    owner           TEXT,
    token           TEXT,
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    rounds          INTEGER NOT NULL DEFAULT 0 CHECK (rounds >= 0),
    crashes         INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    replays         INTEGER NOT NULL DEFAULT 0 CHECK (replays >= 0),
    replay_id       INTEGER, -- the replay that it was part of last
    edited_from     INTEGER, -- the entry that it is the edited form of
    origin          TEXT,    -- where it was exported, for what was imported
    early_since     INTEGER, -- when it came before its turn
    early_of        TEXT,    -- in which sequence
    early_version   INTEGER, -- and as which version
    reason          TEXT    NOT NULL DEFAULT '',
    error           TEXT    NOT NULL DEFAULT '',
    error_type      TEXT    NOT NULL DEFAULT '',
    fingerprint     TEXT    NOT NULL DEFAULT '',
    dedup_key       TEXT, -- what the inbox has of its business key: '' if it has none, NULL if that is not known
    created_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    first_failed_at INTEGER,
    last_failed_at  INTEGER,
    finished_at     INTEGER,
    CHECK (state <> 'held' OR ordering_key IS NOT NULL)
) STRICT;

-- A copy of a message that is parked already is the same entry. Messages
-- without an id cannot be told apart and are all kept. The id comes first: who
-- looks for a message need not know which consumers failed it.
CREATE UNIQUE INDEX {index parked_message} ON {parked} (message_id, consumer, digest) WHERE message_id <> '';

-- The one sweep of waiting rows: in a priority_class by tenant.
CREATE INDEX {index parked_due} ON {parked} (consumer, topic, priority_class, tenant, due_at) WHERE state = 'waiting' AND crashes = 0;

-- Its other half: what is claimed, and what a process has ended under.
CREATE INDEX {index parked_crashed} ON {parked} (consumer, topic, due_at) WHERE state = 'waiting' AND crashes > 0;

-- Which tenants have retries that are due.
CREATE INDEX {index parked_retry} ON {parked} (consumer, topic, due_at)
    WHERE priority_class || '' = 'retry' AND state = 'waiting' AND crashes = 0;

-- The head of each ordering key. There is one.
CREATE UNIQUE INDEX {index parked_head} ON {parked} (consumer, topic, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined');

-- What waits behind it.
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

-- Of one consumer, which may have few of very many: the id is part of it. With
-- || no other question about a consumer takes it for the better one.
CREATE INDEX {index parked_consumer} ON {parked} (consumer) WHERE state || '' = 'quarantined';

-- Its groups, page by page, and of each its entries: the id is part of it.
CREATE INDEX {index parked_fingerprint} ON {parked} (fingerprint) WHERE state = 'quarantined';

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
    topic         TEXT    NOT NULL,
    consumer      TEXT    NOT NULL,
    embedded      INTEGER NOT NULL DEFAULT 0, -- subscribed through the embedded transport
    key_order     INTEGER NOT NULL DEFAULT 0, -- handles messages of one ordering key in order
    program       TEXT    NOT NULL DEFAULT '', -- that ran it last
    handler       TEXT    NOT NULL DEFAULT '', -- in the router of that program
    owner         TEXT    NOT NULL DEFAULT '', -- host, process and subscription that ran it last
    registered_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    seen_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (topic, consumer)
) STRICT;

-- Who replayed, edited or discarded what, and why.
CREATE TABLE {audit} (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    actor      TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    consumer   TEXT    NOT NULL DEFAULT '',
    message_id TEXT    NOT NULL DEFAULT '',
    why        TEXT    NOT NULL DEFAULT '',
    replay_id  INTEGER -- the replay that it is part of
) STRICT;

-- Replays of many messages: what was to be replayed, and how far that is.
CREATE TABLE {replays} (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer    TEXT    NOT NULL, -- '' is all of them
    filter      TEXT    NOT NULL CHECK (json_type(filter) = 'object'),
    plan        TEXT    NOT NULL CHECK (json_type(plan) = 'object'),
    actor       TEXT    NOT NULL,
    why         TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'finished')),
    stop_reason TEXT    NOT NULL DEFAULT '',
    total       INTEGER NOT NULL, -- entries that matched when it began
    until_id    INTEGER NOT NULL, -- the last of them
    after_id    INTEGER NOT NULL DEFAULT 0, -- how far it is
    replayed    INTEGER NOT NULL DEFAULT 0,
    resolved    INTEGER NOT NULL DEFAULT 0, -- as it was when it stopped
    failed      INTEGER NOT NULL DEFAULT 0, -- the same
    token       TEXT,
    lease_until INTEGER,
    started_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    ended_at    INTEGER
) STRICT;

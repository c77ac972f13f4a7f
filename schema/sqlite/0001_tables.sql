-- Times are whole milliseconds since 1970 in UTC. The tables are strict: if somebody
-- wrote text instead of a number into a row by hand, a query could not read the other
-- rows either. Binary columns have the type ANY, which also accepts text.

-- The outbox: events that wait to be forwarded. AUTOINCREMENT never uses a position
-- again. Otherwise a repeated delete could delete another row.
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
    unknown      INTEGER NOT NULL DEFAULT 0, -- an earlier attempt may have sent the message
    last_error   TEXT,
    failing_since INTEGER -- the time of the first failure
) STRICT;

-- Finds rows with a due time: delayed messages, and messages that wait for
-- another attempt. Rows that are due at once are not in the index.
CREATE INDEX {index outbox_due} ON {outbox} (due_at) WHERE due_at IS NOT NULL;

-- Finds the messages that have failed, and the time since the first failure.
CREATE INDEX {index outbox_failing} ON {outbox} (failing_since) WHERE failing_since IS NOT NULL;

-- Blocked ordering keys: the broker refused the head of the key, or the head is
-- a dead letter, and its successors wait. position belongs to the head. The row
-- is deleted together with the head. The successors have positions above
-- successors_after, which may differ from position: a successor that commits late
-- may have a lower position than the head, and a replayed dead letter gets a new
-- position above those of its successors.
CREATE TABLE {blocked_keys} (
    ordering_key     TEXT    PRIMARY KEY,
    position         INTEGER NOT NULL,
    successors_after INTEGER NOT NULL,
    reason           TEXT    NOT NULL,
    blocked_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

-- Topics and tenants that an operator has paused: forwarders send none of their
-- messages, and no later message of the same ordering keys.
CREATE TABLE {pauses} (
    kind      TEXT    NOT NULL CHECK (kind IN ('topic', 'tenant')),
    name      TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    why       TEXT    NOT NULL,
    paused_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (kind, name)
) STRICT;

-- Dead letters of the forwarder. The columns from tenant on are shortened copies of
-- metadata, for searches. They are '' if the metadata is missing.
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
    fingerprint  TEXT    NOT NULL DEFAULT 'unknown',
    unknown      INTEGER NOT NULL,
    died_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    tenant         TEXT  NOT NULL DEFAULT '',
    aggregate_type TEXT  NOT NULL DEFAULT '',
    aggregate_id   TEXT  NOT NULL DEFAULT '',
    event_type     TEXT  NOT NULL DEFAULT '',
    causation_id   TEXT  NOT NULL DEFAULT ''
) STRICT;

-- Find a message, the messages of an aggregate, and what a message has caused.
CREATE INDEX {index dead_message} ON {outbox_dead} (message_id);
CREATE INDEX {index dead_aggregate} ON {outbox_dead} (aggregate_id) WHERE aggregate_id <> '';
CREATE INDEX {index dead_causation} ON {outbox_dead} (causation_id) WHERE causation_id <> '';

-- List the dead letters of a topic, a tenant, an aggregate type, an event type, a reason,
-- a group or a time page by page.
CREATE INDEX {index dead_topic} ON {outbox_dead} (topic);
CREATE INDEX {index dead_tenant} ON {outbox_dead} (tenant) WHERE tenant <> '';
CREATE INDEX {index dead_type} ON {outbox_dead} (aggregate_type) WHERE aggregate_type <> '';
CREATE INDEX {index dead_event} ON {outbox_dead} (event_type) WHERE event_type <> '';
CREATE INDEX {index dead_reason} ON {outbox_dead} (reason);
CREATE INDEX {index dead_group} ON {outbox_dead} (fingerprint);
CREATE INDEX {index dead_time} ON {outbox_dead} (died_at);

-- Tells whether the dead letter that blocks a key still exists.
CREATE INDEX {index outbox_dead_key} ON {outbox_dead} (ordering_key, position) WHERE ordering_key IS NOT NULL;

-- Forwarded messages, if the forwarder keeps them for a time. Ids ascend with
-- sent_at, so the primary key finds the oldest rows.
CREATE TABLE {outbox_sent} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    position     INTEGER NOT NULL,
    message_id   TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    ordering_key TEXT,
    payload      ANY     NOT NULL,
    metadata     TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    sent_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    tenant         TEXT  NOT NULL DEFAULT '',
    aggregate_type TEXT  NOT NULL DEFAULT '',
    aggregate_id   TEXT  NOT NULL DEFAULT '',
    event_type     TEXT  NOT NULL DEFAULT '',
    causation_id   TEXT  NOT NULL DEFAULT ''
) STRICT;

-- The same for the sent log.
CREATE INDEX {index sent_message} ON {outbox_sent} (message_id);
CREATE INDEX {index sent_aggregate} ON {outbox_sent} (aggregate_id, aggregate_type) WHERE aggregate_id <> '';
CREATE INDEX {index sent_causation} ON {outbox_sent} (causation_id) WHERE causation_id <> '';

-- Running forwarders. Each forwarder computes its share of the slots from these rows.
-- All forwarders must send to the same destination. The row of the last forwarder stays
-- after its end, until the next forwarder starts and compares the destinations.
CREATE TABLE {forwarders} (
    owner       TEXT    PRIMARY KEY,
    lease_until INTEGER NOT NULL CHECK (lease_until < 253402300800000), -- the year 10000
    destination TEXT    NOT NULL DEFAULT '' -- '' if the destination is unknown
) STRICT;

-- The forwarder of each slot. A slot is a part of the outbox.
CREATE TABLE {slots} (
    slot        INTEGER PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner       TEXT,
    lease_until INTEGER CHECK (lease_until < 253402300800000)
) STRICT;
INSERT INTO {slots} (slot)
WITH RECURSIVE n(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM n WHERE slot < 63)
SELECT slot FROM n;

-- The inbox: the messages that each consumer has handled. The primary key
-- guarantees that a consumer handles a message once.
CREATE TABLE {inbox} (
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    processed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    digest       ANY     NOT NULL,
    tenant       TEXT,
    PRIMARY KEY (message_id, consumer)
) STRICT;

-- Finds the oldest rows for retention.
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);

-- The last version of each aggregate that a consumer has applied, and the version
-- since which it has applied all versions. The transaction of a message writes the
-- row.
CREATE TABLE {versions} (
    consumer       TEXT    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    complete_from  INTEGER NOT NULL,
    applied_at     INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) STRICT;

-- Messages that wait for their consumer: between two attempts, after a redelivery,
-- in quarantine, stored by the embedded transport or by a durable consumer. The
-- envelope is the message byte for byte. The text columns are bounded copies
-- without the characters that a text column cannot store.
CREATE TABLE {parked} (
    id              INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0),
    consumer        TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    ordering_key    TEXT,    -- NULL if the message need not be handled in the order of a key
    tenant          TEXT    NOT NULL DEFAULT '',
    aggregate_type  TEXT    NOT NULL DEFAULT '',
    aggregate_id    TEXT    NOT NULL DEFAULT '',
    event_type      TEXT    NOT NULL DEFAULT '',
    causation_id    TEXT    NOT NULL DEFAULT '',
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
    replay_id       INTEGER, -- the latest replay that included the entry
    edited_from     INTEGER, -- the entry that this entry replaces
    origin          TEXT,    -- identity of an imported entry in the database that exported it
    early_since     INTEGER, -- the time since when a lower version is missing
    early_of        TEXT,    -- the sequence (aggregate) to which the message belongs
    early_version   INTEGER, -- the version of this message
    reason          TEXT    NOT NULL DEFAULT '',
    error           TEXT    NOT NULL DEFAULT '',
    error_type      TEXT    NOT NULL DEFAULT '',
    fingerprint     TEXT    NOT NULL DEFAULT '',
    stack           TEXT    NOT NULL DEFAULT '',
    dedup_key       TEXT, -- the id of the message's business key in the inbox: '' if it has no such key, NULL if this is unknown
    created_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    first_failed_at INTEGER,
    last_failed_at  INTEGER,
    finished_at     INTEGER,
    CHECK (state <> 'held' OR ordering_key IS NOT NULL)
) STRICT;

-- Copies of a message share one row. Messages without an id cannot be distinguished, so
-- each of them has its own row. message_id is the first column, so that a search for a
-- message does not need the names of its consumers.
CREATE UNIQUE INDEX {index parked_message} ON {parked} (message_id, consumer, digest) WHERE message_id <> '';

-- Finds due rows. The order is by priority class, then by tenant.
CREATE INDEX {index parked_due} ON {parked} (consumer, topic, priority_class, tenant, due_at) WHERE state = 'waiting' AND crashes = 0;

-- Finds the other waiting rows: claimed rows, and rows whose crash count is above
-- zero.
CREATE INDEX {index parked_crashed} ON {parked} (consumer, topic, due_at) WHERE state = 'waiting' AND crashes > 0;

-- Finds the tenants with due retries.
CREATE INDEX {index parked_retry} ON {parked} (consumer, topic, due_at)
    WHERE priority_class || '' = 'retry' AND state = 'waiting' AND crashes = 0;

-- The head of each ordering key. A key has at most one head.
CREATE UNIQUE INDEX {index parked_head} ON {parked} (consumer, topic, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined');

-- The held rows behind the head.
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

-- Lists the quarantine of one consumer, even if only a few of very many entries belong
-- to this consumer. SQLite adds the id to each index. The || keeps the planner from
-- choosing the index for other queries about a consumer. The second index also counts the
-- entries of each topic.
CREATE INDEX {index parked_consumer} ON {parked} (consumer) WHERE state || '' = 'quarantined';
CREATE INDEX {index parked_counts} ON {parked} (consumer, topic) WHERE state || '' = 'quarantined';

-- List the entries of a topic, a tenant, an aggregate type, an event type, a reason, an
-- error type or a time of failure page by page.
CREATE INDEX {index parked_topic} ON {parked} (topic) WHERE state = 'quarantined';
CREATE INDEX {index parked_tenant} ON {parked} (tenant) WHERE state = 'quarantined' AND tenant <> '';
CREATE INDEX {index parked_type} ON {parked} (aggregate_type) WHERE state = 'quarantined' AND aggregate_type <> '';
CREATE INDEX {index parked_event} ON {parked} (event_type) WHERE state = 'quarantined' AND event_type <> '';
CREATE INDEX {index parked_reason} ON {parked} (reason) WHERE state = 'quarantined';
CREATE INDEX {index parked_error} ON {parked} (error_type) WHERE state = 'quarantined' AND error_type <> '';
CREATE INDEX {index parked_failed} ON {parked} (last_failed_at) WHERE state = 'quarantined';

-- Lists failure groups page by page, and the entries of a group.
CREATE INDEX {index parked_fingerprint} ON {parked} (fingerprint) WHERE state = 'quarantined';

-- Find the messages of an aggregate, and what a message has caused. Waiting and held
-- rows are not in the indexes, because these rows are written for every stored message
-- and every claim.
CREATE INDEX {index parked_aggregate} ON {parked} (aggregate_id)
    WHERE aggregate_id <> '' AND state IN ('quarantined', 'resolved', 'discarded');
CREATE INDEX {index parked_causation} ON {parked} (causation_id)
    WHERE causation_id <> '' AND state IN ('quarantined', 'resolved', 'discarded');

-- Finds the entry that replaces an edited one.
CREATE INDEX {index parked_edited} ON {parked} (edited_from) WHERE edited_from IS NOT NULL;

-- Finds the entries of a replay, by their outcomes.
CREATE INDEX {index parked_replay} ON {parked} (replay_id, state) WHERE replay_id IS NOT NULL;

-- Finds the replayed messages that have not been handled since.
CREATE INDEX {index parked_replayed} ON {parked} (id) WHERE replays > 0 AND state IN ('waiting', 'held');

-- Prevents a second import of the same entry.
CREATE UNIQUE INDEX {index parked_origin} ON {parked} (origin) WHERE origin IS NOT NULL;

-- Tells whether a parked message has a business key that inbox retention would
-- delete.
CREATE INDEX {index parked_key} ON {parked} (dedup_key, consumer) WHERE dedup_key <> '';

-- Finds the old entries whose business key is unknown. The || keeps the planner from
-- choosing the index for other queries about a consumer.
CREATE INDEX {index parked_unkeyed} ON {parked} (consumer, created_at) WHERE state || '' = 'quarantined' AND dedup_key IS NULL;

-- The consumers that have subscribed, with the time at which each last renewed
-- its registration. The embedded transport stores a message for every consumer
-- that is registered for its topic, even if the consumer is not running.
CREATE TABLE {consumers} (
    topic         TEXT    NOT NULL,
    consumer      TEXT    NOT NULL,
    embedded      INTEGER NOT NULL DEFAULT 0, -- subscribed through the embedded transport
    key_order     INTEGER NOT NULL DEFAULT 0, -- keeps the order of ordering keys
    program       TEXT    NOT NULL DEFAULT '', -- the program that ran it last
    handler       TEXT    NOT NULL DEFAULT '', -- the handler's name in the router of that program
    owner         TEXT    NOT NULL DEFAULT '', -- host, process and subscription that ran it last
    registered_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    seen_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (topic, consumer)
) STRICT;

-- The running subscriptions of the consumers. A subscription renews its row as often
-- as its registration and deletes the row when it ends, so a process that died leaves
-- its row. Rows that were not renewed for an hour are deleted.
CREATE TABLE {consumer_instances} (
    topic      TEXT    NOT NULL,
    consumer   TEXT    NOT NULL,
    owner      TEXT    NOT NULL, -- host, process and subscription
    program    TEXT    NOT NULL DEFAULT '',
    handler    TEXT    NOT NULL DEFAULT '',
    started_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    seen_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (topic, consumer, owner)
) STRICT;

-- The audit: each replay, edit, discard and import of a message, with the person
-- and the reason.
CREATE TABLE {audit} (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    actor      TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    consumer   TEXT    NOT NULL DEFAULT '',
    message_id TEXT    NOT NULL DEFAULT '',
    why        TEXT    NOT NULL DEFAULT '',
    replay_id  INTEGER -- the replay that includes the change
) STRICT;

-- Finds what was done to a message.
CREATE INDEX {index audit_message} ON {audit} (message_id) WHERE message_id <> '';

-- Finds the notes on a failure group.
CREATE INDEX {index audit_note} ON {audit} (subject, id) WHERE action = 'note';

-- Replays of many messages, with their filter and progress.
CREATE TABLE {replays} (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    source      TEXT    NOT NULL DEFAULT 'quarantine' CHECK (source IN ('quarantine', 'dead', 'sent')),
    consumer    TEXT    NOT NULL, -- '' stands for all consumers
    filter      TEXT    NOT NULL CHECK (json_type(filter) = 'object'),
    plan        TEXT    NOT NULL CHECK (json_type(plan) = 'object'),
    actor       TEXT    NOT NULL,
    why         TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'finished')),
    stop_reason TEXT    NOT NULL DEFAULT '',
    total       INTEGER NOT NULL, -- entries that matched at the start
    until_id    INTEGER NOT NULL, -- the last of these entries
    after_id    INTEGER NOT NULL DEFAULT 0, -- the last entry that was replayed
    replayed    INTEGER NOT NULL DEFAULT 0,
    resolved    INTEGER NOT NULL DEFAULT 0, -- count at the end of the latest run
    failed      INTEGER NOT NULL DEFAULT 0, -- count at the end of the latest run
    stale       INTEGER NOT NULL DEFAULT 0, -- count at the end of the latest run
    token       TEXT,
    lease_until INTEGER,
    started_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    ended_at    INTEGER
) STRICT;

-- Reports of reconciliations, for people: the latest reports of each consumer.
CREATE TABLE {reconciliations} (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    consumer TEXT    NOT NULL,
    missing  INTEGER NOT NULL, -- number of missing messages; the report may list fewer
    phantoms INTEGER NOT NULL,
    report   TEXT    NOT NULL
) STRICT;

-- Keys of HTTP requests, with the answers. The transaction of a request inserts its
-- key and then the answer, so a committed row has an answer.
CREATE TABLE {idempotency_keys} (
    client     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    digest     BLOB    NOT NULL, -- digest of the request
    status     INTEGER,
    header     TEXT,
    body       BLOB,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (client, key)
) STRICT;

-- Finds the oldest keys for retention.
CREATE INDEX {index idempotency_time} ON {idempotency_keys} (created_at);

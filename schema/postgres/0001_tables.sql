-- The outbox: events that wait to be forwarded. The statement that records the
-- outcome of a message deletes its row, so the table stays as small as the
-- backlog. The primary key is the only full index: the forwarder reads rows in the
-- order of their positions, and each further index would slow down the business
-- transaction. metadata is json and not jsonb, because no query looks into it.
-- If somebody edits a row by hand, the domains refuse values with which a forwarder
-- would not find the row, or would try it without end. They are not checks of the
-- table, because PostgreSQL reads and prepares such a check for each statement, which
-- costs as much as the rest of the insert. NULL does not violate a domain.
--
-- The position is assigned after the transaction has got its id. An identity column
-- would assign it earlier. The forwarder relies on this order: before it reads past a
-- position, it uses the ids of the running transactions to wait for their end.
CREATE DOMAIN {outbox_place}    AS bigint CHECK (VALUE > 0);
CREATE DOMAIN {outbox_slot}     AS smallint CHECK (VALUE BETWEEN 0 AND 63);
CREATE DOMAIN {outbox_key}      AS text CHECK (octet_length(VALUE) <= 1000); -- indexes cannot store longer keys
CREATE DOMAIN {outbox_attempts} AS integer CHECK (VALUE >= 0);
CREATE DOMAIN {outbox_time}     AS timestamptz CHECK (isfinite(VALUE));
CREATE SEQUENCE {outbox_position};
CREATE TABLE {outbox} (
    position     {outbox_place} PRIMARY KEY
                 DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{outbox_position}') END,
    message_id   text        NOT NULL,
    topic        text        NOT NULL,
    ordering_key {outbox_key},
    slot         {outbox_slot} NOT NULL,
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    due_at       {outbox_time},
    attempts     {outbox_attempts} NOT NULL DEFAULT 0,
    unknown      boolean     NOT NULL DEFAULT false, -- an earlier attempt may have sent the message
    last_error   text,
    failing_since {outbox_time} -- the time of the first failure
) WITH (
    -- Rows of the outbox are deleted soon, so the table is nearly empty most of the
    -- time. So the number of dead rows must trigger vacuum, not their share.
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
-- a dead letter, and its successors wait. position belongs to the head. The row
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

-- Topics and tenants that an operator has paused: forwarders send none of their
-- messages, and no later message of the same ordering keys.
CREATE TABLE {pauses} (
    kind      text        NOT NULL CHECK (kind IN ('topic', 'tenant')),
    name      text        NOT NULL,
    actor     text        NOT NULL,
    why       text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- Dead letters of the forwarder. They have an id of their own, because a position may
-- be used again after a failover to a replica that lagged behind. The columns from
-- tenant on are shortened copies of metadata, for searches. They are '' if the metadata
-- is missing. Indexed texts are ordered by their bytes, which costs less than a locale.
CREATE TABLE {outbox_dead} (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position     bigint      NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    topic        text        NOT NULL,
    ordering_key text,
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL,
    attempts     integer     NOT NULL,
    last_error   text        NOT NULL,
    reason       text        NOT NULL,
    fingerprint  text        NOT NULL DEFAULT 'unknown',
    unknown      boolean     NOT NULL,
    died_at      timestamptz NOT NULL DEFAULT now(),
    tenant         text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_type text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_id   text COLLATE "C" NOT NULL DEFAULT '',
    event_type     text COLLATE "C" NOT NULL DEFAULT '',
    causation_id   text COLLATE "C" NOT NULL DEFAULT ''
);

-- Find a message, the messages of an aggregate, and what a message has caused.
CREATE INDEX {index dead_message} ON {outbox_dead} (message_id);
CREATE INDEX {index dead_aggregate} ON {outbox_dead} (aggregate_id, id) WHERE aggregate_id <> '';
CREATE INDEX {index dead_causation} ON {outbox_dead} (causation_id) WHERE causation_id <> '';

-- List the dead letters of a topic, a tenant, an aggregate type, an event type, a reason,
-- a group or a time page by page. An index cannot store long texts, so it
-- contains only the beginning of the topic.
CREATE INDEX {index dead_topic} ON {outbox_dead} (left(topic, 255), id);
CREATE INDEX {index dead_tenant} ON {outbox_dead} (tenant, id) WHERE tenant <> '';
CREATE INDEX {index dead_type} ON {outbox_dead} (aggregate_type, id) WHERE aggregate_type <> '';
CREATE INDEX {index dead_event} ON {outbox_dead} (event_type, id) WHERE event_type <> '';
CREATE INDEX {index dead_reason} ON {outbox_dead} (reason, id);
CREATE INDEX {index dead_group} ON {outbox_dead} (fingerprint, id);
CREATE INDEX {index dead_time} ON {outbox_dead} (died_at, id);

-- Tells whether the dead letter that blocks a key still exists.
CREATE INDEX {index outbox_dead_key} ON {outbox_dead} (ordering_key, position) WHERE ordering_key IS NOT NULL;

-- Forwarded messages, if the forwarder keeps them for a time. Ids ascend with
-- sent_at, so the primary key finds the oldest rows.
CREATE TABLE {outbox_sent} (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position     bigint      NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    topic        text        NOT NULL,
    ordering_key text,
    payload      bytea       NOT NULL,
    metadata     json        NOT NULL,
    created_at   timestamptz NOT NULL,
    sent_at      timestamptz NOT NULL DEFAULT now(),
    tenant         text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_type text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_id   text COLLATE "C" NOT NULL DEFAULT '',
    event_type     text COLLATE "C" NOT NULL DEFAULT '',
    causation_id   text COLLATE "C" NOT NULL DEFAULT ''
);

-- The same for the sent log. Each index costs the forwarder some microseconds per
-- message, so the tenant and the event type have no index: a scan finds them. Messages
-- without an aggregate or a cause are not in the indexes.
CREATE INDEX {index sent_message} ON {outbox_sent} (message_id);
CREATE INDEX {index sent_aggregate} ON {outbox_sent} (aggregate_id, aggregate_type) WHERE aggregate_id <> '';
CREATE INDEX {index sent_causation} ON {outbox_sent} (causation_id) WHERE causation_id <> '';

-- Running forwarders. Each forwarder computes its share of the slots from these rows.
-- All forwarders must send to the same destination. The row of the last forwarder stays
-- after its end, until the next forwarder starts and compares the destinations.
CREATE TABLE {forwarders} (
    owner       text        PRIMARY KEY,
    lease_until timestamptz NOT NULL CHECK (isfinite(lease_until)), -- an infinite lease would never end
    destination text        NOT NULL DEFAULT '' -- '' if the destination is unknown
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
    ordering_key    text,    -- NULL if the message need not be handled in the order of a key
    tenant          text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_type  text COLLATE "C" NOT NULL DEFAULT '',
    aggregate_id    text COLLATE "C" NOT NULL DEFAULT '',
    event_type      text COLLATE "C" NOT NULL DEFAULT '',
    causation_id    text COLLATE "C" NOT NULL DEFAULT '',
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
    replay_id       bigint,  -- the latest replay that included the entry
    edited_from     bigint,  -- the entry that this entry replaces
    origin          text,    -- identity of an imported entry in the database that exported it
    early_since     timestamptz, -- the time since when a lower version is missing
    early_of        text,        -- the sequence (aggregate) to which the message belongs
    early_version   bigint,      -- the version of this message
    reason          text        NOT NULL DEFAULT '',
    error           text        NOT NULL DEFAULT '',
    error_type      text        NOT NULL DEFAULT '',
    fingerprint     text        NOT NULL DEFAULT '',
    stack           text        NOT NULL DEFAULT '', -- of the panic that the error reports
    dedup_key       text COLLATE "C", -- the id of the message's business key in the inbox: '' if it has no such key, NULL if this is unknown
    created_at      timestamptz NOT NULL DEFAULT now(),
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    finished_at     timestamptz,
    CHECK (state <> 'held' OR ordering_key IS NOT NULL)
);

-- Copies of a message share one row. Messages without an id cannot be distinguished, so
-- each of them has its own row. message_id is the first column, so that a search for a
-- message does not need the names of its consumers.
CREATE UNIQUE INDEX {index parked_message} ON {parked} (message_id, consumer, digest) WHERE message_id <> '';

-- Finds due rows of a consumer and topic. The order is by priority class, then by
-- tenant, then by due time. The rows of a tenant are found in one step, even if other
-- tenants have many rows.
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

-- Lists the quarantine of one consumer, even if only a few of very many entries belong
-- to this consumer. The || keeps the planner from choosing the index for other queries
-- about a consumer. The second index also counts the entries of each topic.
CREATE INDEX {index parked_consumer} ON {parked} (consumer, id) WHERE state || '' = 'quarantined';
CREATE INDEX {index parked_counts} ON {parked} (consumer, topic, id) WHERE state || '' = 'quarantined';

-- List the entries of a topic, a tenant, an aggregate type, an event type, a reason, an
-- error type or a time of failure page by page.
CREATE INDEX {index parked_topic} ON {parked} (topic, id) WHERE state = 'quarantined';
CREATE INDEX {index parked_tenant} ON {parked} (tenant, id) WHERE state = 'quarantined' AND tenant <> '';
CREATE INDEX {index parked_type} ON {parked} (aggregate_type, id) WHERE state = 'quarantined' AND aggregate_type <> '';
CREATE INDEX {index parked_event} ON {parked} (event_type, id) WHERE state = 'quarantined' AND event_type <> '';
CREATE INDEX {index parked_reason} ON {parked} (reason, id) WHERE state = 'quarantined';
CREATE INDEX {index parked_error} ON {parked} (error_type, id) WHERE state = 'quarantined' AND error_type <> '';
CREATE INDEX {index parked_failed} ON {parked} (last_failed_at, id) WHERE state = 'quarantined';

-- Lists failure groups page by page, and the entries of a group. Without this index,
-- each batch of a group would sort the whole group if its cause is new and therefore
-- not in the statistics.
CREATE INDEX {index parked_fingerprint} ON {parked} (fingerprint, id) WHERE state = 'quarantined';

-- Find the messages of an aggregate, and what a message has caused. Waiting and held
-- rows are not in the indexes, because these rows are written for every stored message
-- and every claim.
CREATE INDEX {index parked_aggregate} ON {parked} (aggregate_id, id)
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

-- The running subscriptions of the consumers. A subscription renews its row as often
-- as its registration and deletes the row when it ends, so a process that died leaves
-- its row. Rows that were not renewed for an hour are deleted.
CREATE TABLE {consumer_instances} (
    topic      text        NOT NULL,
    consumer   text        NOT NULL,
    owner      text        NOT NULL, -- host, process and subscription
    program    text        NOT NULL DEFAULT '',
    handler    text        NOT NULL DEFAULT '',
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, consumer, owner)
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

-- Finds what was done to a message.
CREATE INDEX {index audit_message} ON {audit} (message_id) WHERE message_id <> '';

-- Finds the notes on a failure group.
CREATE INDEX {index audit_note} ON {audit} (subject, id) WHERE action = 'note';

-- Replays of many messages, with their filter and progress. A running replay has a
-- lease. If its process has died, the replay can be resumed. A consumer can have only
-- one running replay of its quarantine at a time.
CREATE TABLE {replays} (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source      text        NOT NULL DEFAULT 'quarantine' CHECK (source IN ('quarantine', 'dead', 'sent')),
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
    resolved    bigint      NOT NULL DEFAULT 0, -- count at the end of the latest run
    failed      bigint      NOT NULL DEFAULT 0, -- count at the end of the latest run
    stale       bigint      NOT NULL DEFAULT 0, -- count at the end of the latest run
    token       text,
    lease_until timestamptz,
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz
);

-- Reports of reconciliations, for people: the latest reports of each consumer.
CREATE TABLE {reconciliations} (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    consumer text        NOT NULL,
    missing  bigint      NOT NULL, -- number of missing messages; the report may list fewer
    phantoms bigint      NOT NULL,
    report   json        NOT NULL
);

-- Takes an envelope apart, for people who read the tables. An envelope is a byte with
-- its version, 1, then the id, the number of headers, their keys and values, and the
-- payload. Each number has seven bits per byte, the lowest first, and each string
-- follows its length. A damaged envelope gives NULL. Text that PostgreSQL cannot store
-- is shown in the form "escape" of encode().
CREATE FUNCTION {decode_envelope}(envelope bytea, OUT envelope_id text, OUT headers jsonb, OUT payload bytea)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    size   integer := octet_length(envelope);
    at     integer := 1;
    step   integer := 0; -- 0: the id, 1: the number of headers, then keys and values
    last   integer := 2; -- the step of the payload
    n      bigint;
    shift  integer;
    part   bytea;
    words  text;
    key    text;
    id     text;
    known  jsonb := jsonb_build_object();
BEGIN
    IF size = 0 OR get_byte(envelope, 0) <> 1 THEN
        RETURN;
    END IF;
    LOOP
        n := 0;
        shift := 0;
        LOOP
            IF at >= size OR shift > 28 THEN
                RETURN;
            END IF;
            n := n | ((get_byte(envelope, at) & 127)::bigint << shift);
            at := at + 1;
            EXIT WHEN get_byte(envelope, at - 1) < 128;
            shift := shift + 7;
        END LOOP;
        IF n > size - at THEN
            RETURN;
        END IF;
        IF step = 1 THEN
            last := 2 + 2 * n;
        ELSE
            part := substr(envelope, at + 1, n::integer);
            at := at + n;
            IF step = last THEN
                EXIT;
            END IF;
            BEGIN
                words := convert_from(part, 'UTF8');
            EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
                words := encode(part, 'escape');
            END;
            IF step = 0 THEN
                id := words;
            ELSIF step % 2 = 0 THEN
                key := words;
            ELSE
                known := known || jsonb_build_object(key, words);
            END IF;
        END IF;
        step := step + 1;
    END LOOP;
    IF at = size THEN
        envelope_id := id;
        headers := known;
        payload := part;
    END IF;
END $$;

-- The parked messages with the contents of their envelopes.
CREATE VIEW {parked_messages} AS
SELECT p.id, p.consumer, p.topic, p.state, p.attempts, p.reason, p.error, p.created_at, p.due_at, p.last_failed_at,
       e.envelope_id, e.headers, e.payload
FROM {parked} AS p, LATERAL {decode_envelope}(p.envelope) AS e;

-- Keys of HTTP requests, with the answers. The transaction of a request inserts its
-- key and then the answer, so a committed row has an answer.
CREATE TABLE {idempotency_keys} (
    client     text        NOT NULL,
    key        text        NOT NULL,
    digest     bytea       NOT NULL, -- digest of the request
    status     integer,
    header     json,
    body       bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (client, key)
);

-- Finds the oldest keys for retention.
CREATE INDEX {index idempotency_time} ON {idempotency_keys} (created_at);

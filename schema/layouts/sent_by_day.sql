-- What is there becomes the partition of all days until now, and is dropped as one
-- when its last row has expired. Its index on (id, sent_at) is built, and its rows are
-- read, while forwarders wait.
SET LOCAL lock_timeout = '5s';
ALTER TABLE {outbox_sent} ALTER COLUMN id DROP IDENTITY;
ALTER TABLE {outbox_sent} DROP CONSTRAINT {index outbox_sent_pkey};
ALTER TABLE {outbox_sent} RENAME TO {index outbox_sent_first};
ALTER INDEX {sent_message} RENAME TO {index sent_first_message};
ALTER INDEX {sent_aggregate} RENAME TO {index sent_first_aggregate};
ALTER INDEX {sent_causation} RENAME TO {index sent_first_causation};

-- A row is in the partition of the day at which it was sent. The id alone is unique,
-- too, because nothing but the identity gives ids.
CREATE TABLE {outbox_sent} (LIKE {outbox_sent_first} INCLUDING DEFAULTS, PRIMARY KEY (id, sent_at)) PARTITION BY RANGE (sent_at);
ALTER TABLE {outbox_sent} ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('{outbox_sent}', 'id'), COALESCE(MAX(id), 0) + 1, false) FROM {outbox_sent_first};
CREATE INDEX {index sent_message} ON {outbox_sent} (message_id);
CREATE INDEX {index sent_aggregate} ON {outbox_sent} (aggregate_id, aggregate_type) WHERE aggregate_id <> '';
CREATE INDEX {index sent_causation} ON {outbox_sent} (causation_id) WHERE causation_id <> '';
ALTER TABLE {outbox_sent} ATTACH PARTITION {outbox_sent_first}
    FOR VALUES FROM (MINVALUE) TO ((date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC');

-- Rows of a day without a partition. It is empty unless nobody creates the days.
CREATE TABLE {outbox_sent_default} PARTITION OF {outbox_sent} DEFAULT;

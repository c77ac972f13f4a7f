-- The existing table becomes the partition of all days until today. It is dropped as a
-- whole when its last row has expired. PostgreSQL builds its index on (id, sent_at) and
-- reads its rows. Forwarders wait until this has ended.
SET LOCAL lock_timeout = '5s';
ALTER TABLE {outbox_sent} ALTER COLUMN id DROP IDENTITY;
ALTER TABLE {outbox_sent} DROP CONSTRAINT {index outbox_sent_pkey};
ALTER TABLE {outbox_sent} RENAME TO {index outbox_sent_first};
ALTER INDEX {sent_message} RENAME TO {index sent_first_message};
ALTER INDEX {sent_aggregate} RENAME TO {index sent_first_aggregate};
ALTER INDEX {sent_causation} RENAME TO {index sent_first_causation};

-- A row is in the partition of the day on which its message was sent. The id alone is
-- also unique, because all ids come from the identity column.
CREATE TABLE {outbox_sent} (LIKE {outbox_sent_first} INCLUDING DEFAULTS, PRIMARY KEY (id, sent_at)) PARTITION BY RANGE (sent_at);
ALTER TABLE {outbox_sent} ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('{outbox_sent}', 'id'), COALESCE(MAX(id), 0) + 1, false) FROM {outbox_sent_first};
CREATE INDEX {index sent_message} ON {outbox_sent} (message_id);
CREATE INDEX {index sent_aggregate} ON {outbox_sent} (aggregate_id, aggregate_type) WHERE aggregate_id <> '';
CREATE INDEX {index sent_causation} ON {outbox_sent} (causation_id) WHERE causation_id <> '';
ALTER TABLE {outbox_sent} ATTACH PARTITION {outbox_sent_first}
    FOR VALUES FROM (MINVALUE) TO ((date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC');

-- The partition for rows of a day that has no partition. It stays empty as long as a
-- process creates the partitions of the days.
CREATE TABLE {outbox_sent_default} PARTITION OF {outbox_sent} DEFAULT;

-- The existing table becomes the partition for ids that belong to no day. This is
-- immediate, because PostgreSQL copies and reads no rows. Partitions of days are added
-- while the service runs. The statements wait for transactions that use the inbox, but
-- only for a short time, because later transactions wait as well.
SET LOCAL lock_timeout = '5s';
ALTER TABLE {inbox} RENAME TO {index inbox_default};
ALTER INDEX {inbox_pkey} RENAME TO {index inbox_default_pkey};
ALTER INDEX {inbox_processed} RENAME TO {index inbox_default_processed};

-- The id alone determines the partition. So all copies of a message belong to the same
-- partition, even if they arrive at different times, and the primary key guarantees the
-- same as before.
CREATE TABLE {inbox} (LIKE {inbox_default} INCLUDING DEFAULTS, PRIMARY KEY (message_id, consumer))
    PARTITION BY RANGE (message_id);
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);
ALTER TABLE {inbox} ATTACH PARTITION {inbox_default} DEFAULT;

-- What is there becomes the partition for ids that are of no day, in no time:
-- nothing is copied, and nothing is read. Days are added to it while the
-- service runs. Who uses the inbox is waited for, but not for long, because
-- those who come after wait as well.
SET LOCAL lock_timeout = '5s';
ALTER TABLE {inbox} RENAME TO {index inbox_default};
ALTER INDEX {inbox_pkey} RENAME TO {index inbox_default_pkey};
ALTER INDEX {inbox_processed} RENAME TO {index inbox_default_processed};

-- By the id itself and nothing else: copies of a message meet in one partition,
-- whenever they come, and the primary key is the same promise as before.
CREATE TABLE {inbox} (LIKE {inbox_default} INCLUDING DEFAULTS, PRIMARY KEY (message_id, consumer))
    PARTITION BY RANGE (message_id);
CREATE INDEX {index inbox_processed} ON {inbox} (processed_at);
ALTER TABLE {inbox} ATTACH PARTITION {inbox_default} DEFAULT;

-- compatible_from: 1
-- A consumer's breaker. While it is open, the consumer has a row in {consumer_pauses}, whose
-- actor is 'breaker'. From probe_at, one instance may try one message: it moves probe_at
-- forward, so that no other instance tries one. In an operator's row, probe_at is NULL.
ALTER TABLE {consumer_pauses} ADD COLUMN probe_at INTEGER;
ALTER TABLE {consumer_pauses} ADD COLUMN probes INTEGER NOT NULL DEFAULT 0; -- failed probes
ALTER TABLE {consumer_pauses} ADD COLUMN prober TEXT NOT NULL DEFAULT ''; -- owner of the instance that probes, or has probed last
ALTER TABLE {consumer_pauses} ADD COLUMN fingerprint TEXT NOT NULL DEFAULT ''; -- failure group of the messages that opened the breaker

-- The time since which calls fail in this instance. Its breaker is open for this instance
-- alone, until more than half of the running instances have such a time.
ALTER TABLE {consumer_instances} ADD COLUMN failing_since INTEGER;

-- The limits of consumers. All instances of a consumer take the starts of their messages from
-- given_until: an instance moves it forward, and may start so many messages in that time.
-- per_second and burst are NULL unless an operator has set them, and the configuration applies.
CREATE TABLE {consumer_limits} (
    topic       TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    per_second  REAL,
    burst       INTEGER,
    actor       TEXT    NOT NULL DEFAULT '',
    why         TEXT    NOT NULL DEFAULT '',
    set_at      INTEGER,
    given_until INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    given       INTEGER NOT NULL DEFAULT 0, -- starts that instances have taken since given_since
    given_since INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)), -- 5 to 20 seconds ago, while starts are taken
    PRIMARY KEY (topic, consumer)
) STRICT;

-- The limit in the configuration of this instance.
ALTER TABLE {consumer_instances} ADD COLUMN per_second REAL;
ALTER TABLE {consumer_instances} ADD COLUMN burst INTEGER;

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

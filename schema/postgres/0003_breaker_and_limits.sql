-- compatible_from: 1
-- A consumer's breaker. While it is open, the consumer has a row in {consumer_pauses}, whose
-- actor is 'breaker'. From probe_at, one instance may try one message: it moves probe_at
-- forward, so that no other instance tries one. In an operator's row, probe_at is NULL.
ALTER TABLE {consumer_pauses}
    ADD COLUMN probe_at    timestamptz,
    ADD COLUMN probes      integer NOT NULL DEFAULT 0,  -- failed probes
    ADD COLUMN prober      text    NOT NULL DEFAULT '', -- owner of the instance that probes, or has probed last
    ADD COLUMN fingerprint text    NOT NULL DEFAULT ''; -- failure group of the messages that opened the breaker

-- The time since which calls fail in this instance. Its breaker is open for this instance
-- alone, until more than half of the running instances have such a time.
ALTER TABLE {consumer_instances} ADD COLUMN failing_since timestamptz;

-- The limits of consumers. All instances of a consumer take the starts of their messages from
-- given_until: an instance moves it forward, and may start so many messages in that time.
-- per_second and burst are NULL unless an operator has set them, and the configuration applies.
CREATE TABLE {consumer_limits} (
    topic       text        NOT NULL,
    consumer    text        NOT NULL,
    per_second  double precision,
    burst       integer,
    actor       text        NOT NULL DEFAULT '',
    why         text        NOT NULL DEFAULT '',
    set_at      timestamptz,
    given_until timestamptz NOT NULL DEFAULT now(),
    given       bigint      NOT NULL DEFAULT 0,     -- starts that instances have taken since given_since
    given_since timestamptz NOT NULL DEFAULT now(), -- 5 to 20 seconds ago, while starts are taken
    PRIMARY KEY (topic, consumer)
);

-- The limit in the configuration of this instance.
ALTER TABLE {consumer_instances}
    ADD COLUMN per_second double precision,
    ADD COLUMN burst      integer;

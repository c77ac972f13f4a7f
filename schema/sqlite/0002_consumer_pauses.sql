-- compatible_from: 1
-- Consumers that an operator has paused. While a consumer has a row for a topic, no
-- instance starts to handle a message of the topic. Older code ignores the rows.
CREATE TABLE {consumer_pauses} (
    topic     TEXT    NOT NULL,
    consumer  TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    why       TEXT    NOT NULL,
    paused_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (topic, consumer)
) STRICT;

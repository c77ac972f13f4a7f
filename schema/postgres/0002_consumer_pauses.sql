-- compatible_from: 1
-- Consumers that an operator has paused. While a consumer has a row for a topic, no
-- instance starts to handle a message of the topic. Older code ignores the rows.
CREATE TABLE {consumer_pauses} (
    topic     text        NOT NULL,
    consumer  text        NOT NULL,
    actor     text        NOT NULL,
    why       text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, consumer)
);

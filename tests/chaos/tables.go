package main

// tables are the business's own. What could hide that something happened twice
// is not unique.
//
// A key's number is taken under its row's lock: transactions that write events
// of one key wait for each other, and the numbers of those that commit have no
// gaps.
const tables = `
CREATE TABLE business (
	serial       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id   text   NOT NULL,
	tx           text   NOT NULL,
	topic        text   NOT NULL,
	kind         text   NOT NULL,
	ordering_key text   NOT NULL,
	number       bigint NOT NULL
);
CREATE INDEX business_tx ON business (tx);
CREATE TABLE keys (ordering_key text PRIMARY KEY, number bigint NOT NULL);
CREATE TABLE effects (
	message_id text    NOT NULL,
	consumer   text    NOT NULL,
	intact     boolean NOT NULL
);
CREATE TABLE mended (kind text PRIMARY KEY);
CREATE TABLE contended (id int PRIMARY KEY, value int NOT NULL);
INSERT INTO contended SELECT n, 0 FROM generate_series(1, 10) AS n;`

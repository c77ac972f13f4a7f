package main

// tables creates the tables of the simulated business. They have no unique constraint
// that could hide an effect that happened twice.
//
// A writer locks the row of a key, and takes the next number of the key. The lock is held
// until the end of the transaction. So transactions that write events of the same key
// wait for each other, and the numbers of committed events have no gaps.
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
	serial     bigint  GENERATED ALWAYS AS IDENTITY,
	message_id text    NOT NULL,
	consumer   text    NOT NULL,
	intact     boolean NOT NULL
);
CREATE TABLE hoard (message_id text NOT NULL, bytes bytea NOT NULL);
ALTER TABLE hoard ALTER bytes SET STORAGE EXTERNAL;
CREATE TABLE attempts (message_id text PRIMARY KEY, n int NOT NULL);
CREATE TABLE mails (reference text NOT NULL);
CREATE INDEX mails_reference ON mails (reference);
CREATE TABLE mended (kind text PRIMARY KEY);
CREATE TABLE contended (id int PRIMARY KEY, value int NOT NULL);
INSERT INTO contended SELECT n, 0 FROM generate_series(1, 10) AS n;`

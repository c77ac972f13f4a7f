// Package outboxrow holds the values in the tables of the outbox that several
// packages read or write: the form of the metadata, why a message became a dead
// letter, and why an ordering key is blocked.
package outboxrow

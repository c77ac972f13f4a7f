// Package outboxrow defines the values in the tables of the outbox that several
// packages read or write: the form of the metadata, the reasons for dead letters, and
// the reasons for blocked ordering keys.
package outboxrow

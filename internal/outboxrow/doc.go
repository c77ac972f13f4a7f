// Package outboxrow defines the values in the tables of the outbox that several packages read or
// write: the slot of a message, the form of the metadata, the reasons for dead letters, and the
// reasons for blocked ordering keys. It also sweeps a sent log that has one partition for each day.
package outboxrow

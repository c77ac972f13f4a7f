// Package audit reads the audit log of the acts of operators: who replayed, edited, discarded,
// retried or cancelled a message, and why. Packages dead, parked, outbox and quarantine write to it
// in the transaction of the change. No code of this module deletes its rows.
package audit

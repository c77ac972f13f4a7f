// Package audit reads the audit log. The log contains the acts of operators: who
// replayed, edited, discarded, retried or cancelled a message, and why. Packages
// deadletter, parked, pending and quarantine write to the log, in the transaction of the
// change. No code of this module deletes rows of the log.
package audit

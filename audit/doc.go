// Package audit reads the audit log: who replayed, edited, discarded, retried or
// cancelled which message, and why. Packages deadletter, pending and poison write it,
// each row in the transaction of the change. Nothing deletes its rows.
//
// To read the code, start with audit.go, then filter.go.
package audit

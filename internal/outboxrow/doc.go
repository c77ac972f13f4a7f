// Package outboxrow defines the values in the tables of the outbox that several
// packages read or write: the form of the metadata, the reasons for dead letters, and
// the reasons for blocked ordering keys.
//
// To read the code, start with waiting.go, metadata.go and labels.go. pause.go, reason.go
// and window.go can be read separately.
package outboxrow

// Package quarantine shows the messages that a consumer could not handle, and lets people replay,
// edit, discard and export them.
//
//	                           ┌─ Replay ───▶ waiting ──▶ resolved, or quarantined again
//	poison ──▶ once_parked ────┼─ Edit ─────▶ another message, waiting or quarantined
//	                           └─ Discard ──▶ discarded
//
// The middleware of package poison stores the messages. All calls of this package only read and
// write the tables, so they work in any process that has the consumer's database.
//
// A replayed message returns only to the consumer that failed, through retry's Subscriber. The
// failures of the message are counted from zero again. If the consumer has handled the message in
// the meantime, dedup skips the message.
//
// Package operate describes the fields of [Act], [Plan], [Report] and [Group], which package dead
// also uses.
package quarantine

// Package dead shows the dead letters of an outbox, which are the messages that
// the forwarder gave up on. It also shows the log of the messages that the forwarder
// sent. You can search, replay and export both. You can also discard dead letters.
//
//	once_outbox ── given up ──▶ once_outbox_dead ─┬─ Replay ───▶ once_outbox
//	                                              └─ Discard ──▶ deleted
//
//	once_outbox ── sent ──────▶ once_outbox_sent ─── Replay ───▶ once_outbox, a copy
//
// [New] returns the dead letters, and [NewSentLog] returns the log. Both only read and
// write the tables. The calls work without a running forwarder, and also while
// forwarders are running in this process or in others. Package quarantine has the same
// calls for the messages that a consumer gave up on.
//
// Each call that changes something takes an [Act]. In the same transaction as the
// change, it writes one row for each message to the audit log. Package operate
// describes the fields of Act, [Plan], [Report] and [Group].
package dead

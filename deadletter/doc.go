// Package deadletter shows the dead letters of an outbox, which are the messages
// that the forwarder gave up on, and the log of the messages that the forwarder
// sent. Both can be searched, replayed and exported; dead letters can also be
// discarded.
//
//	once_outbox ── given up ──▶ once_outbox_dead ─┬─ Replay ───▶ once_outbox
//	                                              └─ Discard ──▶ deleted
//
//	once_outbox ── sent ──────▶ once_outbox_sent ─── Replay ───▶ once_outbox, a copy
//
// [New] returns the dead letters, [NewSentLog] the log. They read and write the
// tables only: no forwarder need run, and any number may run, in this process or in
// others. Package poison has the same calls for the messages that a consumer gave
// up on.
//
// Each call that changes something asks for an [Act] and writes one row to the
// audit table for each message, in the transaction that makes the change. Package
// operate describes the fields of Act, [Plan], [Report] and [Group].
package deadletter

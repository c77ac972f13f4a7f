// Package poison is the quarantine. Its router middleware stores the messages that a
// consumer cannot handle, byte for byte and with the reason. Its store lets people
// list, replay, edit or discard these messages.
//
// The middleware is the outermost of the chain:
//
//	poison ─ retry ─ dedup ─ handler
//
// The middleware stores a message first, and then acks it. With retry inside, the
// middleware stores the messages that retry gives up on, and messages with a permanent
// failure. Without retry, it stores each message that fails. It does not store a
// message whose error says nothing about the message, such as an unavailable database,
// a commit with unknown outcome, or a shutdown.
//
// A replayed message returns only to the consumer that failed, through retry's
// Subscriber. The failures of the message are counted from zero again. If the consumer
// has handled the message in the meantime, dedup skips the message.
//
// Package operate describes the fields of [Act], [Plan], [Report] and [Group], which
// package deadletter also uses.
//
// # Reading the code
//
// Begin with config.go, quarantine.go and middleware.go (a message goes into
// quarantine), hook.go and copy.go. table.go writes the rows, and the statements are in
// queries.go and queries_replay.go. Then read about searches: entry.go, filter.go,
// condition.go, window.go (bounds the rows that are read), count.go, groups.go,
// groups_whole.go, trend.go, note.go, part.go. Then read about changes: plan.go,
// discard.go, edit.go, export.go, import.go, and replay.go, which changes the row of an
// entry. A replay of many entries is in replay_matching.go (API), replay_run.go (its
// loop), replay_lease.go, replay_stop.go, replay_table.go and outcomes.go. absent.go,
// undecided.go, reason.go and instruments.go can be read separately.
package poison

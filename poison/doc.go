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
package poison

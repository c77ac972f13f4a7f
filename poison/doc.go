// Package poison is the quarantine: a router middleware that stores the messages
// which a consumer cannot handle, byte for byte and with the reason, and a store
// in which people look at these messages, replay, edit or discard them.
//
// The middleware is the outermost of the chain:
//
//	poison ─ retry ─ dedup ─ handler
//
// It stores a message first and acks it then. With retry inside, it stores the
// messages that retry gives up on and the permanent failures; without retry, every
// failure. It does not store a message whose error says nothing about the message:
// an unavailable database, a commit with unknown outcome, a shutdown.
//
// A replayed message returns only to the consumer that failed, through retry's
// Subscriber, and its failures are counted anew. If the consumer has handled the
// message meanwhile, dedup skips it.
//
// Package operate describes the fields of [Act], [Plan], [Report] and [Group],
// which package deadletter uses too.
package poison

// Package poison takes messages that a consumer cannot handle out of the message path. Its router
// middleware stores them in the quarantine, byte for byte and with the reason, and acks them.
// Package operate/quarantine lists, replays, edits and discards them.
//
// The middleware is the outermost of the chain:
//
//	poison ─ retry ─ dedup ─ handler
//
// The middleware stores a message first, and then acks it. With retry inside, the middleware stores
// the messages that retry gives up on, and messages with a permanent failure. Without retry, it
// stores each message that fails. It does not store a message whose error says nothing about the
// message, such as an unavailable database, a commit with unknown outcome, or a shutdown.
package poison

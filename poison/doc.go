// Package poison is the quarantine: a router middleware that takes messages
// which nothing can be done for out of the way, and a store in which they stay,
// byte for byte and with their reason, until somebody replays or discards
// them.
//
// It is the outermost of the chain:
//
//	poison ─ retry ─ dedup ─ handler
//
// A message is stored first and acked after. Behind retry it stores what retry
// gives up and what is permanent; without retry, every failure. It never
// stores what says nothing about the message: a database that is away, a
// commit whose outcome is unknown, a shutdown.
//
// A replayed message goes back to the consumer that failed, and to no other,
// through retry's Subscriber. Its failures are counted anew. If it was handled
// to success in the meantime, dedup skips it.
package poison

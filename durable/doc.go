// Package durable makes a consumer durable. It stores arriving messages in the consumer's own
// database and acks them. Package retry then handles them from there. So the broker's queue empties
// as fast as rows can be written, however slow the handlers are.
//
// A [Storage] wraps the subscriber of the transport:
//
//	direct    retries.Subscriber("payments", sub)
//	durable   retries.Subscriber("payments", storage.Subscriber(sub))
//
// The rest of the chain does not change. Messages that arrive together are stored with one
// statement in the table of parked messages, and acked after the commit. Retry's Subscriber claims
// them there, and passes them to the same handler. It removes the rows of handled messages, several
// rows at a time.
//
//	transport ─ durable ─ commit, ack
//	               └─ parked, due now ─ retry.Subscriber ─ poison ─ retry ─ dedup ─ handler
//
// A message that the transport cannot decode is not stored here. It goes to the handler's chain
// immediately, where poison quarantines it, and is then acked.
//
// docs/choosing.md explains when a durable consumer is worth its cost.
package durable

// Package inbox makes a consumer durable: what arrives is stored in the
// consumer's own database and acked, and handled from there. The broker's queue
// is empty as fast as rows can be written, however long the handlers take.
//
// It is one more subscriber around the transport's:
//
//	direct    retries.Subscriber("payments", sub)
//	durable   retries.Subscriber("payments", intake.Subscriber(sub))
//
// The rest of the chain stays as it is. Messages that came together are stored
// with one statement, in the table that retry parks messages in, and acked when
// the commit is known. Retry's Subscriber claims them there, hands them to the
// same handler, and removes the rows of what was handled, many at a time each.
//
//	transport ─ intake ─ commit, ack
//	               └─ parked, due now ─ retry.Subscriber ─ poison ─ retry ─ dedup ─ handler
//
// A message that the transport could not decode is not stored here but handed
// on, so that poison puts it into quarantine; it is acked after that.
//
// docs/choosing.md says when that is worth its price.
package durable

// Package once puts the parts together: the consumer's chain in its one right
// order.
//
// # Promises
//
//   - An event that a transaction commits is published at least once; one that
//     is rolled back never (outbox, forwarder).
//   - A consumer's database effect happens once per message id and consumer
//     (dedup).
//   - A failing message does not block its queue (retry).
//   - A hopeless message neither loops nor vanishes (poison).
//   - Messages of one key reach the broker in order (forwarder).
//
// Effects outside the consumer's database are at least once: pass the message
// id on as the idempotency key.
//
// # The chain
//
//	transport ──────┐
//	parked, due now ┴─ retry.Subscriber ─ poison ─ retry ─ dedup ─ handler
//	                                                         └─ one transaction: inbox row, business rows, outbox rows
//
// dedup is innermost, because a failed PostgreSQL transaction is unusable and
// every attempt needs its own. poison is outermost, because it takes what retry
// gives up. A middleware that recovers from panics belongs outside of all
// three: retry and poison see a panic as the error of its attempt. On request a
// sequence, which compares versions, is inside of dedup, and an inbox, which
// stores and acks messages first, between the transport and retry.Subscriber.
//
// Each part is a package that can be used alone on a router that exists
// already; [Consumer] is all of them at once.
package once

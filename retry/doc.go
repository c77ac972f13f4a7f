// Package retry retries a failing message without blocking its queue. It retries a few
// times immediately, and then with growing delays. During a delay, the message is
// stored in the consumer's own database. The broker's copy is already acked, and later
// messages are handled.
//
// The package has three parts. [Policy] determines how often and when to retry. The
// middleware calls the handler, and parks messages that failed. [Retries.Subscriber]
// wraps the handler's subscriber. In addition to the messages of the transport, it
// delivers parked messages when they are due. So a parked message returns only to the
// consumer that failed.
//
// Among the middlewares, retry is between poison and dedup. Poison quarantines messages
// that retry gives up on, and dedup runs each attempt in its own transaction:
//
//	poison ─ retry ─ dedup ─ handler
//
// The row of a parked message counts its attempts. If the process dies while the
// handler runs, the row is due again after its lease, and one crash is counted. Crashes
// have their own budget. When the budget is used up, retry gives up on the message, and
// the handler does not run again.
//
// With Config.KeyOrder, messages with the same ordering key are handled one after
// another, in the order of their arrival. They are stored as rows before they are
// handled. Only the first row of a key can be claimed. The other rows wait until the
// first row is resolved.
package retry

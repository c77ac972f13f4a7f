// Package retry tries a failing message again without blocking its queue: a
// few times at once, then from the consumer's own database with growing
// delays, while the broker's copy is acked and the messages behind it flow.
//
// It has three parts. [Policy] says how often and when. The middleware tries,
// and parks what failed. [Retries.Subscriber] wraps the handler's subscriber
// and adds the parked messages that are due to those of the transport, so that
// they come back to the consumer that failed and to no other.
//
// In the chain it stands between poison, which takes what it gives up, and
// dedup, which gives each attempt its own transaction:
//
//	poison ─ retry ─ dedup ─ handler
//
// Attempts are counted in the row. If the process dies while the handler runs,
// the row is due again when its lease ends, with one crash counted against it;
// crashes have a budget of their own, and a message that has used it up is
// given up without being run again.
//
// With Config.KeyOrder the messages of an ordering key are handled one after
// another, in the order of arrival. They are stored as rows before they are
// handled; of each key one row can be claimed, and the others are held until it
// is gone.
package retry

// Package retry retries a failing message without blocking its queue: first a
// few times at once, and then with growing delays from the consumer's own
// database. Meanwhile the broker's copy is acked, and the messages behind it are
// handled.
//
// The package has three parts. [Policy] says how often and when to retry. The
// middleware calls the handler and parks messages that failed.
// [Retries.Subscriber] wraps the handler's subscriber and adds due parked
// messages to the messages of the transport, so that a parked message returns
// only to the consumer that failed.
//
// In the chain of middlewares retry stands between poison, which quarantines
// messages that retry gives up, and dedup, which gives each attempt its own
// transaction:
//
//	poison ─ retry ─ dedup ─ handler
//
// The row of a parked message counts its attempts. If the process dies while the
// handler runs, the row is due again after its lease, with one crash counted.
// Crashes have their own budget: a message that exceeds it is given up, and its
// handler does not run again.
//
// With Config.KeyOrder the messages of one ordering key are handled one after
// another, in the order of their arrival. They are stored as rows before they
// are handled. Only the first row of a key can be claimed; the others wait until
// it is resolved.
//
// To read the code, start with config.go, policy.go and keyorder.go (settings),
// errors.go and retries.go (API). Then follow one delivery: middleware.go,
// undecided.go. Then follow a parked message: subscriber.go, arrivals.go,
// fetcher.go, claim.go, fairqueue.go, deliver.go, quarantine.go. isolation.go,
// buffer.go, register.go, instruments.go and plugin.go stand alone.
package retry

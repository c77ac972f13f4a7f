// Package forwarder sends the messages in the outbox to any message.Publisher and
// deletes confirmed messages, and only these.
//
//	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
//	go fwd.Run(ctx)
//	...
//	err = outbox.InTx(ctx, db, work, fwd.Hint)
//
// # Outcomes of a message
//
//	                 ┌── confirmed ──▶ deleted
//	read ─▶ publish ─┼── refused ────▶ attempt + 1, due again later; its ordering key is blocked
//	                 ├── unacceptable, or refused too often ──▶ dead letter
//	                 ├── unknown ────▶ published again, alone; no attempt is counted
//	                 └── unavailable ▶ publishing pauses; no attempt is counted
//
// [Classify] decides which outcome an error of the publisher means. The forwarder
// reads messages in the order of their rows, publishes many at a time and deletes
// them in batches. Meanwhile no transaction is open and no row is locked. At most
// one message of an ordering key is unconfirmed at any time.
//
// A topic that does not answer, such as a queue without a majority, does not stop
// other topics. It may use only its share of the window, and when it has not
// answered for Config.StallTimeout, it is excluded until it answers again.
//
// # Requirements
//
// A publisher that returns nil must have stored the message. A publisher that
// returns nil without storing it, such as Watermill's GoChannel without a
// subscriber, loses messages, and the forwarder cannot notice.
//
// Give the forwarder a publisher of its own. A broker closes the channel when it
// refuses certain messages and does not say which message it refused. The
// forwarder then publishes each message that may be the cause alone, to see which
// one closes the channel again. If others use the same publisher meanwhile, no
// message is alone, so that the cause is not found and never becomes a dead
// letter.
//
// An [AsyncPublisher] gets the whole window at once. For any other publisher
// Config.Workers goroutines call Publish with one message each.
//
// # Instances
//
// Any number of instances may run. They share the outbox by leases on its 64
// slots. Messages are spread over the slots by their ordering key, or by their id.
// Each instance reads and sends the messages in its equal share of the slots. An
// instance that joins gets its share within a third of Config.Lease. An instance
// that is closed gives its slots back at once, and the slots of an instance that
// died are taken over when its lease has ended.
//
// All instances have the same destination. Run of an instance with another
// destination returns ErrOtherDestination, see Config.Destination.
//
// A slot goes to another instance when none of its messages is in flight, so that
// no message is sent twice. But a process that died, was suspended, or waited for
// the publisher for longer than its lease may have sent messages that its
// successor sends again. Such duplicates have the same message id. No message is
// lost, and no message is sent before an earlier message of its key.
//
// # Connections
//
// A forwarder uses up to three connections of the *sql.DB at a time, four with
// Config.KeepSent, each for a moment, and one more when metrics are collected. If
// it has to wait for them, for instance because handlers use the whole pool, its
// lease can end. Give the forwarder its own pool then.
package forwarder

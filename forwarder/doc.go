// Package forwarder sends what is in the outbox to any message.Publisher and
// deletes what was confirmed, and only that.
//
//	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
//	go fwd.Run(ctx)
//	...
//	err = outbox.InTx(ctx, db, work, fwd.Hint)
//
// # What becomes of a message
//
//	                 ┌── confirmed ──▶ deleted
//	read ─▶ publish ─┼── refused ────▶ attempt + 1, due again later; its ordering key is held
//	                 ├── unacceptable, or refused too often ──▶ dead letter
//	                 ├── unknown ────▶ published again, alone; nothing is charged
//	                 └── unavailable ▶ publishing pauses; nothing is charged
//
// [Classify] says which of them an error of the publisher is. Messages are read
// in the order of their rows, published many at a time and deleted in batches;
// no transaction is open and no row is locked meanwhile. Of one ordering key at
// most one message is unconfirmed at any time.
//
// A topic that does not answer, such as a queue without a majority, holds up no
// other: it has no more than its share of the window, and when it has been
// silent for Config.StallTimeout it is left out until it answers again.
//
// # What it relies on
//
// A publisher that returns nil has stored the message. One that returns nil
// without having done so, such as Watermill's GoChannel without a subscriber,
// loses messages, and nobody can tell.
//
// It should be the forwarder's own. A broker closes the channel over a message
// that it cannot take and does not say which it was, so the forwarder publishes
// those that it may have been one at a time, to see which of them does it again.
// Where others publish through the same publisher meanwhile, that message is
// never alone, and is neither found nor made a dead letter.
//
// One that implements [AsyncPublisher] is given the whole window at once. For
// any other, a number of workers call Publish with one message each.
//
// # Instances
//
// Any number may run. They share the outbox by leases on its 64 slots, over
// which messages are spread by their ordering key, or their id: each instance
// has an equal part, and reads and sends that alone. One that joins is given
// its part within a third of Config.Lease, one that is closed gives its own
// back at once, and the part of one that died is taken over when its lease has
// run out.
//
// All of them send to one destination. Run of an instance with another one
// returns ErrOtherDestination, see Config.Destination.
//
// A slot changes hands when nothing of it is in flight, so that no message goes
// twice. A process that died, was stopped, or has waited for an answer of the
// publisher, for longer than its lease, may have sent what its successor sends
// again: duplicates are possible then, for the consumer to recognise by the
// message id; a loss is not, and neither is a message of a key that comes before
// an earlier one has.
//
// # Connections
//
// Up to three connections of the *sql.DB are in use at a time, four with
// Config.KeepSent, each for a moment, and one more when somebody looks at the
// instruments. If they have to be waited for, for instance because handlers hold
// the whole pool, the lease can run out: give the forwarder a pool of its own
// then.
package forwarder

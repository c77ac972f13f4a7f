// Package forwarder sends the messages in the outbox to any message.Publisher. It
// deletes a message only after the broker has confirmed it.
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
//	                 ├── unknown ────▶ published again, by itself; no attempt is counted
//	                 └── unavailable ▶ publishing pauses, or only its topic; no attempt is counted
//
// [Classify] decides which outcome an error of the publisher means. Messages are read in the order
// of their rows, published many at a time and deleted in batches. While the forwarder publishes, it
// has no open transaction and no locked row. At most one message of an ordering key is unconfirmed
// at any time.
//
// A topic that does not confirm, such as a queue without a majority, does not stop other topics. It
// may use only its share of the window. If none of its messages has had an outcome for
// Config.StallTimeout, its messages are neither read nor sent until one in flight has one. If
// the broker refuses all messages of a topic, for example because the user lacks a right, only one
// message of this topic is tried from time to time.
//
// # Requirements
//
// When Publish returns nil, the publisher must have stored the message. Otherwise the message is
// lost, as with Watermill's GoChannel without a subscriber, and the forwarder cannot notice this.
//
// Use a separate publisher for the forwarder. A broker may close the channel without saying which
// message it refused. The forwarder then publishes each message that may be the cause by itself, to
// see which one closes it again. If other code used the publisher, a message would never be by
// itself, and the refused one would never become a dead letter.
//
// An [AsyncPublisher] gets all messages of the window without waiting. For any other
// publisher, Config.Workers goroutines call Publish with one message each.
//
// # Instances
//
// Any number of instances can run. The outbox is divided into 64 slots, each leased to one
// instance. The ordering key of a message, or its id if it has none, determines its slot. All
// instances get the same number of slots. One that joins gets its share within two thirds of
// Config.Lease, and one that is closed gives its slots back immediately. If an instance dies, the
// others take its slots when its lease has ended. If it dies at each start, the others keep their
// slots.
//
// All instances must have the same destination. Run of an instance with another
// destination returns ErrOtherDestination, see Config.Destination.
//
// A slot goes to another instance when none of its messages is in flight, so that no message is
// sent twice. But if a process dies, is suspended, or waits for the publisher for longer than its
// lease, the next instance may send its messages again, with the same ids. No message is lost, and
// none is sent before an earlier message of its key.
//
// # Connections
//
// A forwarder uses up to three connections of the *sql.DB at a time, four with Config.KeepSent, and
// one more when metrics are collected, each only for a short time. If it has to wait for one, for
// example because handlers use the whole pool, its lease can end. Then use a separate pool for the
// forwarder.
//
// The scheduler in package forwarder/internal/dispatch returns commands, such as: read these rows,
// publish this message. This package executes them.
package forwarder

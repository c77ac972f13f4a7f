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
// [Classify] decides which outcome an error of the publisher means. The forwarder reads
// messages in the order of their rows, publishes many at a time and deletes them in
// batches. While it publishes, it has no open transaction and no locked row. At most
// one message of an ordering key is unconfirmed at any time.
//
// A topic that does not confirm, such as a queue without a majority, does not stop
// other topics. It may use only its share of the window. If none of its messages has
// had an outcome for Config.StallTimeout, the forwarder stops reading and sending
// messages of the topic. It continues when one of the messages in flight has an
// outcome. If the broker refuses all messages of a topic, for example because the user
// lacks a right, the forwarder also continues without the topic. From time to time it
// tries one message of the topic.
//
// # Requirements
//
// When Publish returns nil, the publisher must have stored the message. A publisher
// that returns nil without storing the message loses it, and the forwarder cannot
// notice this. An example is Watermill's GoChannel without a subscriber.
//
// Use a separate publisher for the forwarder. A broker may close the channel when it
// refuses a message, without saying which message it refused. The forwarder then
// publishes each message that may be the cause by itself, and sees which one closes the
// channel again. If other code uses the same publisher at that time, a message is never
// by itself on the channel. The forwarder can then not find the refused message, and
// this message never becomes a dead letter.
//
// An [AsyncPublisher] gets all messages of the window without waiting. For any other
// publisher, Config.Workers goroutines call Publish with one message each.
//
// # Instances
//
// Any number of instances can run. The outbox is divided into 64 slots, and each slot
// is leased to one instance. The slot of a message is computed from its ordering key,
// or from its id if it has no key. All instances get the same number of slots, and read
// and send the messages in their slots. An instance that joins gets its share within a
// third of Config.Lease. An instance that is closed gives its slots back immediately.
// If an instance dies, the other instances take its slots when its lease has ended.
//
// All instances must have the same destination. Run of an instance with another
// destination returns ErrOtherDestination, see Config.Destination.
//
// A slot goes to another instance when none of its messages is in flight, so that no
// message is sent twice. But a process may die, be suspended, or wait for the publisher
// for longer than its lease. The next instance may then send messages of this process
// again, with the same message ids. No message is lost, and no message is sent before
// an earlier message of its key.
//
// # Connections
//
// A forwarder uses up to three connections of the *sql.DB at a time, four with
// Config.KeepSent, and one more when metrics are collected. It uses each connection
// only for a short time. If it has to wait for a connection, for example because
// handlers use the whole pool, its lease can end. In this case, use a separate pool for
// the forwarder.
//
// The scheduler in package forwarder/internal/dispatch returns commands, such as: read
// these rows, publish this message. This package executes the commands.
package forwarder

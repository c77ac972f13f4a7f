// Package outbox writes messages into the outbox table, in the transaction
// that makes them true: they are sent if, and only if, it commits.
//
//	err := outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
//		// business writes through tx, then
//		return events.Publish("orders.placed", msg)
//	}, forwarder.Hint)
//
// Whoever has a transaction already calls [Publisher] with it. Messages are
// sent by package forwarder.
//
// # Order
//
// Messages of one ordering key are sent in the order in which they were inserted.
// That is the order in which their transactions commit, if each transaction locks
// what it changes before it publishes: so publish last. Or call [LockKey] first.
// A transaction that publishes, and then waits for a lock that another one has,
// commits after that one, and its messages are sent before.
//
// # What is stored
//
// Id, topic and payload byte for byte, and the metadata. Three metadata keys
// say something to the outbox: [OrderingKey] and [DueAt] become columns, and
// [Topic] is for whoever called Publish. The last two are taken off.
//
// # What is refused
//
// What the database or the broker could not take later is refused before the
// insert, with a [FieldError] for everything that is wrong with any message of
// the call. Nothing of that call is stored then, and the transaction is as it
// was:
//
//   - an id, topic or ordering key that is empty, longer than 255 bytes, not
//     valid UTF-8 or contains a NUL; the same for metadata, whose values may be
//     long but not more than 64 KiB in all;
//   - metadata that would steer RabbitMQ: CC, BCC, x-..., user-id, expiration;
//   - a payload over [Config].MaxPayload;
//   - a due time that cannot be read, or one together with an ordering key:
//     they contradict each other.
package outbox

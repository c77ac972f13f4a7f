// Package outbox stores messages in the outbox table, in the transaction of the business writes.
// Package forwarder sends them if, and only if, that transaction commits.
//
//	err := outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
//		// business writes through tx, then
//		return events.Publish("orders.placed", msg)
//	}, forwarder.Hint)
//
// If you already have a transaction, call [Publisher] with it.
//
// # Order
//
// Messages of one ordering key are sent in the order of their inserts, which is the order of the
// commits if each transaction takes its locks before it publishes. So publish last, or call
// [LockKey] first. A transaction that publishes, and then waits for a lock of another one, commits
// after it, but its messages are sent first.
//
// # What is stored
//
// The outbox stores id, topic and payload byte for byte, and the metadata. [OrderingKey] and
// [DueAt] become columns. [DueAt] and [Topic] are not stored as metadata.
//
// # What is refused
//
// Messages that cannot be stored or sent are refused before the insert, with a [FieldError] for
// each invalid field of each message. Then no message of the call is stored, and the transaction is
// unchanged. The outbox refuses
//
//   - an id, topic or ordering key that is empty, longer than 255 bytes, not valid
//     UTF-8 or contains a NUL;
//   - metadata that is not valid UTF-8 or contains a NUL, or has more than 1 MiB;
//   - metadata keys that begin with "once_" and are unknown;
//   - a payload larger than [Config].MaxPayload;
//   - a due time that is not in RFC 3339, or that is set together with an ordering
//     key: a delayed message cannot keep its place. The same holds for a delay of
//     Watermill's package components/delay;
//   - a message for which [Config].Check returns an error.
//
// Each broker has limits of its own. With rabbit.Check as [Config].Check, a message that RabbitMQ
// cannot take is refused in your transaction. Otherwise it becomes a dead letter. The package
// functions, such as [InTx] and [Publisher], have no Check: use [New].
package outbox

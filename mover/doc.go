// Package mover takes over the table of Watermill's own forwarder
// (components/forwarder on watermill-sql's PostgreSQL adapters) into the
// outbox, while writers and forwarders of both kinds are at work.
//
//	m, err := mover.New(db, mover.Config{})
//	go m.Run(ctx)
//	...
//	messages, writers, err := m.Left(ctx) // both 0: the mover can go
//
// # What becomes of a row
//
// One transaction locks the offsets row of the consumer group, reads the rows
// behind it as Watermill's subscriber does, stores them in the outbox and
// advances the offset as the subscriber's ack does. So a running stock
// forwarder and any number of movers take turns, what was acked is not moved,
// and nothing is moved twice. What the stock forwarder has sent and not yet
// acked when it is stopped is sent again, as it would be by its successor.
//
// Messages keep their id, topic, payload and metadata, and come into the
// outbox in the order of the stock table. There is no transaction or lock
// while there is nothing to move.
//
// # What cannot be moved
//
// It becomes a dead letter of the outbox, and does not hold up the others:
//
//   - "malformed": what is not an envelope of Watermill's forwarder, with its
//     own id, payload and metadata, and the forwarder topic;
//   - "invalid": a message that the outbox refuses, see package outbox. One
//     whose texts no column can hold stays in its envelope, as a malformed one.
//
// The dead letter's position is the row's offset in the stock table.
//
// # What it inherits
//
// The rule about what may be read is the stock one, or rows of transactions
// that commit late would be skipped: an open transaction that has written
// anything, anywhere in the instance, holds up what was committed after it
// began, and after a dump and restore into a new instance nothing is found
// until its transaction ids have caught up. The outbox has neither weakness;
// both end with the mover.
//
// A consumer group without an offset starts at the beginning of the table,
// which holds everything that was ever sent. If other groups have one, the
// name is rather taken for a mistake, see [ErrUnknownGroup].
//
// # What it costs
//
// A batch is found by the primary key of the stock table and costs the same
// whatever lies before and behind it, unlike the stock query, which costs time
// in proportion to the backlog. Rows with different topics in turn cost a
// statement each. When there is nothing to do, a poll is two short queries that
// take no transaction id.
package mover

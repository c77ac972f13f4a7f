// Package mover moves messages from the table of Watermill's own forwarder (components/forwarder on
// watermill-sql's PostgreSQL adapters; "stock" below) into the outbox, while writers and forwarders
// of both kinds run.
//
//	m, err := mover.New(db, mover.Config{})
//	go m.Run(ctx)
//	...
//	messages, writers, err := m.Left(ctx) // both 0: you can remove the mover
//
// # How a row is moved
//
// One transaction locks the offsets row of the consumer group, reads the rows after the offset,
// stores them in the outbox, and advances the offset, in the same way as Watermill's subscriber. So
// a running stock forwarder and any number of movers can work at the same time: acked messages are
// not moved, and none is moved twice. If the stock forwarder is stopped between sending a message
// and acking it, the message is sent again, as after its restart.
//
// Messages keep their id, topic, payload and metadata, and the order of the stock table. An idle
// mover does not write, and takes no locks.
//
// The mover reads the tables of DefaultPostgreSQLSchema, which are the same in watermill-sql v3 and
// v4. It refuses the queues of v4, see [ErrQueueTable].
//
// # Which rows become dead letters
//
// A row that cannot be moved becomes a dead letter of the outbox, and does not block other rows:
//
//   - "malformed": the row is not an envelope of Watermill's forwarder. The dead letter
//     contains the row's id, payload and metadata, and the forwarder topic.
//   - "invalid": the outbox refuses the message, see package outbox. The dead letter
//     contains the message. If text columns cannot store the strings of the message,
//     the dead letter contains the envelope, as for a malformed row.
//
// The position of the dead letter is the row's offset in the stock table.
//
// # Which weaknesses remain
//
// The mover reads only rows that the stock subscriber would read; otherwise it would skip rows of
// transactions that commit late. While an open transaction has written anything in the PostgreSQL
// instance, in any database, all rows that were committed after its start must wait. After a dump
// and restore into a new instance, the mover finds no rows until its transaction ids have caught
// up. The outbox has neither weakness.
//
// A consumer group without an offset starts at the beginning of the table, which contains every
// message that was ever sent. If other groups have an offset, the name is probably a mistake, see
// [ErrUnknownGroup].
//
// # What it costs
//
// The primary key of the stock table finds a batch, so its cost does not depend on the backlog, as
// that of the stock query does. Each change of topic from row to row needs one more statement. An
// idle poll needs two short queries and no transaction id.
package mover

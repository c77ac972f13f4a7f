package outbox

import (
	"context"
	"database/sql"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
)

// Publisher returns a publisher into the outbox of PostgreSQL's tables "once_",
// in the transaction tx. See [Outbox.Publisher].
func Publisher(tx *sql.Tx) message.Publisher { return standard().Publisher(tx) }

// Publisher returns a publisher that stores messages in tx: they exist when tx
// commits, and never if it does not. With a nil tx every Publish returns
// [ErrNoTransaction].
//
// Publish stores all messages of a call, whatever their number, or returns an
// error. One that is [ErrInvalid] left tx as it was; after any other, tx can
// only be rolled back. Close does nothing.
//
// A handler is to return the error, or to wrap it. That PostgreSQL lacks the
// table, or the right to write to it, is then not held against the message: it
// waits until the tables are as they should be.
//
// The trace in a message's context is stored with it as traceparent and
// tracestate, unless its metadata names one. If a span is recorded there, each
// call adds a span of its own.
func (o *Outbox) Publisher(tx *sql.Tx) message.Publisher {
	return publisher{outbox: o, tx: tx}
}

// Schema returns the adapter for watermill-sql's own Publisher.
func (o *Outbox) Schema() Schema { return Schema{outbox: o} }

type publisher struct {
	outbox *Outbox
	tx     *sql.Tx
	ctx    context.Context // of messages that have no trace of their own; or nil
}

func (p publisher) Publish(topic string, msgs ...*message.Message) (err error) {
	if p.tx == nil {
		return ErrNoTransaction
	}
	call := p.outbox.instruments.begin(p.ctx, topic, msgs)
	defer func() { call.end(err) }()
	records, err := p.outbox.check(topic, msgs, call)
	if err != nil {
		return err
	}
	for len(records) > 0 {
		n := cut(records)
		failpoint.Hit("outbox/insert")
		if err := p.insert(topic, records[:n]); err != nil {
			return p.outbox.failed(err)
		}
		failpoint.Hit("outbox/inserted")
		records = records[n:]
	}
	return nil
}

func (p publisher) Close() error { return nil }

// failed is the error of our statement. A consumer's message is not to blame for
// a table that its role may not write to, or that is not there.
func (o *Outbox) failed(err error) error {
	if !dialect.Undeployed(err) {
		return fmt.Errorf("outbox: %w", err)
	}
	return disposition.HandBack(fmt.Errorf("outbox: table %s cannot be written: it needs the role of a producer, see docs/roles.md, "+
		"and to be as schema.Check wants it: %w", o.dialect.Config().Table("outbox"), err))
}

// innerTopic is a topic that watermill-sql's validation accepts; the real one
// is in the row.
const innerTopic = "outbox"

// insert leaves the statement to watermill-sql's Publisher, without a logger:
// it would be given the payloads.
func (p publisher) insert(topic string, records []record) error {
	inner, err := wsql.NewPublisher(p.tx, wsql.PublisherConfig{
		SchemaAdapter: checked{Schema: Schema{outbox: p.outbox}, topic: topic, records: records},
	}, nil)
	if err != nil {
		return err
	}
	return inner.Publish(innerTopic)
}

// checked is a Schema for messages that have been checked already.
type checked struct {
	Schema

	topic   string
	records []record
}

func (c checked) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return c.outbox.query(c.topic, c.records), nil
}

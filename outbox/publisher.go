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

// Publisher is [Outbox.Publisher] for PostgreSQL and the table prefix "once_".
func Publisher(tx *sql.Tx) message.Publisher { return standard().Publisher(tx) }

// Publisher returns a publisher that stores messages in tx. They are sent if, and only
// if, tx commits. If tx is nil, every Publish returns [ErrNoTransaction].
//
// Publish stores all messages of a call, or returns an error. A call may have any
// number of messages. After [ErrInvalid], tx is unchanged. After any other error, tx
// can only be rolled back. Close does nothing.
//
// A handler should return the error of Publish, or wrap it. If the table is missing in
// PostgreSQL, or the right to write to it, no attempt of the handler's message is
// counted. The message waits until the database is set up.
//
// Publish stores the trace of a message's context as the metadata traceparent and
// tracestate, unless the metadata contains a trace already. If the context has a
// recording span, each call adds a span.
func (o *Outbox) Publisher(tx *sql.Tx) message.Publisher {
	return publisher{outbox: o, tx: tx}
}

type publisher struct {
	outbox *Outbox
	tx     *sql.Tx
	ctx    context.Context // its trace is used for messages without a trace; may be nil
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

// failed returns the error for an insert that failed with err. A missing table or a
// missing right is not the fault of the message that a consumer is handling, so no
// attempt is counted then.
func (o *Outbox) failed(err error) error {
	if !dialect.Undeployed(err) {
		return fmt.Errorf("outbox: %w", err)
	}
	return disposition.HandBack(fmt.Errorf("outbox: table %s cannot be written: grant the role of a producer, see docs/roles.md, "+
		"and run schema.Check: %w", o.dialect.Config().Table("outbox"), err))
}

// innerTopic is a topic that watermill-sql accepts. The real topic is a column of the
// row.
const innerTopic = "outbox"

// insert executes the statement through watermill-sql's Publisher. It sets no logger,
// because that Publisher would log payloads.
func (p publisher) insert(topic string, records []record) error {
	inner, err := wsql.NewPublisher(p.tx, wsql.PublisherConfig{
		SchemaAdapter: checkedAdapter{schemaAdapter: schemaAdapter{p.outbox}, topic: topic, records: records},
	}, nil)
	if err != nil {
		return err
	}
	return inner.Publish(innerTopic)
}

// checkedAdapter is a schema adapter that inserts records that were checked already.
type checkedAdapter struct {
	schemaAdapter

	topic   string
	records []record
}

func (c checkedAdapter) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return c.outbox.query(c.topic, c.records), nil
}

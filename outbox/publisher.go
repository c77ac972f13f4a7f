package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
)

// Publisher is like [Outbox.Publisher], for PostgreSQL and the table prefix "once_".
func Publisher(tx *sql.Tx) message.Publisher { return standard().Publisher(tx) }

// Publisher returns a publisher that stores messages in tx. The messages are sent if,
// and only if, tx commits. If tx is nil, every Publish returns [ErrNoTransaction].
//
// Publish stores all messages of a call, or returns an error. A call may have any
// number of messages. After [ErrInvalid], tx is unchanged. After any other error, tx
// can only be rolled back. Close does nothing.
//
// If the database was opened with package lazytx, Publish only checks the messages, and
// lazytx sends them together with the commit. If PostgreSQL refuses them, the commit
// fails.
//
// A handler should return the error of Publish, or wrap it. If the outbox table does
// not exist in PostgreSQL, or the right to write to it is missing, no attempt is
// counted for the handler's message: the message waits until the database is set up.
//
// Publish stores the trace of a message's context as the metadata traceparent and
// tracestate, unless the metadata already contains a trace. If the context has a
// recording span, each call adds a span.
func (o *Outbox) Publisher(tx *sql.Tx) message.Publisher {
	return publisher{outbox: o, tx: tx}
}

type publisher struct {
	outbox *Outbox
	tx     *sql.Tx
	ctx    context.Context // messages without a trace get the trace of this context; may be nil
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
			return p.outbox.failed(p.outbox.dialect.Explain(context.Background(), p.tx, err))
		}
		failpoint.Hit("outbox/inserted")
		records = records[n:]
	}
	return nil
}

func (p publisher) Close() error { return nil }

// failed returns the error for an insert that failed with err. If a table or a right is
// missing, a consumer that is handling a message must not count an attempt, because the
// message is not the cause. In this case failed marks the error, so that the consumer
// recognizes it.
func (o *Outbox) failed(err error) error {
	if !dialect.Undeployed(err) || disposition.Given(err) { // the second condition is true if failed has already wrapped err
		return fmt.Errorf("outbox: %w", err)
	}
	return disposition.HandBack(fmt.Errorf("outbox: table %s cannot be written: grant the role of a producer, see docs/roles.md, "+
		"and run schema.Check: %w", o.dialect.Config().Table("outbox"), err))
}

// insert stores records. With lib/pq, the statement has no arguments, so that it takes
// one round trip, or none with lazytx, which sends it with COMMIT. With pgx, the
// statement has arguments: it also takes only one round trip, and PostgreSQL need not
// parse it every time.
func (p publisher) insert(topic string, records []record) error {
	o := p.outbox
	ctx := context.Background() // Publish has no context, and the context of InTx bounds only its beginning
	if o.dialect.SQLite() || o.config.Parameters || dialect.Prepares(p.tx) {
		query, args := o.insert.statement(topic, records)
		_, err := p.tx.ExecContext(ctx, query, args...)
		return err
	}
	late := &dialect.Late{Head: len(o.insert.head), Failed: o.failed}
	_, err := p.tx.ExecContext(dialect.SendLate(ctx, late), o.insert.text(topic, records))
	return err
}

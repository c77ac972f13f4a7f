package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/usercode"
)

// Publisher is like [Outbox.Publisher], for PostgreSQL and the table prefix "once_".
func Publisher(tx *sql.Tx) message.Publisher { return standard().Publisher(tx) }

// Publisher returns a publisher that stores messages in tx. They are sent if, and only if, tx
// commits. If tx is nil, every Publish returns [ErrNoTransaction].
//
// Publish stores all messages of a call, any number of them, or returns an error. After
// [ErrInvalid], tx is unchanged. After any other error, it can only be rolled back. Close does
// nothing.
//
// With package lazytx, Publish only checks the messages, and lazytx sends them together with the
// commit, which fails if PostgreSQL refuses them.
//
// A handler should return the error of Publish, or wrap it. If the outbox table in PostgreSQL or a
// right is missing, no attempt is counted: the handler's message waits until the database is set
// up.
//
// Publish leaves out metadata that describes how another message was delivered, such as RabbitMQ's
// header x-death: a handler may have copied it.
//
// Publish stores the trace of a message's context as the metadata traceparent and tracestate,
// unless it already contains a trace. If the context has a recording span, each call adds a span.
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
	if err := dialect.Ended(p.tx); err != nil {
		return fmt.Errorf("outbox: %w", err)
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

// failed marks an error for a consumer that is handling a message: a missing table or right is not
// the message's fault and must not count as an attempt, and a message that the database can never
// store is permanent.
func (o *Outbox) failed(err error) error {
	if dialect.Gone(err) && !errors.Is(err, dialect.ErrEnded) { // package lazytx has sent the check with the insert
		return fmt.Errorf("outbox: %w: %w", dialect.ErrEnded, err)
	}
	err = o.dialect.ExplainNumber(err)               // lazytx calls only this method
	_, marked := errors.AsType[usercode.Marked](err) // true if failed has already wrapped err
	if dialect.Unstorable(err) && !marked {
		return usercode.WithMark(usercode.Permanent, fmt.Errorf(
			"outbox: the database is not in UTF-8 and cannot store the message: see schema.Check: %w", err))
	}
	if !dialect.Undeployed(err) || marked {
		return fmt.Errorf("outbox: %w", err)
	}
	return usercode.WithMark(usercode.Undecided, fmt.Errorf("outbox: table %s cannot be written: "+
		"grant the role of a producer, see docs/roles.md, and run schema.Check: %w", o.dialect.Config().Table("outbox"), dialect.Denied(err)))
}

// With lib/pq, the statement has no arguments, so that it takes one round trip, or none with
// lazytx. With pgx, arguments also take only one, and PostgreSQL need not parse the statement every
// time.
func (p publisher) insert(topic string, records []record) error {
	o := p.outbox
	insert := o.insert.In(p.tx)
	ctx := context.Background() // Publish has no context, and the context of InTx bounds only its beginning
	if o.dialect.SQLite() || dialect.Prepares(p.tx) {
		query, args := insert.statement(topic, records)
		return o.checkInserted(len(records))(p.tx.ExecContext(ctx, query, args...))
	}
	late := &dialect.Late{Head: len(insert.head), Failed: o.failed}
	return o.checkInserted(len(records))(p.tx.ExecContext(dialect.SendLate(ctx, late), insert.text(topic, records)))
}

// checkInserted: if the database has ignored the insert, the events would never be sent.
func (o *Outbox) checkInserted(rows int) func(sql.Result, error) error {
	return func(result sql.Result, err error) error {
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if errors.Is(err, dialect.ErrLate) {
			return nil
		}
		if err == nil && n < int64(rows) {
			err = o.dialect.Unchanged("outbox", fmt.Sprintf("%d of %d rows were not inserted", int64(rows)-n, rows))
		}
		return err
	}
}

// SchemaAdapter is like [Outbox.SchemaAdapter], for PostgreSQL and the table prefix "once_".
func SchemaAdapter() wsql.SchemaAdapter { return standard().SchemaAdapter() }

// SchemaAdapter returns the outbox table as a schema adapter for the Publisher of watermill-sql v3.
// Package sqlv4 has the adapter for v4. Messages are checked as by [Outbox.Publisher], with four
// differences:
//
//   - The Publisher of watermill-sql refuses topics with characters other than letters,
//     digits, and -$:._
//   - It cannot split a call. A call with more than 100 messages, or with too many bytes
//     for one statement, fails.
//   - It sends each call immediately, also with package lazytx, and with lib/pq in two
//     round trips. The context of the first message can interrupt it.
//   - Its calls are not in the metrics and spans of the outbox. Messages keep the trace of
//     their context.
//
// The adapter can only insert: a Subscriber of watermill-sql fails at its first query.
func (o *Outbox) SchemaAdapter() wsql.SchemaAdapter { return schemaAdapter{o} }

type schemaAdapter struct {
	outbox *Outbox
}

func (s schemaAdapter) InsertQuery(topic string, msgs message.Messages) (wsql.Query, error) {
	records, err := s.outbox.check(topic, msgs, &call{})
	if err != nil {
		return wsql.Query{}, err
	}
	switch limit := cut(records); {
	case len(records) == 0:
		return wsql.Query{Query: "SELECT 1"}, nil // watermill-sql's Publisher executes a query even if there are no messages
	case limit < len(records):
		return wsql.Query{}, fmt.Errorf("outbox: %d messages are too many for one statement, the limit is %d: use outbox.Publisher",
			len(records), limit)
	}
	return s.outbox.query(topic, records), nil
}

func (o *Outbox) query(topic string, records []record) wsql.Query {
	query, args := o.insert.In(nil).statement(topic, records)
	return wsql.Query{Query: query, Args: args}
}

var errNotRead = errors.New("outbox: this table is read by the forwarder, not by a subscriber")

// SelectQuery returns a query that fails, and says that the forwarder reads the table.
func (s schemaAdapter) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: `SELECT * FROM "the outbox is read by the forwarder, not by a subscriber"`}
}

func (s schemaAdapter) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) {
	return wsql.Row{}, errNotRead
}

// SchemaInitializingQueries returns no queries, because package schema creates the tables.
func (s schemaAdapter) SchemaInitializingQueries(string) []wsql.Query { return nil }

func (s schemaAdapter) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelDefault }

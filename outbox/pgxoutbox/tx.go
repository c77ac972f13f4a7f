package pgxoutbox

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-once/once/outbox"
)

// tx is the transaction of InTx, and the publisher of its events. Like every pgx.Tx it
// serves one goroutine at a time.
type tx struct {
	pgx.Tx

	outbox *Outbox
	ctx    context.Context
	ended  atomic.Bool // work has returned; atomic, because a goroutine of work may still run

	atOnce bool                // a savepoint may be open: messages are sent at once
	unsent []outbox.Statement  // sent together with COMMIT
	done   []func(error) error // of the calls whose statements are in unsent
}

// run calls work, and ends the use of the transaction when it returns or panics.
func (t *tx) run(work func(tx pgx.Tx, events message.Publisher) error) error {
	defer t.ended.Store(true)
	return work(t, events{t})
}

// events is the publisher of a transaction.
type events struct{ tx *tx }

func (e events) Publish(topic string, msgs ...*message.Message) error {
	t := e.tx
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	statements, done, err := t.outbox.statements.Statements(t.ctx, topic, msgs...)
	if err != nil {
		return err
	}
	if t.atOnce {
		return done(send(t.ctx, t.Tx, statements))
	}
	t.unsent = append(t.unsent, statements...)
	t.done = append(t.done, done)
	return nil
}

func (events) Close() error { return nil }

// sendAtOnce sends the messages so far, and from now on each message when it is
// published: what is published behind a savepoint must go away with it.
func (t *tx) sendAtOnce(ctx context.Context) error {
	if t.atOnce {
		return nil
	}
	t.atOnce = true
	return t.sent(send(ctx, t.Tx, t.unsent))
}

// sent ends the calls of Publish whose statements were not sent at once. It returns err,
// with the remedy for a missing table or right.
func (t *tx) sent(err error) error {
	result := err
	for _, done := range t.done {
		if failed := done(err); err != nil {
			result = failed
		}
	}
	t.unsent, t.done = nil, nil
	return result
}

// before runs before each statement of work.
func (t *tx) before(ctx context.Context, query string) error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	if strings.Contains(strings.ToLower(query), "savepoint") {
		return t.sendAtOnce(ctx)
	}
	return nil
}

// Begin implements pgx.Tx: it opens a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	if err := t.sendAtOnce(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

var errCommits = errors.New("pgxoutbox: InTx ends the transaction: return nil to commit, an error to roll back")

// Commit implements pgx.Tx. It returns an error.
func (t *tx) Commit(context.Context) error { return errCommits }

// Rollback implements pgx.Tx. It returns an error.
func (t *tx) Rollback(context.Context) error { return errCommits }

// CopyFrom implements pgx.Tx.
func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if t.ended.Load() {
		return 0, pgx.ErrTxClosed
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// SendBatch implements pgx.Tx.
func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, query := range b.QueuedQueries {
		if err := t.before(ctx, query.SQL); err != nil {
			return failedBatch{err}
		}
	}
	return t.Tx.SendBatch(ctx, b)
}

// Prepare implements pgx.Tx.
func (t *tx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := t.before(ctx, query); err != nil {
		return nil, err
	}
	return t.Tx.Prepare(ctx, name, query)
}

// Exec implements pgx.Tx.
func (t *tx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := t.before(ctx, query); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, query, args...)
}

// Query implements pgx.Tx.
func (t *tx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := t.before(ctx, query); err != nil {
		return nil, err
	}
	return t.Tx.Query(ctx, query, args...)
}

// QueryRow implements pgx.Tx.
func (t *tx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := t.before(ctx, query); err != nil {
		return failedBatch{err}.QueryRow()
	}
	return t.Tx.QueryRow(ctx, query, args...)
}

// Conn implements pgx.Tx. The connection may open a savepoint, so messages are sent at
// once from now on. If the messages so far cannot be sent, the transaction has failed,
// and the next statement and the commit return errors.
func (t *tx) Conn() *pgx.Conn {
	if t.ended.Load() {
		return nil
	}
	_ = t.sendAtOnce(t.ctx)
	return t.Tx.Conn()
}

// failedBatch is the result of a batch that was not sent.
type failedBatch struct{ err error }

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return nil, f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failedRow(f) }
func (f failedBatch) Close() error                     { return f.err }

// Tx is a method of pgx.BatchResults since pgx 5.12.
func (failedBatch) Tx() pgx.Tx { return nil }

type failedRow struct{ err error }

func (f failedRow) Scan(...any) error { return f.err }

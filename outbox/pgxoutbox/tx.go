package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/outbox"
)

// tx is the transaction of InTx, and the publisher of its events. Like every pgx.Tx, it is for one
// goroutine at a time.
type tx struct {
	*session

	nested pgx.Tx // the same transaction, as pgx represents it; nil until inner is called
	outbox *outbox.Outbox
	table  string // name of the outbox table, for errors
	ctx    context.Context
	ended  atomic.Bool // the function work has returned; atomic, because a goroutine that it has started may still run

	marked   bool                // the mark of the transaction was sent, see dialect.Check
	replaced bool                // work has ended the transaction and begun another one
	atOnce   bool                // a savepoint may be open, so messages are sent immediately
	unsent   []outbox.Statement  // statements to send together with COMMIT
	messages int                 // number of messages in unsent
	bytes    int                 // of these messages
	done     []func(error) error // the done functions of the statements in unsent

	stopped error // error that was passed to the method must, or nil
}

// run makes the transaction unusable when work ends, for goroutines that work has started.
func (t *tx) run(work func(tx pgx.Tx, events message.Publisher) error) (err error) {
	defer t.ended.Store(true)
	defer func() {
		if t.stopped != nil {
			_, err = recover(), t.stopped
		}
	}()
	return work(t, events{t})
}

type events struct{ tx *tx }

func (e events) Publish(topic string, msgs ...*message.Message) error {
	t := e.tx
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	statements, done, err := t.outbox.Statements(t.ctx, topic, msgs...)
	if err != nil {
		return err
	}
	if t.atOnce {
		return done(t.send(t.ctx, statements, len(msgs)))
	}
	t.unsent = append(t.unsent, statements...)
	t.done = append(t.done, done)
	t.messages += len(msgs)
	for _, msg := range msgs {
		t.bytes += size(msg)
	}
	if t.bytes < maxUnsent {
		return nil
	}
	return t.sent(t.send(t.ctx, t.unsent, t.messages))
}

// maxUnsent limits the memory of a transaction with many messages, in bytes.
const maxUnsent = 1 << 20

func size(msg *message.Message) int {
	bytes := len(msg.UUID) + len(msg.Payload)
	for key, value := range msg.Metadata {
		bytes += len(key) + len(value)
	}
	return bytes
}

func (events) Close() error { return nil }

// sendAtOnce sends the unsent messages, and from then on each when it is published, so that a
// rollback to a savepoint removes those published after it.
func (t *tx) sendAtOnce(ctx context.Context) error {
	if t.atOnce {
		return nil
	}
	t.atOnce = true
	if err := t.mark(ctx); err != nil { // statements on the connection do not call beforeStatement
		return err
	}
	if len(t.unsent) == 0 {
		return nil
	}
	return t.sent(t.send(ctx, t.unsent, t.messages))
}

func (t *tx) send(ctx context.Context, statements []outbox.Statement, messages int) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	if t.conn.Conn().PgConn().TxStatus() == idle {
		return errEnded
	}
	if t.marked {
		statements = append([]outbox.Statement{{Query: dialect.CheckTransaction}}, statements...)
	}
	err := ended(send(ctx, t.conn, statements, messages, t.table))
	t.replaced = t.replaced || errors.Is(err, errEnded)
	return err
}

// mayEnd matches statements that may end the transaction. A match by mistake costs a round trip.
var mayEnd = regexp.MustCompile(`(?i)\b(commit|end|rollback|abort|prepare)\b`)

// mark marks the transaction before a statement that may end it, or create a savepoint: a failed
// transaction accepts no mark, and ROLLBACK TO can repair it. The mark is then missing at COMMIT,
// and the check fails.
func (t *tx) mark(ctx context.Context) error {
	if t.marked {
		return nil
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	t.marked = true
	_, _ = t.conn.Exec(ctx, dialect.MarkTransaction)
	return nil
}

func ended(err error) error {
	if dialect.Gone(err) {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	return err
}

// sent finishes the calls of Publish whose statements were delayed, and failed with err if it is
// not nil. Then it returns the last result, which says what to do if a table or a right is missing.
func (t *tx) sent(err error) error {
	result := err
	for _, done := range t.done {
		if failed := done(err); err != nil {
			result = failed
		}
	}
	t.unsent, t.done, t.messages, t.bytes = nil, nil, 0, 0
	return result
}

// beforeStatement refuses a statement after work has returned, marks the transaction if it may end
// it, and sends the unsent messages if it may use a savepoint.
func (t *tx) beforeStatement(ctx context.Context, query string) error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	if strings.Contains(strings.ToLower(query), "savepoint") {
		return t.sendAtOnce(ctx)
	}
	if mayEnd.MatchString(query) {
		return t.mark(ctx)
	}
	return nil
}

// inner returns a pgx.Tx of pgx, for methods that need more than the connection.
func (t *tx) inner(ctx context.Context) (pgx.Tx, error) {
	if t.nested != nil {
		return t.nested, nil
	}
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	var err error
	t.nested, err = t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: ";"}) // the transaction has begun already
	return t.nested, err
}

// Begin implements pgx.Tx: it opens a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	if err := t.sendAtOnce(ctx); err != nil {
		return nil, err
	}
	inner, err := t.inner(ctx)
	if err != nil {
		return nil, err
	}
	return inner.Begin(ctx)
}

var errCommits = errors.New("pgxoutbox: InTx ends the transaction: return nil to commit, an error to roll back")

// Commit implements pgx.Tx. It fails, because InTx commits.
func (t *tx) Commit(context.Context) error { return errCommits }

// Rollback implements pgx.Tx. It fails, because InTx ends the transaction.
func (t *tx) Rollback(context.Context) error { return errCommits }

// CopyFrom implements pgx.Tx.
func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.beforeStatement(ctx, ""); err != nil {
		return 0, err
	}
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

// SendBatch implements pgx.Tx.
func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, query := range b.QueuedQueries {
		if err := t.beforeStatement(ctx, query.SQL); err != nil {
			return failedBatch{err}
		}
	}
	if err := t.begin(ctx); err != nil {
		return failedBatch{err}
	}
	return t.conn.SendBatch(ctx, b)
}

// Prepare implements pgx.Tx.
func (t *tx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := t.beforeStatement(ctx, query); err != nil {
		return nil, err
	}
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.conn.Conn().Prepare(ctx, name, query)
}

// Exec implements pgx.Tx.
func (t *tx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := t.beforeStatement(ctx, query); err != nil {
		return pgconn.CommandTag{}, err
	}
	if tag, done, err := t.exec(ctx, query, args); done || err != nil {
		return tag, err
	}
	return t.conn.Exec(ctx, query, args...)
}

// Query implements pgx.Tx.
func (t *tx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := t.beforeStatement(ctx, query); err != nil {
		return failedRows{err}, err
	}
	rows, done, err := t.query(ctx, query, args)
	switch {
	case err != nil:
		return failedRows{err}, err
	case done:
		return rows, nil
	}
	return t.conn.Query(ctx, query, args...)
}

// QueryRow implements pgx.Tx.
func (t *tx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := t.beforeStatement(ctx, query); err != nil {
		return failedRows{err}
	}
	rows, done, err := t.query(ctx, query, args)
	switch {
	case err != nil:
		return failedRows{err}
	case done:
		return firstRow{rows}
	}
	return t.conn.QueryRow(ctx, query, args...)
}

// Conn implements pgx.Tx. The caller may open a savepoint on the connection, so messages are sent
// immediately from then on. If the unsent ones cannot be sent, the next statement and the commit
// fail.
func (t *tx) Conn() *pgx.Conn {
	if t.ended.Load() {
		return nil
	}
	t.must(t.begin(t.ctx))
	_ = t.sendAtOnce(t.ctx)
	return t.conn.Conn()
}

// LargeObjects implements pgx.Tx.
func (t *tx) LargeObjects() pgx.LargeObjects {
	inner, err := t.inner(t.ctx)
	t.must(err)
	return inner.LargeObjects()
}

// must ends the user's function with a panic, and InTx returns err. It is for methods that cannot
// return an error.
func (t *tx) must(err error) {
	if err != nil {
		t.stopped = err
		panic(err)
	}
}

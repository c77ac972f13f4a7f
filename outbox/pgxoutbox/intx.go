package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/outbox"
)

// InTx runs work in a transaction and commits it: writes through tx and messages
// published to events take effect together. If work returns an error or panics, InTx
// rolls back; it returns the error unchanged, or lets the panic continue.
//
// Publish checks the messages at once and returns outbox.ErrInvalid for those that the
// outbox cannot accept. It sends them later, together with COMMIT, so until then work
// does not see them in the outbox table. If PostgreSQL cannot store them, the commit
// fails and InTx returns the error. Work that uses savepoints (tx.Begin, SAVEPOINT) or
// tx.Conn is different: from then on, Publish sends the messages at once, so that they
// share the fate of their savepoint.
//
// BEGIN is sent together with the first statement of work, which saves a round trip. If
// the connection turns out to be dead then, the transaction begins on another one.
//
// work must not commit or roll back tx. After work has returned, tx and events return
// errors. ctx bounds the wait for a connection; work passes it to its own statements.
// It does not interrupt COMMIT, whose outcome would then be unknown.
// Messages whose context has no trace get the trace of ctx.
//
// If the connection is lost during the commit, the error wraps
// outbox.ErrCommitUnknown. InTx calls hints, such as a forwarder's Hint, after the
// commit and after ErrCommitUnknown. It skips nil hints.
func (o *Outbox) InTx(
	ctx context.Context, pool *pgxpool.Pool, work func(tx pgx.Tx, events message.Publisher) error, hints ...func(),
) error {
	if pool == nil || work == nil {
		return errors.New("pgxoutbox: InTx needs pool and work, one of them is nil")
	}
	session, err := newSession(ctx, pool)
	if err != nil {
		return fmt.Errorf("pgxoutbox: %w", err)
	}
	defer session.release()
	t := &tx{session: session, outbox: o, ctx: ctx}
	err = t.run(work)
	if err != nil {
		session.rollBack()
		_ = t.sent(err)
		return err
	}
	if err = t.commit(); err != nil {
		err = fmt.Errorf("pgxoutbox: %w", err)
	}
	if err == nil || errors.Is(err, outbox.ErrCommitUnknown) {
		for _, hint := range hints {
			if hint != nil {
				hint()
			}
		}
	}
	return err
}

// rollBackTimeout bounds the time for a rollback. If it takes longer, the pool closes
// the connection instead.
const rollBackTimeout = 5 * time.Second

func (s *session) rollBack() {
	if s.conn == nil {
		return
	}
	conn := s.conn.Conn()
	if conn.IsClosed() || conn.PgConn().TxStatus() == idle {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollBackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx)
	}
}

// Values of pgconn.PgConn.TxStatus.
const (
	idle   = 'I'
	active = 'T'
)

var (
	errEnded  = errors.New("work has ended the transaction: InTx commits it")
	errFailed = errors.New("a statement of the transaction has failed and work has ignored its error, so nothing can be committed")
)

// commit sends the events that were not sent yet, and COMMIT, in one round trip.
func (t *tx) commit() (err error) {
	defer func() { err = t.sent(err) }()
	if t.pending {
		if len(t.unsent) == 0 {
			return nil
		}
		ctx := t.ctx
		if ctx.Err() != nil { // it has ended during work, and does not interrupt the commit
			ctx = context.WithoutCancel(ctx)
		}
		// A dead connection must be noticed before COMMIT is sent, so that the outcome is known.
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	if t.conn == nil {
		return errLost
	}
	conn := t.conn.Conn()
	switch status := conn.PgConn().TxStatus(); {
	case conn.IsClosed():
		return errors.New("the connection was closed before the commit: nothing took effect")
	case status == idle:
		return errEnded
	case status != active:
		t.rollBack()
		return errFailed
	}
	batch := &pgx.Batch{}
	for _, s := range t.unsent {
		batch.Queue(s.Query, s.Args...)
	}
	committed := false
	batch.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		committed = tag.String() == "COMMIT"
		return nil
	})
	err = conn.SendBatch(context.WithoutCancel(t.ctx), batch).Close()
	switch {
	case err == nil && committed:
		return nil
	case err == nil:
		return errors.New("commit: the transaction was rolled back")
	case dialect.CommitRefused(err), pgconn.SafeToRetry(err): // the server said so, or has not got the statements
		t.rollBack()
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", outbox.ErrCommitUnknown, err)
}

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

// InTx calls work in a transaction, and then commits it. Writes through tx and messages published
// to events take effect together. If work fails, InTx rolls back and returns its error unchanged.
// If it panics, InTx rolls back and lets the panic continue.
//
// Publish checks the messages immediately, and returns outbox.ErrInvalid for those that the outbox
// cannot accept. InTx sends them together with COMMIT, so work does not see them in the outbox
// table, and if PostgreSQL cannot store them, the commit fails. If they have more than 1 MiB
// together, Publish sends them before. If work uses savepoints (tx.Begin, SAVEPOINT) or tx.Conn,
// Publish sends the messages immediately from then on, so that they are rolled back together with
// their savepoint.
//
// BEGIN is sent together with the first statement of work, which saves a round trip. If the
// connection is dead, the transaction begins on another one.
//
// work must not end tx, not even with a statement such as ROLLBACK: InTx then returns an error, and
// does not store the messages. They are stored in the tables that the search path of the
// connections in pool leads to, even if work has changed it. After work has returned, tx and events
// return errors.
//
// ctx limits the wait for a connection: pass it to the statements in work, too. It does not
// interrupt COMMIT, whose outcome would be unknown. Messages whose context has no trace get the
// trace of ctx.
//
// If the connection is lost during the commit, the error wraps outbox.ErrCommitUnknown. After it
// and after the commit, InTx calls hints, such as the method Hint of a forwarder, except nil.
func (o *Outbox) InTx(
	ctx context.Context, pool *pgxpool.Pool, work func(tx pgx.Tx, events message.Publisher) error, hints ...func(),
) error {
	if pool == nil || work == nil {
		return errors.New("pgxoutbox: InTx needs pool and work, one of them is nil")
	}
	named := o.named(ctx, pool)
	session, err := newSession(ctx, pool)
	if err != nil {
		return fmt.Errorf("pgxoutbox: %w", err)
	}
	defer session.release()
	t := &tx{session: session, outbox: named, table: o.table(), ctx: ctx}
	err = t.run(work)
	if err != nil {
		session.rollBack()
		_ = t.sent(err)
		session.distrust(err)
		return err
	}
	if err = t.commit(); err != nil {
		session.distrust(err)
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

// After rollBackTimeout, the pool closes the connection.
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

// distrust closes the connection if its server has become a replica, or if the role of the session
// lacks a right, because work may have changed the role in an earlier transaction. Every later
// transaction of the connection would fail, too.
func (s *session) distrust(err error) {
	if s.conn == nil || !dialect.Distrusted(err) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollBackTimeout)
	defer cancel()
	_ = s.conn.Conn().Close(ctx)
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

func (t *tx) commit() (err error) {
	defer func() { err = t.sent(err) }()
	if t.pending {
		if len(t.unsent) == 0 {
			return nil
		}
		ctx := t.ctx
		if ctx.Err() != nil { // the context of InTx has ended while work ran, and must not interrupt the commit
			ctx = context.WithoutCancel(ctx)
		}
		// A dead connection must be noticed before COMMIT, so that the outcome is known.
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
	case status == idle, t.replaced:
		t.rollBack()
		return errEnded
	case status != active:
		t.rollBack()
		return errFailed
	}
	batch := &pgx.Batch{}
	if t.marked {
		batch.Queue(dialect.CheckTransaction)
	}
	inserted, committed := 0, false
	queue(batch, t.unsent, &inserted)
	batch.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		committed = tag.String() == "COMMIT"
		return nil
	})
	err = conn.SendBatch(context.WithoutCancel(t.ctx), batch).Close()
	switch {
	case err == nil && committed:
		if err = checkInserted(inserted, t.messages, t.table); err != nil { // COMMIT was sent already
			err = fmt.Errorf("%w: the work is committed, but not its events: %w", outbox.ErrCommitUnknown, err)
		}
		return err
	case err == nil:
		return errors.New("commit: the transaction was rolled back")
	case dialect.CommitRefused(err), pgconn.SafeToRetry(err): // the server has refused the commit, or has not received the statements
		t.rollBack()
		return fmt.Errorf("commit: %w", ended(err))
	}
	return fmt.Errorf("commit: %w: %w", outbox.ErrCommitUnknown, err)
}

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// InTx is like [Outbox.InTx], for PostgreSQL and the table prefix "once_".
func InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func()) error {
	return standard().InTx(ctx, db, work, hints...)
}

// InTx calls the function work in a transaction, and then commits the transaction.
// Writes through tx and messages published to events take effect together. If work
// returns an error, InTx rolls back and returns the error unchanged. If work panics,
// InTx rolls back and lets the panic continue.
//
// The parameter ctx limits only the wait for a connection. If ctx should also limit the
// statements in the function work, pass ctx to these statements. Messages whose context
// has no trace get the trace of ctx.
//
// After the commit, InTx calls the functions in hints, such as the method Hint of a
// forwarder. It also calls them after [ErrCommitUnknown], because there may be messages
// to send. It skips functions that are nil.
func (o *Outbox) InTx(
	ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func(),
) error {
	if db == nil || work == nil {
		return errors.New("outbox: InTx needs db and work, one of them is nil")
	}
	var failed error
	err := o.dialect.InTx(ctx, db, func(tx *sql.Tx) error {
		failpoint.Hit("outbox/begun")
		failed = work(tx, publisher{outbox: o, tx: tx, ctx: ctx})
		failpoint.Hit("outbox/worked")
		return failed
	})
	if failed != nil {
		return failed
	}
	if err == nil || errors.Is(err, ErrCommitUnknown) {
		failpoint.Hit("outbox/committed")
		for _, hint := range hints {
			if hint != nil { // a panic after the commit would look like a rollback
				hint()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

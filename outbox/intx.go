package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// InTx is [Outbox.InTx] for PostgreSQL and the table prefix "once_".
func InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func()) error {
	return standard().InTx(ctx, db, work, hints...)
}

// InTx runs work in a transaction and commits it: writes through tx and messages
// published to events take effect together. If work returns an error or panics, InTx
// rolls back; it returns the error unchanged, or lets the panic continue.
//
// ctx bounds the wait for a connection. work must pass it to its own statements.
// Messages whose context has no trace get the trace of ctx.
//
// InTx calls hints, such as a forwarder's Hint, after the commit, and also after
// [ErrCommitUnknown], because there may be messages to send. It skips nil hints.
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

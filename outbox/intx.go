package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// InTx is [Outbox.InTx] with PostgreSQL's tables "once_".
func InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func()) error {
	return standard().InTx(ctx, db, work, hints...)
}

// InTx runs work in a transaction and commits it: business writes through tx
// and messages published to events take effect together. If work returns an
// error or panics, the transaction is rolled back; the error is returned as it
// is, the panic goes on.
//
// ctx bounds the wait for a connection; work gives it to its own statements.
// Messages whose own context has no trace are of the one in ctx.
//
// hints, such as a forwarder's Hint, are called when there may be something to
// send: after the commit, also after one whose outcome is [ErrCommitUnknown].
// One that is nil is left out.
func (o *Outbox) InTx(
	ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func(),
) error {
	if db == nil || work == nil {
		return errors.New("outbox: db and work are needed, one of them is nil")
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
			if hint != nil { // a panic here would say that the transaction was rolled back
				hint()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

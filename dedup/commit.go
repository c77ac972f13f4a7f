package dedup

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"

	"github.com/watermill-once/once/internal/dialect"
)

// commit commits tx, after a check that tx is still the transaction that begin
// began: a handler may have sent a statement such as ROLLBACK AND CHAIN, which
// database/sql does not notice.
//
// The check is free if it travels with COMMIT (package lazytx) or needs no round
// trip (SQLite). Otherwise commit checks every batch, and a sample of the
// transactions with a single message.
func (i *Inbox) commit(ctx context.Context, tx *sql.Tx, check *dialect.Check, batch bool) error {
	if !check.Sent && (batch || i.dialect.SQLite() || i.sample.next()) {
		_, err := tx.ExecContext(context.WithoutCancel(ctx), i.sql.check)
		if err != nil && transactionGone(err) {
			i.sample.all.Store(true)
			return endedByHandler(err)
		}
		// After any other error of the check, COMMIT fails too.
	}
	err := i.dialect.Commit(tx)
	if err == nil {
		return nil
	}
	if transactionGone(err) {
		i.sample.all.Store(true)
	}
	return i.commitError(err)
}

// transactionGone reports whether err comes from the check, or from a driver that
// noticed by itself that the transaction had ended.
func transactionGone(err error) bool {
	text := err.Error()
	return strings.Contains(text, endedParameter) ||
		strings.Contains(text, "no such savepoint: "+savepoint) ||
		strings.Contains(text, "pq: unexpected transaction status")
}

// sample selects the transactions that are checked where the check is a round
// trip, about a tenth of the cost of a message. It selects the first ones, because
// a handler that ends its transaction likely does so from the start, then one of
// checkEvery, and all of them after the first find.
type sample struct {
	n   atomic.Int64
	all atomic.Bool
}

const (
	firstChecked = 1000
	checkEvery   = 32
)

func (s *sample) next() bool {
	n := s.n.Add(1)
	return n <= firstChecked || n%checkEvery == 0 || s.all.Load()
}

package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
)

// commit commits tx after checking that tx is still the transaction that begin began.
// The handler may have run a statement such as ROLLBACK AND CHAIN, which database/sql
// does not notice.
//
// The check needs no round trip in SQLite. It needs none with package lazytx either,
// which sends it together with COMMIT if a statement may have ended the transaction.
// Otherwise, begin selects all batches and a sample of the transactions with a single
// message for the check.
func (i *Inbox) commit(ctx context.Context, tx *sql.Tx, check *dialect.Check) error {
	if check != nil && !check.Sent {
		if _, err := tx.ExecContext(context.WithoutCancel(ctx), i.sql.check); err != nil {
			return i.checkError(err)
		}
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

// checkError returns the error of the check with its disposition. The transaction is not
// committed after any of them.
func (i *Inbox) checkError(err error) error {
	switch {
	case transactionGone(err):
		i.sample.all.Store(true)
	case !i.dialect.SQLite() && dialect.State(err) == "" && !errors.Is(err, sql.ErrTxDone): // the connection was lost
		return disposition.HandBack(fmt.Errorf("dedup: check the transaction: %w", err))
	}
	return i.commitError(err)
}

// transactionGone reports whether err was caused by the check, or by a driver that
// noticed itself that the transaction had ended.
func transactionGone(err error) bool {
	text := err.Error()
	return strings.Contains(text, endedParameter) ||
		strings.Contains(text, "no such savepoint: "+savepoint) ||
		strings.Contains(text, "pq: unexpected transaction status")
}

// sample selects the transactions that are checked if the check needs a round trip,
// which costs about a tenth of handling a message. It selects the first transactions,
// because a handler that ends its transaction probably does so from the beginning.
// After these it selects one in checkEvery, and all transactions after the check has
// failed once.
type sample struct {
	n   atomic.Int64
	all atomic.Bool
}

const (
	firstChecked = 100
	checkEvery   = 32
)

func (s *sample) next() bool {
	n := s.n.Add(1)
	return n <= firstChecked || n%checkEvery == 0 || s.all.Load()
}

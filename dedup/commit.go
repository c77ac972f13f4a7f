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

// commit commits tx. Before that, it checks that tx is still the transaction that the
// method begin has started. The handler may have run a statement such as ROLLBACK AND
// CHAIN, which database/sql does not notice.
//
// The check needs no round trip with SQLite. With package lazytx it needs none either:
// if a statement may have ended the transaction, lazytx sends the check together with
// COMMIT. Otherwise the check needs a round trip. Therefore the method begin selects
// the transactions to check: all batches, and a sample of the transactions with a
// single message. For the other transactions, the parameter check is nil.
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

// checkError returns the error of the check with its disposition. The transaction is
// not committed after such an error.
func (i *Inbox) checkError(err error) error {
	switch {
	case transactionGone(err):
		i.sample.all.Store(true)
	case !i.dialect.SQLite() && dialect.State(err) == "" && !errors.Is(err, sql.ErrTxDone): // the connection was lost
		return disposition.HandBack(fmt.Errorf("dedup: check the transaction: %w", err))
	}
	return i.commitError(err)
}

// transactionGone reports whether err means that the transaction has ended. Either the
// check or the driver has noticed this.
func transactionGone(err error) bool {
	text := err.Error()
	return strings.Contains(text, endedParameter) ||
		strings.Contains(text, "no such savepoint: "+savepoint) ||
		strings.Contains(text, "pq: unexpected transaction status")
}

// sample selects the transactions to check if the check needs a round trip, which takes
// about a tenth of the time to handle a message. It selects the first transactions,
// because a handler that ends its transaction probably does so from the beginning.
// After these, it selects one transaction in checkEvery. After the first failed check,
// it selects all transactions.
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

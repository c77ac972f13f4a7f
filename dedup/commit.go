package dedup

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"

	"github.com/watermill-once/once/internal/dialect"
)

// commit commits a transaction, if it is still the one that was begun: what a
// handler sends as a statement, such as ROLLBACK AND CHAIN, is seen by nobody
// else. many says that it is that of a batch.
//
// It costs nothing where the check goes with COMMIT, as with package lazytx, or
// is no round trip. Otherwise it is made for a sample of single messages.
func (i *Inbox) commit(ctx context.Context, tx *sql.Tx, check *dialect.Check, many bool) error {
	if !check.Sent && (many || i.dialect.SQLite() || i.sample.next()) {
		_, err := tx.ExecContext(context.WithoutCancel(ctx), i.sql.check)
		if err != nil && notThere(err) {
			i.sample.all.Store(true)
			return endedByHandler(err)
		}
		// Of any other error COMMIT has one too.
	}
	err := i.dialect.Commit(tx)
	if err == nil {
		return nil
	}
	if notThere(err) {
		i.sample.all.Store(true)
	}
	return i.commitError(err)
}

// notThere says that an error is that of a check, or that the driver itself has
// found that there is no transaction.
func notThere(err error) bool {
	text := err.Error()
	return strings.Contains(text, endedParameter) ||
		strings.Contains(text, "no such savepoint: "+savepoint) ||
		strings.Contains(text, "pq: unexpected transaction status")
}

// sample says which transactions are checked where that is a round trip, which
// would be a tenth of what a message costs: the first ones, where a handler that
// does such a thing is likely to show, then some, and all from when one was
// found.
type sample struct {
	n   atomic.Int64
	all atomic.Bool
}

const (
	firstChecked = 1000
	checkedOf    = 32
)

func (s *sample) next() bool {
	n := s.n.Add(1)
	return n <= firstChecked || n%checkedOf == 0 || s.all.Load()
}

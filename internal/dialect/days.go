package dialect

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"time"
)

// What the inbox and the sent log by day share. How rows find their day differs: by the time in
// their ids, or by a column.

const (
	// DaysAhead is the number of future days with partitions. If a lock prevents one, every sweep
	// tries again.
	DaysAhead = 7

	// DayName is the layout of a day at the end of its partition's name.
	DayName = "20060102"

	// DayLockTimeout is short, because inserts wait while work on a partition waits for a lock.
	DayLockTimeout = 50 * time.Millisecond
)

// TryDays returns the query that takes the lock on the days of a table until the end of the
// transaction, and returns whether it was free: only one process at a time works on them.
func (d Dialect) TryDays(table string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte("once days " + d.Config().Table(table)))
	return fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, int64(h.Sum64()))
}

// InDaysTx calls work in a transaction that changes the partitions of a table, and reports whether
// it was committed. It does nothing if another process is working on the table's days.
func (d Dialect) InDaysTx(ctx context.Context, db *sql.DB, table string, work func(tx *sql.Tx) error) (done bool, err error) {
	try := d.TryDays(table)
	err = d.Write(ctx, db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, try).Scan(&done); err != nil || !done {
			return err
		}
		return work(tx)
	})
	return done && err == nil, err
}

// DayInUse reports whether err means that the next sweep can try again: a lock protects the day, or
// another process has created or dropped its partition.
func DayInUse(err error) bool { return Contended(err) || DayChanged(err) }

// DayChanged reports whether err means that another process has created or dropped a partition.
func DayChanged(err error) bool {
	state := State(err)
	return state == "42P01" || state == "42P07" // undefined_table, duplicate_table
}

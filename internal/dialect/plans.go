package dialect

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"
)

// Connections of pgx keep the plans of their statements, and so do the connections that
// a [Reader] uses. PostgreSQL makes a new plan only after the table was analyzed. So a
// plan can come from a time when the table was empty. Such a plan reads the whole
// table, and takes seconds when the table has a million rows. Therefore this package
// discards the plans of a connection after slow work.
const (
	discardPlans = `DISCARD PLANS`

	// Queries that take longer than slowWork may have an old plan.
	slowWork = 20 * time.Millisecond

	// discardEvery is the minimum time between two discards. On a busy machine, all work is
	// slow. As new plans take up to 2 ms, more frequent discards would make the work even
	// slower.
	discardEvery = 200 * time.Millisecond
)

// plans decides when plans are discarded.
type plans struct {
	slow      time.Duration
	discarded atomic.Int64 // time of the last discard, in nanoseconds since 1970
}

// old reports whether the plans of a connection must be discarded after work that has
// begun at the given time.
func (p *plans) old(began time.Time) bool {
	now := time.Now()
	last := p.discarded.Load()
	return now.Sub(began) > p.slow && now.Sub(time.Unix(0, last)) > discardEvery && p.discarded.CompareAndSwap(last, now.UnixNano())
}

// replanning returns a function that calls the function work, and then discards old
// plans.
func (d Dialect) replanning(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if d.SQLite() || kindOf(db) != pgx {
		return work
	}
	return func(tx *sql.Tx) error {
		began := time.Now()
		err := work(tx)
		if err == nil && d.plans.old(began) {
			_, err = tx.ExecContext(ctx, discardPlans)
		}
		return err
	}
}

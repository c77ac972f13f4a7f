// Package sentdays creates and drops the partitions of a sent log that has one
// partition for each day. It is a separate package because packages forwarder and
// deadletter need it.
package sentdays

import (
	"context"
	"database/sql"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// ahead is the number of future days for which partitions are created.
const ahead = 7

// Result is the result of a sweep.
type Result struct {
	ByDay bool // whether the sent log is partitioned by day
	Owner bool // whether the database user owns the sent log; if not, nothing was done

	Created, Dropped int // numbers of partitions

	Forgotten int64 // number of deleted rows of the default partition
}

// Sweep creates the partitions of future days. The parameter keep is the retention:
// Sweep drops the partition of a day when the end of the day is at least this long ago.
// Sweep also deletes the rows of the default partition that are older than the
// retention. If Sweep cannot get a lock soon, it leaves the work to the next call.
func Sweep(ctx context.Context, db *sql.DB, d dialect.Dialect, keep time.Duration) (r Result, err error) {
	if d.SQLite() {
		return Result{}, nil
	}
	l, err := look(ctx, db, d, keep)
	if err != nil || l == nil {
		return Result{}, err
	}
	r = Result{ByDay: true, Owner: l.owner}
	if !l.owner {
		return r, nil
	}
	for n := range ahead {
		begin := l.today.AddDate(0, 0, n+1)
		if l.has(begin) {
			continue
		}
		if err := change(ctx, db, d, create(d, l.schema, begin), &r.Created); err != nil {
			return r, err
		}
	}
	for _, p := range l.parts {
		switch {
		case p.rest:
			r.Forgotten, err = forget(ctx, db, d, p.name, keep)
		case p.expired:
			err = change(ctx, db, d, `DROP TABLE `+p.name, &r.Dropped)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

package deadletter

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/watermill-once/once/internal/operate"
)

// clockSlack is how much earlier the time of a row may be than the time of a row with a
// lower ID. Usually the times ascend with the IDs. There are exceptions if a
// transaction has waited, or if the clock of the database was set back.
const clockSlack = 10 * time.Minute

// since returns f with limits for the IDs, which follow from the times in f. Without
// these limits, a list would also read all rows before these times, because PostgreSQL
// reads rows in the order of their IDs.
func (t table) since(ctx context.Context, tx *sql.Tx, f Filter) (Filter, error) {
	after, before := t.times(f)
	if !after.IsZero() {
		first, err := t.firstSince(ctx, tx, after.Add(-clockSlack))
		if err != nil {
			return f, err
		}
		f = f.within(first, math.MaxInt64)
	}
	if before.IsZero() {
		return f, nil
	}
	last, err := t.firstSince(ctx, tx, before.Add(clockSlack))
	return f.within(1, last), err
}

// times returns the limits that f sets for the time at which a row was inserted.
func (t table) times(f Filter) (after, before time.Time) {
	if t.dead {
		return f.FailedAfter, f.FailedBefore
	}
	return f.SentAfter, f.SentBefore
}

// firstSince returns the ID of the first row that was inserted at the given time or
// later. If there is no such row, it returns an ID above all rows. It uses a binary
// search, because later rows have higher IDs.
func (t table) firstSince(ctx context.Context, tx *sql.Tx, at time.Time) (id int64, err error) {
	c := &operate.Conditions{}
	earlier := `r.id < s.high AND r.` + t.arrived + ` < ` + c.Arg(operate.Time(t.dialect, at))
	err = t.query(ctx, tx, `WITH RECURSIVE steps (low, high) AS (
			SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 0) + 1 FROM `+t.name+`
		UNION ALL
			SELECT CASE WHEN `+earlier+` THEN r.id + 1 ELSE s.low END, CASE WHEN `+earlier+` THEN s.high ELSE (s.low + s.high) / 2 END
			FROM steps AS s CROSS JOIN `+t.name+` AS r
			WHERE s.low < s.high AND r.id = (SELECT m.id FROM `+t.name+` AS m WHERE m.id >= (s.low + s.high) / 2 ORDER BY m.id LIMIT 1)
		)
		SELECT MAX(low) FROM steps`, c, func(rows *sql.Rows) error { return rows.Scan(&id) })
	return id, err
}

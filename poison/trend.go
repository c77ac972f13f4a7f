package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// TrendHours is the number of hours of a [Trend].
const TrendHours = 24

// Trend contains the number of entries of a failure group for each of the last 24
// hours. An entry counts for the hour of its last failure. The first hour is the oldest
// one.
type Trend [TrendHours]int

// Total returns the sum of all hours.
func (t Trend) Total() (n int) {
	for _, hour := range t {
		n += hour
	}
	return n
}

// Last returns the count of the latest hour.
func (t Trend) Last() int { return t[TrendHours-1] }

// trendEntries is the maximum number of entries that Trends reads.
const trendEntries = 20_000

// Trends returns the trends of failure groups, by their fingerprints. It counts the
// entries that match f, and ignores Limit, AfterID and AfterGroup of f. The map
// contains no entry for a group without a failure in the last 24 hours. If more than
// 20,000 entries have failed in the last 24 hours, whether they match f or not, Trends
// returns nil.
func (q *Quarantine) Trends(ctx context.Context, f Filter, fingerprints ...string) (map[string]Trend, error) {
	f.AfterID = 0
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("poison: trends: %w", err)
	}
	t := q.table
	// The query uses the index of failure times instead of another index.
	where := t.where(f)
	recent := `SELECT * FROM {parked} WHERE state = 'quarantined' AND last_failed_at > {after -86400000} ORDER BY last_failed_at DESC, id DESC`
	query := t.dialect.SQL(`
		SELECT fingerprint, ({clock} - {millis last_failed_at}) / 3600000, COUNT(*)
		FROM (` + recent + ` LIMIT ` + strconv.Itoa(trendEntries) + `) AS recent
		WHERE ` + where.String() + ` AND fingerprint {among ` + where.Arg(t.dialect.Strings(fingerprints)) + ` text}
		GROUP BY 1, 2`)
	more := t.dialect.SQL(`SELECT id FROM (` + recent + ` LIMIT 1 OFFSET ` + strconv.Itoa(trendEntries) + `) AS more`)
	var trends map[string]Trend
	err := t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
		trends = nil
		if err := t.dialect.InOrder(ctx, tx); err != nil {
			return err
		}
		var id int64
		if err := tx.QueryRowContext(ctx, more).Scan(&id); !errors.Is(err, sql.ErrNoRows) {
			return err // nil if there are more
		}
		trends = map[string]Trend{}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				fingerprint string
				ago         int64
				n           int
			)
			err := scan(&fingerprint, &ago, &n)
			trend := trends[fingerprint]
			trend[TrendHours-1-min(max(0, ago), TrendHours-1)] += n
			trends[fingerprint] = trend
			return err
		}, query, where.Args...)
	})
	if err != nil {
		return nil, fmt.Errorf("poison: trends: %w", err)
	}
	return trends, nil
}

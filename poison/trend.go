package poison

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// TrendHours is the number of hours of a [Trend].
const TrendHours = 24

// Trend is how many entries of a failure group have failed last in each of the last 24
// hours. The first hour is the oldest one.
type Trend [TrendHours]int

// Total returns the sum of all hours.
func (t Trend) Total() (n int) {
	for _, hour := range t {
		n += hour
	}
	return n
}

// Last returns the number of the last hour.
func (t Trend) Last() int { return t[TrendHours-1] }

// Trends returns the trends of failure groups, by their fingerprints, of the entries that
// match f. It reads these entries, and ignores Limit, AfterID and AfterGroup of f. Groups
// without a failure in this time are missing.
func (q *Quarantine) Trends(ctx context.Context, f Filter, fingerprints ...string) (map[string]Trend, error) {
	f.AfterID = 0
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("poison: trends: %w", err)
	}
	t := q.table
	// The index of the times finds the entries, not that of the consumers.
	consumer := f.asStored().Consumer
	f.Consumer = ""
	where := t.where(f, parked.Quarantined)
	where.AddText("consumer", consumer)
	query := t.dialect.SQL(`
		SELECT fingerprint, ({clock} - {millis last_failed_at}) / 3600000, COUNT(*) FROM {parked}
		WHERE ` + where.String() + ` AND fingerprint {among ` + where.Arg(t.dialect.Strings(fingerprints)) + ` text}
		  AND last_failed_at > {after -86400000}
		GROUP BY 1, 2`)
	var trends map[string]Trend
	err := t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
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

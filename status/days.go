package status

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// longestDays is the maximum number of days in a call of Days.
const longestDays = 400

const (
	oneDay    = 24 * time.Hour
	dayMillis = 86_400_000
)

// Day contains the numbers of messages of one day. Rows that retention has deleted are
// not counted.
type Day struct {
	// Start is the beginning of the day, in UTC.
	Start time.Time

	// Sent is the number of messages in the sent log that were sent on this day. Handled
	// is the number of messages in the inbox that any consumer handled on this day.
	Sent, Handled int

	// Dead is the number of this day's dead letters that still exist. Quarantined is the
	// number of entries whose last failure was on this day.
	Dead, Quarantined int
}

// Days returns a Day for each day from the parameter since until now, with the oldest
// day first. If this is more than 400 days, it returns an error. It reads every row of
// these days in the indexes of the inbox, the sent log and the dead letters, and each
// entry of the quarantine. For ten million rows, this takes some seconds. Each
// transaction counts only one day, so no transaction is open for long.
func (r *Reader) Days(ctx context.Context, since time.Time) ([]Day, error) {
	now := time.Now().UTC()
	since = since.UTC().Truncate(oneDay)
	var all []Day
	for at := since; !at.After(now); at = at.Add(oneDay) {
		all = append(all, Day{Start: at})
	}
	err := errors.New("since is in the future")
	switch {
	case len(all) > longestDays:
		err = fmt.Errorf("since is more than %d days ago", longestDays)
	case len(all) > 0:
		err = r.days(ctx, all)
	}
	if err != nil {
		return nil, fmt.Errorf("status: days: %w", err)
	}
	return all, nil
}

func (r *Reader) days(ctx context.Context, all []Day) error {
	sent, dead := int64(1), int64(1)
	for i := range all {
		d := &all[i]
		err := r.read(ctx, func(tx *sql.Tx) (err error) {
			if err := tx.QueryRowContext(ctx, r.dialect.SQL(`SELECT COUNT(*) FROM {inbox}
				WHERE processed_at >= {from_millis $1} AND processed_at < {from_millis $2}`),
				d.Start.UnixMilli(), d.Start.Add(oneDay).UnixMilli()).Scan(&d.Handled); err != nil {
				return err
			}
			if d.Sent, sent, err = r.dayOf(ctx, tx, `{outbox_sent}`, `sent_at`, d.Start, sent); err != nil {
				return err
			}
			d.Dead, dead, err = r.dayOf(ctx, tx, `{outbox_dead}`, `died_at`, d.Start, dead)
			return err
		})
		if err != nil {
			return err
		}
	}
	first := all[0].Start.UnixMilli() / dayMillis
	return r.read(ctx, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var day, n int64
			err := scan(&day, &n)
			if i := day - first; i >= 0 && i < int64(len(all)) {
				all[i].Quarantined = int(n)
			}
			return err
		}, r.dialect.SQL(`SELECT {millis last_failed_at} / 86400000, COUNT(*) FROM {parked}
			WHERE state = 'quarantined' AND last_failed_at >= {from_millis $1} GROUP BY 1`), all[0].Start.UnixMilli())
	})
}

// dayOf counts the rows of a day in a table whose later rows have higher ids. The
// parameter column names the column with the time. The parameter from must not be above
// the first id of the day. The result next is the first id of the next day.
func (r *Reader) dayOf(ctx context.Context, tx *sql.Tx, table, column string, start time.Time, from int64) (n int, next int64, err error) {
	if from, err = r.firstID(ctx, tx, table, column, start, from); err != nil {
		return 0, from, err
	}
	if next, err = r.firstID(ctx, tx, table, column, start.Add(oneDay), from); err != nil || next == from {
		return 0, next, err
	}
	err = tx.QueryRowContext(ctx, r.dialect.SQL(`SELECT COUNT(*) FROM `+table+` WHERE id >= $1 AND id < $2`), from, next).Scan(&n)
	return n, next, err
}

// firstID returns the first id whose time is at or after the parameter at. If no row
// has such a time, it returns the id after the last id. It uses a binary search over
// the ids, because no index contains the times.
func (r *Reader) firstID(ctx context.Context, tx *sql.Tx, table, column string, at time.Time, from int64) (int64, error) {
	end := from
	if err := tx.QueryRowContext(ctx, r.dialect.SQL(`SELECT COALESCE(MAX(id), 0) + 1 FROM `+table)).Scan(&end); err != nil || end <= from {
		return from, err
	}
	query := r.dialect.SQL(`SELECT id, {millis ` + column + `} FROM ` + table + ` WHERE id >= $1 ORDER BY id LIMIT 1`)
	for from < end {
		middle := from + (end-from)/2
		var id, millis int64
		switch err := tx.QueryRowContext(ctx, query, middle).Scan(&id, &millis); {
		case errors.Is(err, sql.ErrNoRows):
			end = middle
		case err != nil:
			return from, err
		case millis >= at.UnixMilli():
			end = middle // no rows exist between middle and id
		default:
			from = id + 1
		}
	}
	return from, nil
}

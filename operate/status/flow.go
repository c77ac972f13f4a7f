package status

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// Handled messages are counted for flowWindow, up to flowRows.
	flowWindow = 30 * time.Second
	flowRows   = 2000
)

// Flow contains numbers from which you can compute the rates of messages.
type Flow struct {
	// At is the time at which the numbers were read, by the database's clock.
	At time.Time

	// Written counts the messages written to the outbox since the tables were created, and Removed
	// those that have left it: sent, given up on or cancelled. For a rate, divide the difference of
	// two Flows by the time between them. Messages of a rolled-back transaction count in both.
	// PostgreSQL updates these numbers up to a second after a transaction, and starts at 0 after a
	// crash.
	Written, Removed int64

	// Handled contains the consumers that have handled messages in the last 30 seconds, sorted by
	// name, except those in dedup.Config.Idempotent, whose messages the inbox does not remember.
	Handled []Handled
}

// Handled contains the rate at which a consumer handles messages.
type Handled struct {
	Consumer string

	// PerSecond is the average number of messages per second, over the last 30 seconds, or over the
	// latest 2,000 of all consumers together.
	PerSecond float64
}

// Flow returns the current Flow. It reads a limited number of rows with PostgreSQL, and counts the
// outbox with SQLite.
func (r *Reader) Flow(ctx context.Context) (Flow, error) {
	var f Flow
	err := r.db.Look(ctx, func(tx *sql.Tx) error {
		f = Flow{}
		var now int64
		if err := tx.QueryRowContext(ctx, r.db.SQL(r.flowQuery())).Scan(&now, &f.Written, &f.Removed); err != nil {
			return err
		}
		f.At = time.UnixMilli(now).UTC()
		return r.handled(ctx, tx, &f)
	})
	if err != nil {
		return Flow{}, fmt.Errorf("status: flow: %w", err)
	}
	return f, nil
}

func (r *Reader) flowQuery() string {
	if r.db.SQLite() {
		name := strings.Trim(r.db.Config().Table("outbox"), `"`)
		return `SELECT {now}, written, written - (SELECT COUNT(*) FROM {outbox})
			FROM (SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = '` + name + `'), 0) AS written) AS total`
	}
	return `SELECT {millis clock_timestamp()}, pg_stat_get_tuples_inserted(t.id), pg_stat_get_tuples_deleted(t.id)
		FROM (SELECT '{outbox}'::regclass AS id) AS t`
}

func (r *Reader) handled(ctx context.Context, tx *sql.Tx, f *Flow) error {
	total, oldest := 0, f.At.UnixMilli()
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			h     Handled
			n     int
			first int64
		)
		err := scan(&h.Consumer, &n, &first)
		h.PerSecond = float64(n)
		total, oldest = total+n, min(oldest, first)
		f.Handled = append(f.Handled, h)
		return err
	}, r.db.SQL(`
		SELECT consumer, COUNT(*), {millis MIN(processed_at)}
		FROM (SELECT consumer, processed_at FROM {inbox} WHERE processed_at >= {after $1} ORDER BY processed_at DESC LIMIT $2) AS latest
		GROUP BY consumer ORDER BY consumer`), -flowWindow.Milliseconds(), flowRows)
	seconds := flowWindow.Seconds()
	if total >= flowRows {
		seconds = max(0.1, float64(f.At.UnixMilli()-oldest)/1000) // a minimum, because many messages may be handled in one transaction
	}
	for i := range f.Handled {
		f.Handled[i].PerSecond /= seconds
	}
	return err
}

const longestDays = 400

const (
	oneDay    = 24 * time.Hour
	dayMillis = 86_400_000
)

// Day contains the numbers of messages of one day. Rows that retention has deleted are not counted.
type Day struct {
	// Start is the beginning of the day, in UTC.
	Start time.Time

	// Sent and Handled are the day's messages in the sent log and in all consumers' inbox.
	Sent, Handled int

	// Dead counts the day's dead letters that still exist, and Quarantined the entries whose last
	// failure was on this day.
	Dead, Quarantined int
}

// Days returns a Day for each day from since until now, the oldest first, at most 400. It reads
// every row of these days in the indexes of the inbox, the sent log and the dead letters, and each
// entry of the quarantine: some seconds for ten million rows. Each transaction counts one day, so
// none is open for long.
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
		err := r.db.Look(ctx, func(tx *sql.Tx) (err error) {
			if err := tx.QueryRowContext(ctx, r.db.SQL(`SELECT COUNT(*) FROM {inbox}
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
	return r.db.Look(ctx, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var day, n int64
			err := scan(&day, &n)
			if i := day - first; i >= 0 && i < int64(len(all)) {
				all[i].Quarantined = int(n)
			}
			return err
		}, r.db.SQL(`SELECT {millis last_failed_at} / 86400000, COUNT(*) FROM {parked}
			WHERE state = 'quarantined' AND last_failed_at >= {from_millis $1} GROUP BY 1`), all[0].Start.UnixMilli())
	})
}

// dayOf counts the rows of a day in a table whose later rows have higher ids, from an id that is
// not above the first of the day. next is the first id of the next day. column contains the time.
func (r *Reader) dayOf(ctx context.Context, tx *sql.Tx, table, column string, start time.Time, from int64) (n int, next int64, err error) {
	if from, err = r.firstID(ctx, tx, table, column, start, from); err != nil {
		return 0, from, err
	}
	if next, err = r.firstID(ctx, tx, table, column, start.Add(oneDay), from); err != nil || next == from {
		return 0, next, err
	}
	err = tx.QueryRowContext(ctx, r.db.SQL(`SELECT COUNT(*) FROM `+table+` WHERE id >= $1 AND id < $2`), from, next).Scan(&n)
	return n, next, err
}

// firstID returns the first id at or after at, or the id after the last one, by a binary search,
// because no index contains the times.
func (r *Reader) firstID(ctx context.Context, tx *sql.Tx, table, column string, at time.Time, from int64) (int64, error) {
	end := from
	if err := tx.QueryRowContext(ctx, r.db.SQL(`SELECT COALESCE(MAX(id), 0) + 1 FROM `+table)).Scan(&end); err != nil || end <= from {
		return from, err
	}
	query := r.db.SQL(`SELECT id, {millis ` + column + `} FROM ` + table + ` WHERE id >= $1 ORDER BY id LIMIT 1`)
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

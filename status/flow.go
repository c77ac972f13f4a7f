package status

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// flowWindow is the time for which handled messages are counted. flowRows is the
	// maximum number of messages that are counted.
	flowWindow = 30 * time.Second
	flowRows   = 2000
)

// Flow contains numbers from which you can compute the rates of messages.
type Flow struct {
	// At is the time at which the numbers were read, by the database's clock.
	At time.Time

	// Written is the number of messages that were written to the outbox since the tables
	// were created. Removed is the number of messages that have left the outbox, because
	// they were sent, given up on or cancelled. To compute a rate, subtract the numbers of
	// an earlier Flow, and divide by the time between the two Flows. Messages of a
	// rolled-back transaction count in both numbers. PostgreSQL updates these numbers up to
	// a second after the end of a transaction, and starts again at 0 after a crash.
	Written, Removed int64

	// Handled contains the consumers that have handled messages in the last 30 seconds,
	// sorted by name. Consumers in dedup.Config.Idempotent are missing, because the inbox
	// does not remember their messages.
	Handled []Handled
}

// Handled contains the rate at which a consumer handles messages.
type Handled struct {
	Consumer string

	// PerSecond is the average number of messages per second, over the last 30 seconds.
	// If all consumers together have handled 2,000 or more messages in this time, it is
	// the average over the latest 2,000.
	PerSecond float64
}

// Flow returns the current Flow. With PostgreSQL it reads a limited number of rows. With
// SQLite it counts the rows of the outbox.
func (r *Reader) Flow(ctx context.Context) (Flow, error) {
	var f Flow
	err := r.read(ctx, func(tx *sql.Tx) error {
		f = Flow{}
		var now int64
		if err := tx.QueryRowContext(ctx, r.dialect.SQL(r.flowQuery())).Scan(&now, &f.Written, &f.Removed); err != nil {
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
	if r.dialect.SQLite() {
		name := strings.Trim(r.dialect.Config().Table("outbox"), `"`)
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
	}, r.dialect.SQL(`
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

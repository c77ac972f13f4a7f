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
	// flowWindow is the time whose handled messages are counted, flowRows the largest
	// number of them.
	flowWindow = 30 * time.Second
	flowRows   = 2000
)

// Flow is how many messages move.
type Flow struct {
	// At is the time of the database's clock.
	At time.Time

	// Written is the number of messages that were written to the outbox since the tables
	// exist, Removed the number of those that have left it: they were sent, gave up or
	// were cancelled. Subtract those of an earlier Flow. Messages of a rolled-back
	// transaction count in both. PostgreSQL counts at the end of a transaction or up to a second later, and
	// begins again at 0 if it has crashed.
	Written, Removed int64

	// Handled are the consumers that have handled messages in the last 30 seconds, by
	// their names. Consumers in dedup.Config.Idempotent are missing, because the inbox does
	// not remember their messages.
	Handled []Handled
}

// Handled is how fast a consumer handles messages.
type Handled struct {
	Consumer string

	// PerSecond is an average: of the last 30 seconds, or of the time that the last
	// 2,000 messages of all consumers took.
	PerSecond float64
}

// Flow reads a bounded number of rows with PostgreSQL. SQLite counts the outbox.
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
		seconds = max(0.1, float64(f.At.UnixMilli()-oldest)/1000) // many may end in one transaction
	}
	for i := range f.Handled {
		f.Handled[i].PerSecond /= seconds
	}
	return err
}

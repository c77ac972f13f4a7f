package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// ErrNotRunning means that the consumer of an entry is not running: no process has run
// it in the last two minutes. A replay would take the message out of the quarantine,
// and no handler would get it. See Config.ReplayToAbsent.
var ErrNotRunning = errors.New("the consumer is not running")

// checkRunning returns [ErrNotRunning] if the consumer of an entry that matches f is
// not running.
func (q *Quarantine) checkRunning(ctx context.Context, f Filter, states ...string) error {
	if q.config.ReplayToAbsent {
		return nil
	}
	absent, err := q.table.absent(ctx, f, states...)
	if err != nil || len(absent) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s; start it first, or set poison.Config.ReplayToAbsent", ErrNotRunning, describe(absent))
}

// maxAbsent is the maximum number of consumers that an error names.
const maxAbsent = 5

// absent returns consumers that are not running and have matching entries, at most
// maxAbsent.
func (t *table) absent(ctx context.Context, f Filter, states ...string) (absent []parked.Consumer, err error) {
	clock := `{millis now()}`
	if t.dialect.SQLite() {
		clock = `{now}`
	}
	where := t.where(f, states...)
	query := t.dialect.SQL(`
		SELECT e.consumer, e.topic, COALESCE(c.owner, ''), COALESCE(` + clock + ` - {millis c.seen_at}, 0)
		FROM (SELECT DISTINCT consumer, topic FROM (
			SELECT consumer, topic FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(f.limit()) + `) AS chosen
		) AS e LEFT JOIN {consumers} AS c ON c.topic = e.topic AND c.consumer = e.consumer
		WHERE c.seen_at IS NULL OR c.seen_at < {after ` + where.Arg(-parked.AbsentAfter.Milliseconds()) + `}
		ORDER BY e.consumer, e.topic`)
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		absent = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var c parked.Consumer
			var unseen int64
			err := scan(&c.Consumer, &c.Topic, &c.Owner, &unseen)
			c.Unseen = parked.Duration(unseen)
			// A subscription of this process may have begun before its first entry in the table.
			if !t.parked.Runs(c.Consumer, c.Topic) && len(absent) < maxAbsent {
				absent = append(absent, c)
			}
			return err
		}, query, where.Args...)
	})
	if err != nil {
		return nil, fmt.Errorf("look for running consumers: %w", err)
	}
	return absent, nil
}

func describe(absent []parked.Consumer) string {
	texts := make([]string, len(absent))
	for i, c := range absent {
		texts[i] = fmt.Sprintf("consumer %q on topic %q was last seen %v ago", c.Consumer, c.Topic, c.Unseen.Truncate(time.Minute))
		if c.Owner == "" {
			texts[i] = fmt.Sprintf("consumer %q on topic %q was never seen with retry's Subscriber, which brings replayed messages",
				c.Consumer, c.Topic)
		}
	}
	return strings.Join(texts, ", ")
}

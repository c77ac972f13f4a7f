package sentdays

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// lockTimeout is how long work on a partition waits for a lock. Forwarders that need
	// the same lock must wait during this time, too.
	lockTimeout = "50ms"

	// forgetAtOnce is the maximum number of rows that one transaction deletes from the
	// default partition.
	forgetAtOnce = 1000
)

// create returns the statements that create the partition of a day. They create a
// table, and then attach it as a partition. CREATE TABLE ... PARTITION OF would lock
// the whole log, and forwarders would have to wait.
func create(d dialect.Dialect, schema string, begin time.Time) string {
	name := schema + `."` + d.Config().Prefix + `sent_` + begin.Format("20060102") + `"`
	return fmt.Sprintf(d.SQL(`CREATE TABLE %[1]s (LIKE {outbox_sent} INCLUDING DEFAULTS INCLUDING INDEXES);
		ALTER TABLE {outbox_sent} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),
		name, begin.Format(time.RFC3339), begin.AddDate(0, 0, 1).Format(time.RFC3339))
}

// change executes the given statements for one day. If they succeed, it adds 1 to
// *count. Only one process at a time creates or drops partitions. If another process is
// doing this, change does nothing.
func change(ctx context.Context, db *sql.DB, d dialect.Dialect, statements string, count *int) error {
	var locked bool
	err := d.Write(ctx, db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, lockKey(d))).Scan(&locked); err != nil || !locked {
			return err
		}
		_, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = '`+lockTimeout+`'; `+statements)
		return err
	})
	switch state := dialect.State(err); {
	case err == nil && locked:
		*count++
	case dialect.Contended(err), state == "42P01", state == "42P07": // undefined_table, duplicate_table: another process was faster
		return nil
	}
	if err != nil {
		statement, _, _ := strings.Cut(statements, ";")
		return fmt.Errorf("days of the sent log: %s: %w", statement, err)
	}
	return nil
}

// forget deletes the rows of the default partition that are older than the parameter
// keep. The parameter name is the name of this partition. It returns the number of
// deleted rows.
func forget(ctx context.Context, db *sql.DB, d dialect.Dialect, name string, keep time.Duration) (removed int64, err error) {
	for {
		var n int64
		err := d.Write(ctx, db, func(tx *sql.Tx) (err error) {
			n, err = dialect.Affected(tx.ExecContext(ctx, d.SQL(`DELETE FROM `+name+` WHERE id IN (
				SELECT id FROM (SELECT id, sent_at FROM `+name+` ORDER BY id LIMIT $2) AS oldest WHERE sent_at < {after $1})`),
				-keep.Milliseconds(), forgetAtOnce))
			return err
		})
		removed += n
		if err != nil || n < forgetAtOnce {
			return removed, err
		}
	}
}

func lockKey(d dialect.Dialect) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("once days " + d.Config().Table("outbox_sent")))
	return int64(h.Sum64())
}

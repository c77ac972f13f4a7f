package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

const (
	// daysAhead is the number of future days for which partitions are created. If a lock
	// prevents this, every sweep tries again. No partition is created for the current day,
	// because handlers insert ids of this day all the time. They would have to wait while
	// rows are moved to the new partition.
	daysAhead = 7

	// dayLockTimeout is how long work on a partition waits for a lock. It is short, because
	// inserts that arrive during this time must also wait.
	dayLockTimeout = 50 * time.Millisecond

	// dayIdleTimeout is the maximum time for which a suspended process can keep a lock on a
	// partition. After this time, PostgreSQL ends the session of the process.
	dayIdleTimeout = time.Second

	// maxMovedRows is the maximum number of rows that are written again while a day is
	// locked. These are rows that stay when the day is emptied, or rows that move into a
	// new partition.
	maxMovedRows = 20_000

	// maxDroppedDays is the maximum number of days that one transaction drops.
	maxDroppedDays = 32
)

const dayName = "20060102"

// day is a partition of an inbox with the layout schema.ByDay. A version 7 UUID
// contains a time, and a day contains the ids whose time is in one UTC day. The id
// alone determines the partition of a row. The column processed_at alone determines
// when the row expires.
type day struct {
	begin time.Time
	table string // quoted name, with the schema
}

// firstID returns a lower bound for version 7 UUIDs that were made at the time t or
// later. It contains only the first 13 characters of such a UUID, which encode the
// time. Compared as a string, it is lower than each longer string that begins with it.
func firstID(t time.Time) string {
	hex := fmt.Sprintf("%012x", t.UnixMilli())
	return hex[:8] + "-" + hex[8:]
}

func (d day) lower() string { return firstID(d.begin) }
func (d day) upper() string { return firstID(d.begin.AddDate(0, 0, 1)) }

// calendar contains the existing partitions of days, and the database's current time.
type calendar struct {
	schema string
	now    time.Time
	days   []day // in ascending order of begin
}

// day returns the day that begins at the given time. The partition of the day need not
// exist.
func (i *Inbox) day(c *calendar, begin time.Time) day {
	name := i.dialect.Config().Prefix + "inbox_" + begin.Format(dayName)
	return day{begin: begin, table: quote(c.schema) + "." + quote(name)}
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (i *Inbox) calendar(ctx context.Context) (*calendar, error) {
	c := &calendar{}
	prefix := i.dialect.Config().Prefix + "inbox_"
	err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		var now int64
		err := tx.QueryRowContext(ctx, i.sql.days.inbox).Scan(&c.schema, &now)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: the inbox is not partitioned by day: run schema.Up", schema.ErrLayout)
		}
		c.now = time.UnixMilli(now).UTC()
		if err != nil {
			return err
		}
		return dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			if suffix, ok := strings.CutPrefix(name, prefix); ok {
				if begin, err := time.Parse(dayName, suffix); err == nil {
					c.days = append(c.days, i.day(c, begin))
				}
			}
			return err
		}, i.sql.days.list)
	})
	slices.SortFunc(c.days, func(a, b day) int { return a.begin.Compare(b.begin) })
	return c, err
}

// sweepDays creates the partitions of future days, and empties and drops expired
// partitions. Work that is prevented by a lock is left to the next sweep.
func (i *Inbox) sweepDays(ctx context.Context) (removed int64, err error) {
	c, err := i.calendar(ctx)
	if err != nil {
		return 0, err
	}
	err = i.createDays(ctx, c)
	var empty []day
	for _, d := range c.days {
		if d.begin.AddDate(0, 0, 1).After(c.now.Add(-i.config.Retention)) {
			break
		}
		n, isEmpty, failed := i.sweepDay(ctx, d)
		removed += n
		if failed != nil {
			return removed, errors.Join(err, failed)
		}
		if isEmpty && len(empty) < maxDroppedDays {
			empty = append(empty, d)
		}
	}
	if len(empty) > 0 {
		err = errors.Join(err, i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return i.dropDays(ctx, tx, empty) }, dropped))
	}
	return removed, err
}

func (i *Inbox) createDays(ctx context.Context, c *calendar) error {
	today := c.now.Truncate(24 * time.Hour)
	for n := range daysAhead {
		d := i.day(c, today.AddDate(0, 0, n+1))
		if slices.ContainsFunc(c.days, func(known day) bool { return known.table == d.table }) {
			continue
		}
		// The rows are counted before the lock is taken, because counting many rows
		// takes long.
		var rows int64
		err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, i.sql.days.countRows, d.lower(), d.upper(), maxMovedRows).Scan(&rows)
		})
		if err != nil {
			return err
		}
		if rows == maxMovedRows {
			i.config.Logger.Info("A coming day has too many ids already and gets no partition",
				watermill.LogFields{"table": d.table, "rows": rows})
			continue
		}
		err = i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return 1, i.createDay(ctx, tx, d) }, created)
		if err != nil {
			return err
		}
	}
	return nil
}

// createDay creates the partition of a day, and moves the rows of this day from the
// default partition to the new one. There are such rows because some producers have
// fast clocks, so that their ids contain a future time. Only transactions that use the
// default partition have to wait. If such a transaction inserts an id of this day, its
// insert fails, because the id now belongs to the new partition. No attempt is counted
// for its message, and the next try uses the new partition.
func (i *Inbox) createDay(ctx context.Context, tx *sql.Tx, d day) error {
	for _, statement := range []string{
		i.sql.days.create(d), i.sql.days.lockDefault, i.sql.days.move(d), i.sql.days.attach(d),
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// sweepDay removes the expired rows of a past day. It reports whether the partition is
// empty and can be dropped. During the sweep, only messages with ids of this day have
// to wait.
func (i *Inbox) sweepDay(ctx context.Context, d day) (removed int64, empty bool, err error) {
	defer func() {
		if dayChanged(err) {
			empty, err = false, nil
		}
	}()
	removed, err = i.sweep(ctx, i.sql.sweepRows(d.table))
	if err != nil {
		return removed, false, err
	}
	if removed < sweepBatch { // no expired row is left
		var clean bool
		err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, i.sql.days.state(d)).Scan(&empty, &clean)
		})
		if err != nil || !empty || clean {
			return removed, empty, err
		}
		empty = false // the file still contains dead rows, so the drop would take longer while other transactions wait
	}
	err = i.inDayTx(ctx, func(tx *sql.Tx) (int, error) {
		kept, err := i.emptyDay(ctx, tx, d)
		empty = kept == 0
		return 1, err
	}, emptied)
	if errors.Is(err, errTooMany) {
		n, err := i.sweepAll(ctx, i.sql.sweepRows(d.table))
		return removed + n, false, err
	}
	return removed, empty && err == nil, err
}

// errTooMany means that too many rows of a day must stay. The expired rows of this day
// are then removed with DELETE instead of TRUNCATE.
var errTooMany = errors.New("too many rows of the day must stay")

// emptyDay copies the rows of a day that must stay, truncates the partition, and
// inserts the copies again. It does not drop the partition, because this would lock the
// whole inbox.
func (i *Inbox) emptyDay(ctx context.Context, tx *sql.Tx, d day) (kept int, err error) {
	if _, err := tx.ExecContext(ctx, i.sql.days.lock(d)); err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, i.sql.days.keep(d), -i.config.Retention.Milliseconds(), d.lower(), d.upper(), maxMovedRows+1)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err == nil && n > maxMovedRows {
		err = errTooMany
	}
	if err != nil {
		return 0, err
	}
	if _, err = tx.ExecContext(ctx, i.sql.days.truncate(d)); err != nil {
		return 0, err
	}
	refilled, err := dialect.Affected(tx.ExecContext(ctx, i.sql.days.refill(d)))
	if err == nil && refilled != n {
		err = dialect.Ignored(d.table, fmt.Sprintf("%d of %d rows that must stay were inserted again", refilled, n))
	}
	return int(n), err
}

// dropDays drops the partitions of the given days if they are still empty, and returns
// the number of dropped partitions. The whole inbox is locked while PostgreSQL changes
// its catalog.
func (i *Inbox) dropDays(ctx context.Context, tx *sql.Tx, days []day) (n int, err error) {
	if _, err := tx.ExecContext(ctx, i.sql.days.lockInbox); err != nil {
		return 0, err
	}
	for _, d := range days {
		var empty, clean bool
		if err := tx.QueryRowContext(ctx, i.sql.days.state(d)).Scan(&empty, &clean); err != nil {
			return 0, err
		}
		if !empty { // a message of that day has arrived
			continue
		}
		if _, err := tx.ExecContext(ctx, `DROP TABLE `+d.table); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// inDayTx calls the function work in a transaction. work returns a number of days, and
// inDayTx adds this number to the metric, with the given outcome. If another process is
// already working on the days of this inbox, inDayTx does not call work, and returns
// nil. If a day is in use, for example because inserts have locked its table, inDayTx
// adds 1 to the metric with the outcome blocked, and returns nil.
func (i *Inbox) inDayTx(ctx context.Context, work func(tx *sql.Tx) (days int, err error), outcome int) error {
	var days int
	var locked bool
	err := i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, i.sql.days.tryLock).Scan(&locked); err != nil || !locked {
			return err
		}
		if _, err := tx.ExecContext(ctx, i.sql.days.timeouts); err != nil {
			return err
		}
		var err error
		days, err = work(tx)
		return err
	})
	switch {
	case err == nil && locked:
		i.instruments.days.Add(int64(days), outcome)
	case dialect.Contended(err), dayChanged(err):
		i.instruments.days.Add(1, blocked)
		i.config.Logger.Debug("A day of the inbox is in use, the next sweep tries again", watermill.LogFields{"err": err.Error()})
		return nil
	}
	return err
}

func dayChanged(err error) bool {
	state := dialect.State(err)
	return state == "42P01" || state == "42P07" // undefined_table, duplicate_table
}

// dayLock returns the key of the advisory lock for work on the days of an inbox.
func dayLock(inbox string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("once days " + inbox))
	return int64(h.Sum64())
}

// dayQueries are the statements for the layout schema.ByDay, in PostgreSQL.
type dayQueries struct {
	tryLock  string // only one process at a time works on days
	timeouts string

	inbox string // schema of the inbox, and current time
	list  string // lists the partitions of the inbox

	// Statements that create a day.
	countRows   string // number of the day's rows in the default partition
	create      func(d day) string
	lockDefault string
	move        func(d day) string
	attach      func(d day) string

	// Statements that empty and drop a day.
	state     func(d day) string // whether the day is empty, and whether its file is empty
	lock      func(d day) string
	keep      func(d day) string
	truncate  func(d day) string
	refill    func(d day) string
	lockInbox string
}

func newDayQueries(d dialect.Dialect) dayQueries {
	// forDay returns a function that fills in the placeholders of query for a day. The
	// table of the day replaces %[1]s, its lowest id replaces %[2]s, and the lowest id of
	// the next day replaces %[3]s.
	forDay := func(query string) func(d day) string {
		query = d.SQL(query)
		return func(d day) string { return fmt.Sprintf(query, d.table, d.lower(), d.upper()) }
	}
	return dayQueries{
		// If another process has the lock, this statement does not wait. The other
		// process does the work, and this process continues with its next sweep.
		tryLock:  fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, dayLock(d.Config().Table("inbox"))),
		timeouts: setTimeouts(dayLockTimeout, dayIdleTimeout),

		inbox: d.SQL(`
			SELECT n.nspname, {millis now()} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.oid = to_regclass('{inbox}') AND c.relkind = 'p'`),

		list: d.SQL(`
			SELECT c.relname FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
			WHERE h.inhparent = to_regclass('{inbox}')`),

		countRows: d.SQL(`
			SELECT COUNT(*) FROM (
				SELECT 1 FROM {inbox_default} WHERE message_id >= $1 AND message_id < $2 LIMIT $3) AS counted`),

		// The partition is attached later: CREATE TABLE ... PARTITION OF would lock the
		// whole inbox.
		create:      forDay(`CREATE TABLE %[1]s (LIKE {inbox} INCLUDING ALL)`),
		lockDefault: d.SQL(`LOCK TABLE {inbox_default} IN ACCESS EXCLUSIVE MODE`),
		move: forDay(`
			WITH moved AS (DELETE FROM {inbox_default} WHERE message_id >= '%[2]s' AND message_id < '%[3]s' RETURNING *)
			INSERT INTO %[1]s SELECT * FROM moved`),
		attach: forDay(`ALTER TABLE {inbox} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),

		state: forDay(`SELECT NOT EXISTS (SELECT 1 FROM %[1]s), pg_relation_size('%[1]s') = 0`),
		lock:  forDay(`LOCK TABLE %[1]s IN ACCESS EXCLUSIVE MODE`),

		// This selects the rows that the statement of newSweepRows keeps, too. The SELECT
		// after UNION begins with the parked messages and looks up their ids, so that it
		// does not read the whole day.
		keep: forDay(`
			CREATE TEMPORARY TABLE once_kept ON COMMIT DROP AS
			SELECT * FROM (
				SELECT i.* FROM %[1]s AS i WHERE processed_at >= {after $1}
				UNION
				SELECT i.* FROM {parked} AS p CROSS JOIN LATERAL (
					SELECT * FROM %[1]s AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer LIMIT 1) AS i
				WHERE p.message_id >= $2 AND p.message_id < $3 AND p.state NOT IN ` + parkedrows.Final + `) AS kept
			LIMIT $4`),
		truncate: forDay(`TRUNCATE %[1]s`),
		refill:   forDay(`INSERT INTO %[1]s SELECT * FROM once_kept`),

		// With ONLY, the partitions are not locked, because other transactions use
		// them.
		lockInbox: d.SQL(`LOCK TABLE ONLY {inbox} IN ACCESS EXCLUSIVE MODE`),
	}
}

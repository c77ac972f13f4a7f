package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

const (
	// dayIdleTimeout limits how long a suspended process can keep a lock on a partition.
	dayIdleTimeout = time.Second

	// maxMovedRows limits the rows that are written again while a day is locked.
	maxMovedRows = 20_000

	// maxDroppedDays limits the days that one transaction drops.
	maxDroppedDays = 32
)

// day is a partition of an inbox with the layout schema.ByDay: the ids of version 7 whose time is
// in one UTC day. The id alone determines the partition of a row, and the column processed_at alone
// when the row expires.
type day struct {
	begin time.Time
	table string // quoted name, with the schema
}

// firstID returns the first 13 characters of version 7 UUIDs of the time t, which are lower than
// each longer string that begins with them.
func firstID(t time.Time) string {
	hex := fmt.Sprintf("%012x", t.UnixMilli())
	return hex[:8] + "-" + hex[8:]
}

func (d day) lower() string { return firstID(d.begin) }
func (d day) upper() string { return firstID(d.begin.AddDate(0, 0, 1)) }

type calendar struct {
	schema string
	now    time.Time
	days   []day // in ascending order of begin
}

// The partition of the day need not exist.
func (i *Inbox) day(c *calendar, begin time.Time) day {
	name := i.dialect.Config().Prefix + "inbox_" + begin.Format(dialect.DayName)
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
				if begin, err := time.Parse(dialect.DayName, suffix); err == nil {
					c.days = append(c.days, i.day(c, begin))
				}
			}
			return err
		}, i.sql.days.list)
	})
	slices.SortFunc(c.days, func(a, b day) int { return a.begin.Compare(b.begin) })
	return c, err
}

// sweepDays creates future partitions, and empties and drops expired ones. What a lock prevents is
// left to the next sweep.
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

// createDays does not create the current day, because handlers insert its ids all the time, and would
// wait while rows move.
func (i *Inbox) createDays(ctx context.Context, c *calendar) error {
	today := c.now.Truncate(24 * time.Hour)
	for n := range dialect.DaysAhead {
		d := i.day(c, today.AddDate(0, 0, n+1))
		if slices.ContainsFunc(c.days, func(known day) bool { return known.table == d.table }) {
			continue
		}
		// Counting many rows takes long, so it comes before the lock.
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

// createDay creates the partition of a day, and moves the day's rows there from the default
// partition. Producers with fast clocks have sent such ids. Only transactions that use the default
// partition wait. If one inserts an id of this day, its insert fails, no attempt is counted, and
// the next try uses the new partition.
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

// sweepDay removes the expired rows of a past day, and reports whether its partition can be
// dropped. Meanwhile only messages with ids of this day wait.
func (i *Inbox) sweepDay(ctx context.Context, d day) (removed int64, empty bool, err error) {
	defer func() {
		if dialect.DayChanged(err) {
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

// errTooMany means that DELETE must remove the expired rows of the day, because TRUNCATE would have
// to copy too many others.
var errTooMany = errors.New("too many rows of the day must stay")

// emptyDay truncates the partition of a day, and inserts the rows again that must stay. To drop it
// would lock the whole inbox.
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

// dropDays drops the partitions that are still empty, and returns their number. The whole inbox is
// locked while PostgreSQL changes its catalog.
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

// inDayTx calls work in a transaction, and counts the days that work returns with the given
// outcome. If another process is working on the days of this inbox, it does nothing. If a day is in
// use, for example because inserts have locked its table, it counts one blocked day, and returns
// nil.
func (i *Inbox) inDayTx(ctx context.Context, work func(tx *sql.Tx) (days int, err error), outcome int) error {
	var days int
	done, err := i.dialect.InDaysTx(ctx, i.db, "inbox", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, i.sql.days.timeouts); err != nil {
			return err
		}
		var err error
		days, err = work(tx)
		return err
	})
	switch {
	case done:
		i.instruments.days.Add(int64(days), outcome)
	case dialect.DayInUse(err):
		i.instruments.days.Add(1, blocked)
		i.config.Logger.Debug("A day of the inbox is in use, the next sweep tries again", watermill.LogFields{"err": err.Error()})
		return nil
	}
	return err
}

type dayQueries struct {
	timeouts string

	inbox string // schema of the inbox, and current time
	list  string // lists the partitions of the inbox

	countRows   string // number of the day's rows in the default partition
	create      func(d day) string
	lockDefault string
	move        func(d day) string
	attach      func(d day) string

	state     func(d day) string // whether the day is empty, and whether its file is empty
	lock      func(d day) string
	keep      func(d day) string
	truncate  func(d day) string
	refill    func(d day) string
	lockInbox string
}

func newDayQueries(d dialect.Dialect) dayQueries {
	// forDay fills in the table of the day, its lowest id, and that of the next day.
	forDay := func(query string) func(d day) string {
		query = d.SQL(query)
		return func(d day) string { return fmt.Sprintf(query, d.table, d.lower(), d.upper()) }
	}
	return dayQueries{
		timeouts: setTimeouts(dialect.DayLockTimeout, dayIdleTimeout),

		inbox: d.SQL(`
			SELECT n.nspname, {millis now()} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.oid = to_regclass('{inbox}') AND c.relkind = 'p'`),

		list: d.SQL(`
			SELECT c.relname FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
			WHERE h.inhparent = to_regclass('{inbox}')`),

		countRows: d.SQL(`
			SELECT COUNT(*) FROM (
				SELECT 1 FROM {inbox_default} WHERE message_id >= $1 AND message_id < $2 LIMIT $3) AS counted`),

		// CREATE TABLE ... PARTITION OF would lock the whole inbox.
		create:      forDay(`CREATE TABLE %[1]s (LIKE {inbox} INCLUDING ALL)`),
		lockDefault: d.SQL(`LOCK TABLE {inbox_default} IN ACCESS EXCLUSIVE MODE`),
		move: forDay(`
			WITH moved AS (DELETE FROM {inbox_default} WHERE message_id >= '%[2]s' AND message_id < '%[3]s' RETURNING *)
			INSERT INTO %[1]s SELECT * FROM moved`),
		attach: forDay(`ALTER TABLE {inbox} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),

		state: forDay(`SELECT NOT EXISTS (SELECT 1 FROM %[1]s), pg_relation_size('%[1]s') = 0`),
		lock:  forDay(`LOCK TABLE %[1]s IN ACCESS EXCLUSIVE MODE`),

		// The rows that newSweepRows keeps. The SELECT after UNION begins with the parked messages,
		// so that it does not read the whole day.
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

		// ONLY leaves out the partitions, which other transactions use.
		lockInbox: d.SQL(`LOCK TABLE ONLY {inbox} IN ACCESS EXCLUSIVE MODE`),
	}
}

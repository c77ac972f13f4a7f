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
	"github.com/watermill-once/once/schema"
)

const (
	// daysAhead is how many days have a partition before they begin. Making one
	// is given up when somebody is in the way, and tried again at every sweep. A
	// day that has begun is not made: its ids are written all the time.
	daysAhead = 7

	// dayPatience is how long the work on a day waits for a lock. Claims that
	// come meanwhile wait as long, behind it.
	dayPatience = 50 * time.Millisecond

	// dayIdle is how long a process may freeze while it holds such a lock.
	dayIdle = time.Second

	// mostMoved bounds how many rows are written again for the sake of a day:
	// those that stay when it is emptied, those that were there before it was.
	mostMoved = 20_000

	// mostDropped bounds how many days go in one transaction.
	mostDropped = 32
)

const dayName = "20060102"

// day is a partition of an inbox that is laid out by day: that of the ids whose
// time is in one day of UTC. Where a row lies is a matter of its id alone, when
// it may go a matter of its processed_at alone.
type day struct {
	begin time.Time
	table string // quoted and qualified
}

// bound is the first id that a UUID of version 7 can have at t.
func bound(t time.Time) string {
	hex := fmt.Sprintf("%012x", t.UnixMilli())
	return hex[:8] + "-" + hex[8:]
}

func (d day) lower() string { return bound(d.begin) }
func (d day) upper() string { return bound(d.begin.AddDate(0, 0, 1)) }

// calendar is what there is, by the database's clock.
type calendar struct {
	schema string
	now    time.Time
	days   []day // ascending
}

// day returns the one that begins at that time, whether it is there or not.
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
			return fmt.Errorf("%w: it has no days: run schema.Up", schema.ErrLayout)
		}
		c.now = time.UnixMilli(now).UTC()
		if err != nil {
			return err
		}
		return query(ctx, tx, func(scan func(...any) error) error {
			var name string
			if err := scan(&name); err != nil {
				return err
			}
			if suffix, ok := strings.CutPrefix(name, prefix); ok {
				if begin, err := time.Parse(dayName, suffix); err == nil {
					c.days = append(c.days, i.day(c, begin))
				}
			}
			return nil
		}, i.sql.days.list)
	})
	slices.SortFunc(c.days, func(a, b day) int { return a.begin.Compare(b.begin) })
	return c, err
}

// sweepDays makes the days that come and removes those that are too old. What
// cannot be done because somebody is in the way is left to the next sweep.
func (i *Inbox) sweepDays(ctx context.Context) (removed int64, err error) {
	c, err := i.calendar(ctx)
	if err != nil {
		return 0, err
	}
	err = i.makeDays(ctx, c)
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
		if isEmpty && len(empty) < mostDropped {
			empty = append(empty, d)
		}
	}
	if len(empty) > 0 {
		err = errors.Join(err, i.onDays(ctx, func(tx *sql.Tx) (int, error) { return i.drop(ctx, tx, empty) }, dropped))
	}
	return removed, err
}

func (i *Inbox) makeDays(ctx context.Context, c *calendar) error {
	today := c.now.Truncate(24 * time.Hour)
	for n := range daysAhead {
		d := i.day(c, today.AddDate(0, 0, n+1))
		if slices.ContainsFunc(c.days, func(known day) bool { return known.table == d.table }) {
			continue
		}
		// Before the lock: rows that are too many to move are many to count.
		var there int64
		err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, i.sql.days.there, d.lower(), d.upper(), mostMoved).Scan(&there)
		})
		if err != nil {
			return err
		}
		if there == mostMoved {
			i.config.Logger.Info("A day that is to come has too many ids already, it stays without a partition",
				watermill.LogFields{"table": d.table, "rows": there})
			continue
		}
		err = i.onDays(ctx, func(tx *sql.Tx) (int, error) { return 1, i.make(ctx, tx, d) }, created)
		if err != nil {
			return err
		}
	}
	return nil
}

// make adds a day, with the rows that are there before it is, of clocks that
// are ahead. Only those who use the partition for ids of no day are kept waiting;
// one of them that has an id of this very day fails, is charged nothing, and
// finds the day when it is tried again.
func (i *Inbox) make(ctx context.Context, tx *sql.Tx, d day) error {
	for _, statement := range []string{
		i.sql.days.create(d), i.sql.days.lockDefault, i.sql.days.move(d), i.sql.days.attach(d),
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// sweepDay removes what is too old of a day that is over, and says whether the
// day can go. Only messages that are as old as the day are kept waiting.
func (i *Inbox) sweepDay(ctx context.Context, d day) (removed int64, empty bool, err error) {
	defer func() {
		if overtaken(err) {
			empty, err = false, nil
		}
	}()
	removed, err = i.sweep(ctx, i.sql.sweepRows(d.table))
	if err != nil {
		return removed, false, err
	}
	if removed < sweepBatch { // that was all
		var clean bool
		err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, i.sql.days.state(d)).Scan(&empty, &clean)
		})
		if err != nil || !empty || clean {
			return removed, empty, err
		}
		empty = false // until there are no dead rows to read through while everybody waits
	}
	err = i.onDays(ctx, func(tx *sql.Tx) (int, error) {
		kept, err := i.empty(ctx, tx, d)
		empty = kept == 0
		return 1, err
	}, emptied)
	if errors.Is(err, errTooMany) {
		n, err := i.sweepAll(ctx, i.sql.sweepRows(d.table))
		return removed + n, false, err
	}
	return removed, empty && err == nil, err
}

// errTooMany says that so much of a day must stay that it is swept row by row.
var errTooMany = errors.New("too much of the day must stay")

// empty takes everything out of a day and puts back what must stay. The
// partition stays: to take it away, everybody had to be kept waiting.
func (i *Inbox) empty(ctx context.Context, tx *sql.Tx, d day) (kept int, err error) {
	if _, err := tx.ExecContext(ctx, i.sql.days.lock(d)); err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, i.sql.days.keep(d), -i.config.Retention.Milliseconds(), d.lower(), d.upper(), mostMoved+1)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err == nil && n > mostMoved {
		err = errTooMany
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, i.sql.days.refill(d))
	return int(n), err
}

// drop removes days with nothing in them, and returns how many. Everybody is
// kept waiting, for the time that it takes to have them go out of the catalogue.
func (i *Inbox) drop(ctx context.Context, tx *sql.Tx, days []day) (n int, err error) {
	if _, err := tx.ExecContext(ctx, i.sql.days.lockAll); err != nil {
		return 0, err
	}
	for _, d := range days {
		var empty, clean bool
		if err := tx.QueryRowContext(ctx, i.sql.days.state(d)).Scan(&empty, &clean); err != nil {
			return 0, err
		}
		if !empty { // a message of that day has come
			continue
		}
		if _, err := tx.ExecContext(ctx, `DROP TABLE `+d.table); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// onDays does work on days in one transaction, unless another process does such
// work or somebody holds what is to be locked, and counts what came of it.
func (i *Inbox) onDays(ctx context.Context, work func(tx *sql.Tx) (days int, err error), outcome int) error {
	var days int
	var mine bool
	err := i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, i.sql.days.alone).Scan(&mine); err != nil || !mine {
			return err
		}
		if _, err := tx.ExecContext(ctx, i.sql.days.patience); err != nil {
			return err
		}
		var err error
		days, err = work(tx)
		return err
	})
	switch {
	case err == nil && mine:
		i.instruments.days.Add(int64(days), outcome)
	case dialect.Contended(err), overtaken(err):
		i.instruments.days.Add(1, blocked)
		i.config.Logger.Debug("A day of the inbox is in use, the next sweep tries again", watermill.LogFields{"err": err.Error()})
		return nil
	}
	return err
}

// overtaken says that another process has made or dropped a day since it was
// looked at.
func overtaken(err error) bool {
	state := dialect.State(err)
	return state == "42P01" || state == "42P07" // undefined_table, duplicate_table
}

// dayLock is the same for everybody who works on the days of an inbox.
func dayLock(inbox string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("once days " + inbox))
	return int64(h.Sum64())
}

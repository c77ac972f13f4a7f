package reconcile

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

const (
	// margin is added to the beginning of the period for which a side still has all
	// messages. The time in an id and the time of a row come from different clocks, which may
	// differ by up to margin.
	margin = time.Minute

	// early is how much earlier than the window a scan begins, because the clocks may
	// differ.
	early = time.Hour

	// keyPrefix is the prefix of business keys in the inbox, see dedup.Config.Key. They are
	// not compared. keyEnd is the first text after all of them.
	keyPrefix, keyEnd = "key:", "key;"
)

// record describes the rows with one id in the tables of one side.
type record struct {
	id []byte // valid until the next record
	in bool   // whether the time of a row with this id is in the window

	// These fields are set only if source.scan gets differing parts. A sender has several
	// rows with the same id if the message was sent again.
	firstAt, lastAt int64 // times of the first and the last row with this id, in Unix milliseconds
	state           int   // index in states
	log             int64 // ID of the latest row in the sent log
	topic           string
}

// source reads the ids of one side. A test has one in memory.
type source interface {
	// scan calls each for every id, in any order. If d is nil, it may leave out ids outside
	// of the window. Otherwise it may leave out ids that are not in d.
	scan(ctx context.Context, w window, d differing, each func(*record) error) error
}

// count adds all ids of s in the window to d. parts and partsNoTime are the numbers of
// parts of a new minute, and of ids without a time.
func count(ctx context.Context, s source, w window, d digest, parts, partsNoTime int) error {
	return s.scan(ctx, w, nil, func(r *record) error {
		k := keyOf(r.id)
		switch {
		case !w.has(k, r.in) || strings.HasPrefix(string(r.id), keyPrefix):
		case k.minute == noTime:
			d.add(k, partsNoTime)
		default:
			d.add(k, parts)
		}
		return nil
	})
}

// collect calls do for each id of s in the parts that differ. Ids outside of the window
// are not left out. So an id without a time is not a difference if one side has its row
// in the window, and the other side has it shortly before or after.
func collect(ctx context.Context, s source, w window, d differing, do func(k key, r *record) error) error {
	if len(d) == 0 {
		return nil
	}
	return s.scan(ctx, w, d, func(r *record) error {
		if k := keyOf(r.id); d.has(k) && !strings.HasPrefix(string(r.id), keyPrefix) {
			return do(k, r)
		}
		return nil
	})
}

// side is what Sender, Receiver and Archive have in common.
type side struct {
	db      *sql.DB
	dialect dialect.Dialect
}

func newSide(db *sql.DB, config schema.Config, err error) (side, error) {
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return side{}, usercode.Refused("reconcile", err)
	}
	d, err := dialect.New(config)
	if err != nil {
		return side{}, fmt.Errorf("reconcile: %w", err)
	}
	return side{db, d}, nil
}

func (s side) rows(ctx context.Context, row func(scan func(dest ...any) error) error, query string, args ...any) error {
	return dialect.LeaveReplica(ctx, s.db, s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, row, query, args...)
	}))
}

// one reads the row of a query. It returns sql.ErrNoRows if there is no row.
func (s side) one(ctx context.Context, query string, args []any, dest ...any) error {
	found := false
	err := s.rows(ctx, func(scan func(dest ...any) error) error {
		found = true
		return scan(dest...)
	}, s.dialect.SQL(query), args...)
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	return err
}

// records reads the first fields of records.
func (s side) records(ctx context.Context, fields int, each func(*record) error, query string, args []any) error {
	var (
		r   record
		raw sql.RawBytes
	)
	dest := []any{&raw, &r.in, &r.firstAt, &r.lastAt, &r.state, &r.log, &r.topic}[:fields]
	return s.rows(ctx, func(scan func(dest ...any) error) error {
		if err := scan(dest...); err != nil {
			return err
		}
		r.id = raw
		return each(&r)
	}, s.dialect.SQL(query), args...)
}

// fingerprint returns a string that identifies the tables of this side: for other
// tables, the string is different. The string does not reveal the names of the tables.
func (s side) fingerprint(ctx context.Context) (string, error) {
	query, table := `SELECT file FROM pragma_database_list WHERE name = 'main'`, s.dialect.Config().Table("outbox")
	var args []any
	if !s.dialect.SQLite() {
		query = `SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), current_database(), to_regclass($1)::oid)`
		args = append(args, table)
	}
	var name string
	err := s.one(ctx, query, args, &name)
	sum := sha256.Sum256([]byte(name + "/" + table))
	return hex.EncodeToString(sum[:8]), err
}

// now returns the current time of the database's clock.
func (s side) now(ctx context.Context) (time.Time, error) {
	query := `SELECT {millis now()}`
	if s.dialect.SQLite() {
		query = `SELECT {now}`
	}
	var ms int64
	err := s.one(ctx, query, nil, &ms)
	return fromMillis(ms), err
}

// query collects the parameters of a query.
type query struct{ args []any }

func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return "$" + strconv.Itoa(len(q.args))
}

// millis adds a time as a parameter, and returns the SQL expression for this time.
func (q *query) millis(t time.Time) string { return "{from_millis " + q.arg(t.UnixMilli()) + "}" }

// in returns an SQL expression that is 1 if the time of a row is in the window, otherwise
// 0.
func (q *query) in(w window, at string) string {
	return `CASE WHEN ` + at + ` >= ` + q.millis(w.from) + ` AND ` + at + ` < ` + q.millis(w.until) + ` THEN 1 ELSE 0 END`
}

// only returns an SQL condition that begins with AND, or "". See source.scan for the
// rows that it leaves out.
func (q *query) only(id, at string, w window, d differing) string {
	if d == nil {
		return ` AND ` + at + ` >= ` + q.millis(w.from.Add(-early))
	}
	first := func(minute int64) string { // the beginning of the lowest id of the minute
		digits := fmt.Sprintf("%012x", minute*minuteMillis)
		return q.arg(digits[:8] + "-" + digits[8:])
	}
	var ranges []string
	for _, r := range d.minutes() {
		ranges = append(ranges, id+` >= `+first(r[0])+` AND `+id+` < `+first(r[1]))
	}
	if ranges == nil {
		return ""
	}
	return ` AND (` + strings.Join(ranges, ` OR `) + `)`
}

// wrap adds the name of a step to an error.
func wrap(step string, err *error) {
	if *err != nil {
		*err = fmt.Errorf("reconcile: %s: %w", step, *err)
	}
}

func floorMinute(t time.Time) time.Time { return t.UTC().Truncate(time.Minute) }

func ceilMinute(t time.Time) time.Time { return floorMinute(t.Add(time.Minute - time.Nanosecond)) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

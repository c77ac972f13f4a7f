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
	// margin is how much the clocks of ids and rows may differ, added to the beginning of the
	// period for which a side has all messages.
	margin = time.Minute

	// early is how much before the window a scan begins, because clocks differ.
	early = time.Hour

	// Business keys in the inbox begin with keyPrefix, see dedup.Config.Key, and are not compared.
	// keyEnd is the first text after them.
	keyPrefix, keyEnd = "key:", "key;"
)

type record struct {
	id []byte // valid until the next record
	in bool   // whether the time of a row with this id is in the window

	// Only with differing parts, see source.scan. A sender may have sent an id again.
	firstAt, lastAt int64 // times of the first and the last row with this id, in Unix milliseconds
	state           int   // index in states
	log             int64 // ID of the latest row in the sent log
	topic           string
}

// source reads the ids of one side. A test has one in memory.
type source interface {
	// scan calls each for every id, in any order. Without d it may leave out ids outside of the
	// window, otherwise those that are not in d.
	scan(ctx context.Context, w window, d differing, each func(*record) error) error
}

// parts and partsNoTime are for a new minute, and for ids without a time.
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

// collect calls do for each id of s in the parts that differ, even outside of the window: an id
// without a time is no difference if one side has its row in the window, and the other shortly
// before or after.
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
	return s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, row, query, args...)
	})
}

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

// fingerprint identifies the tables of this side, without revealing their names.
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

func (s side) now(ctx context.Context) (time.Time, error) {
	query := `SELECT {millis now()}`
	if s.dialect.SQLite() {
		query = `SELECT {now}`
	}
	var ms int64
	err := s.one(ctx, query, nil, &ms)
	return fromMillis(ms), err
}

type query struct{ args []any }

func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return "$" + strconv.Itoa(len(q.args))
}

func (q *query) millis(t time.Time) string { return "{from_millis " + q.arg(t.UnixMilli()) + "}" }

// 1 if the time of a row is in the window, otherwise 0.
func (q *query) in(w window, at string) string {
	return `CASE WHEN ` + at + ` >= ` + q.millis(w.from) + ` AND ` + at + ` < ` + q.millis(w.until) + ` THEN 1 ELSE 0 END`
}

// only returns a condition after AND, or "". source.scan says which rows it leaves out.
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

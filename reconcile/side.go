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
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// margin is added to the beginning of the period for which a side still has all
// messages. The time in an id and the time of a row come from different clocks. The two
// clocks may differ by up to margin.
const margin = time.Minute

// early is how much earlier than the window a scan begins, because the clocks may
// differ.
const early = time.Hour

// side contains the fields that Sender, Receiver and Archive need.
type side struct {
	db      *sql.DB
	dialect dialect.Dialect
}

func newSide(db *sql.DB, config schema.Config, err error) (side, error) {
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return side{}, fields.Refused("reconcile", err)
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

// one reads the first row of a query. It returns sql.ErrNoRows if there is no row.
func (s side) one(ctx context.Context, query string, args []any, dest ...any) error {
	found := false
	err := s.rows(ctx, func(scan func(dest ...any) error) error {
		if found {
			return nil
		}
		found = true
		return scan(dest...)
	}, query, args...)
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	return err
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
	if err := s.one(ctx, query, args, &name); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(name + "/" + table))
	return hex.EncodeToString(sum[:8]), nil
}

// now returns the current time of the database's clock.
func (s side) now(ctx context.Context) (time.Time, error) {
	query := s.dialect.SQL(`SELECT {millis now()}`)
	if s.dialect.SQLite() {
		query = s.dialect.SQL(`SELECT {now}`)
	}
	var ms int64
	err := s.one(ctx, query, nil, &ms)
	return time.UnixMilli(ms).UTC(), err
}

// query collects the parameters of a query.
type query struct{ args []any }

func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return "$" + strconv.Itoa(len(q.args))
}

// millis adds a time as a parameter, and returns the SQL expression for this time.
func (q *query) millis(t time.Time) string { return "{from_millis " + q.arg(t.UnixMilli()) + "}" }

// spans returns an SQL condition. It begins with AND, and is true if the id in the
// column is in one of the spans. Without spans, it is "". Ids that are not UUIDs of
// version 7 contain no time. Such an id matches if its text happens to be in a span.
func (q *query) spans(column string, spans []span) string {
	var ranges []string
	for _, s := range spans {
		ranges = append(ranges, fmt.Sprintf("%s >= %s AND %s < %s", column, q.arg(firstID(s.from)), column, q.arg(firstID(s.to))))
	}
	if ranges == nil {
		return ""
	}
	return " AND (" + strings.Join(ranges, " OR ") + ")"
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

package audit

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
	"github.com/watermill-once/once/schema"
)

// Log reads the audit log.
type Log struct {
	db rows.DB
}

// Record is one entry of the log.
type Record struct {
	// ID is the number of the entry. IDs are approximately in chronological order.
	ID int64

	// At is the time of the act, by the database's clock.
	At time.Time

	// Actor is the person or program that acted, and Why the reason given.
	Actor, Why string

	// Action is "replay", "discard", "edit", "retry", "cancel", "note", "pause" and so on.
	Action string

	// Subject is the changed row, as a table and an ID: "parked:17" (quarantine), "dead:17",
	// "sent:17", "outbox:17", "replay:17", or "key:k" for an ordering key, "topic:t" and "tenant:t"
	// for a pause or its end, and "group:f" for a failure group of the quarantine.
	Subject string

	Consumer, MessageID string

	// ReplayID is the ID of the replay of many entries to which the act belongs, or 0.
	ReplayID int64
}

// New returns the audit log in db. If config is invalid, the error names each invalid
// field. The tables must exist, see schema.Up.
func New(db *sql.DB, config schema.Config) (*Log, error) {
	d, err := rows.Open("audit", db, config)
	if err != nil {
		return nil, err
	}
	return &Log{d}, nil
}

// windowRows is the number of rows that one call reads. Most fields of a Filter have no index,
// which would slow down each act.
const windowRows = 20_000

// List returns a page of the acts that match f, the latest first. One call reads at most 20,000
// acts. Filter.BeforeID of the next page is Next of this one.
func (l *Log) List(ctx context.Context, f Filter) (operate.Page[Record], error) {
	err := f.validate()
	var p operate.Page[Record]
	if err == nil {
		err = l.db.Look(ctx, func(tx *sql.Tx) (err error) {
			p, err = l.list(ctx, tx, f.withDefaults())
			return err
		})
	}
	if err != nil {
		return operate.Page[Record]{}, fmt.Errorf("audit: list: %w", err)
	}
	return p, nil
}

func (l *Log) list(ctx context.Context, tx *sql.Tx, f Filter) (p operate.Page[Record], err error) {
	var (
		n     int
		first int64
	)
	if err := tx.QueryRowContext(ctx, l.db.SQL(`
		SELECT COUNT(*), COALESCE(MIN(w.id), 0) FROM (SELECT id FROM {audit} WHERE id < $1 ORDER BY id DESC LIMIT $2) AS w`),
		f.BeforeID, windowRows).Scan(&n, &first); err != nil {
		return p, err
	}
	where, args := f.where(first, l.db.SQLite())
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			r      Record
			millis int64
		)
		err := scan(&r.ID, &millis, &r.Actor, &r.Action, &r.Subject, &r.Consumer, &r.MessageID, &r.Why, &r.ReplayID)
		r.At = rows.Millis(millis)
		p.Rows = append(p.Rows, r)
		return err
	}, l.db.SQL(`
		SELECT id, {millis at}, actor, action, subject, consumer, message_id, why, COALESCE(replay_id, 0)
		FROM {audit} WHERE `+where), args...)
	switch {
	case len(p.Rows) == f.Limit:
		p.Next = p.Rows[f.Limit-1].ID
	case n == windowRows:
		p.Next = first
	}
	return p, err
}

// Filter selects the acts that match all fields that are not empty.
type Filter struct {
	// Actor, Action, Subject, Consumer and MessageID must be equal to the fields of [Record].
	Actor     string
	Action    string
	Subject   string
	Consumer  string
	MessageID string

	ReplayID int64

	// After (inclusive) and Before (exclusive) limit the time of the act, by the database's clock,
	// in whole milliseconds.
	After, Before time.Time

	// BeforeID selects acts with a lower ID, for the next page Next of the previous one.
	BeforeID int64

	// Limit is the maximum number of acts. Defaults to 100.
	Limit int
}

func (f Filter) withDefaults() Filter {
	f.Limit = cmp.Or(f.Limit, 100)
	f.BeforeID = cmp.Or(f.BeforeID, math.MaxInt64)
	return f
}

func (f Filter) validate() error {
	var errs []error
	for _, field := range []struct {
		name  string
		value int64
	}{{"Limit", int64(f.Limit)}, {"BeforeID", f.BeforeID}, {"ReplayID", f.ReplayID}} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: negative", field.name, field.value))
		}
	}
	if !f.Before.IsZero() && !f.After.Before(f.Before) {
		errs = append(errs, errors.New("Before is not after After"))
	}
	return errors.Join(errs...)
}

func (f Filter) where(first int64, sqlite bool) (where string, args []any) {
	var texts []string
	add := func(condition string, value any) {
		args = append(args, value)
		texts = append(texts, fmt.Sprintf("%s $%d", condition, len(args)))
	}
	moment := func(at time.Time) any {
		if sqlite {
			return at.UnixMilli()
		}
		return at.Truncate(time.Millisecond)
	}
	add("id >=", first)
	add("id <", f.BeforeID)
	for _, field := range []struct{ column, value string }{
		{"actor", f.Actor},
		{"action", f.Action},
		{"subject", f.Subject},
		{"consumer", f.Consumer},
		{"message_id", f.MessageID},
	} {
		if field.value != "" {
			add(field.column+" =", field.value)
		}
	}
	if f.ReplayID != 0 {
		add("replay_id =", f.ReplayID)
	}
	if !f.After.IsZero() {
		add("at >=", moment(f.After))
	}
	if !f.Before.IsZero() {
		add("at <", moment(f.Before))
	}
	args = append(args, f.Limit)
	return fmt.Sprintf("%s ORDER BY id DESC LIMIT $%d", strings.Join(texts, " AND "), len(args)), args
}

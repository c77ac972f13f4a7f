package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures a [Log]. The zero value is ready for production use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config
}

// Log reads the audit log.
type Log struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// Record is one entry of the log.
type Record struct {
	// ID is the number of the entry. IDs are approximately in chronological order.
	ID int64

	// At is the time of the act, by the database's clock.
	At time.Time

	// Actor is the name of the person or program that acted. Why is the reason that this
	// person or program gave.
	Actor, Why string

	// Action is the kind of the act: "replay", "discard", "edit", "retry", "cancel", "note"
	// and so on.
	Action string

	// Subject is the changed row, as a table and an ID: "parked:17" for an entry of the
	// quarantine, "dead:17" for a dead letter, "sent:17" for a sent message, "outbox:17"
	// for a pending message, "replay:17" for a replay, "key:k" for an ordering key,
	// "topic:t" and "tenant:t" for a topic and a tenant that was paused or resumed, and
	// "group:f" for a failure group of the quarantine.
	Subject string

	// Consumer and MessageID are the consumer and the id of the changed message, or "".
	Consumer, MessageID string

	// ReplayID is the ID of the replay of many entries to which the act belongs, or 0.
	ReplayID int64
}

// Page is one page of a list.
type Page struct {
	// Records contains the acts, with the latest act first. A page can contain fewer
	// records than Filter.Limit, or none, even if later pages contain records.
	Records []Record

	// Next is the value of Filter.BeforeID for the next page, or 0 if this is the last
	// page.
	Next int64
}

// New returns the audit log in db. If config is invalid, the error names each invalid
// field. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Log, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("audit", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Log{db, d}, nil
}

// windowRows is the number of rows that one call reads. The limit is needed because
// most fields of a Filter have no index: an index would slow down each act.
const windowRows = 20_000

// List returns a page of the acts that match f, with the latest act first. One call
// reads at most 20,000 acts.
func (l *Log) List(ctx context.Context, f Filter) (Page, error) {
	err := f.validate()
	var p Page
	if err == nil {
		err = dialect.LeaveReplica(ctx, l.db, l.dialect.Look(ctx, l.db, func(tx *sql.Tx) (err error) {
			p, err = l.list(ctx, tx, f.withDefaults())
			return err
		}))
	}
	if err != nil {
		return Page{}, fmt.Errorf("audit: list: %w", err)
	}
	return p, nil
}

func (l *Log) list(ctx context.Context, tx *sql.Tx, f Filter) (p Page, err error) {
	var (
		n     int
		first int64
	)
	if err := tx.QueryRowContext(ctx, l.dialect.SQL(`
		SELECT COUNT(*), COALESCE(MIN(w.id), 0) FROM (SELECT id FROM {audit} WHERE id < $1 ORDER BY id DESC LIMIT $2) AS w`),
		f.BeforeID, windowRows).Scan(&n, &first); err != nil {
		return p, err
	}
	where, args := f.where(first, l.dialect.SQLite())
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			r      Record
			millis int64
		)
		err := scan(&r.ID, &millis, &r.Actor, &r.Action, &r.Subject, &r.Consumer, &r.MessageID, &r.Why, &r.ReplayID)
		r.At = time.UnixMilli(millis).UTC()
		p.Records = append(p.Records, r)
		return err
	}, l.dialect.SQL(`
		SELECT id, {millis at}, actor, action, subject, consumer, message_id, why, COALESCE(replay_id, 0)
		FROM {audit} WHERE `+where), args...)
	switch {
	case len(p.Records) == f.Limit:
		p.Next = p.Records[f.Limit-1].ID
	case n == windowRows:
		p.Next = first
	}
	return p, err
}

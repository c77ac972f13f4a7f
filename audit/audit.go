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
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config
}

// Log is the audit log.
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

	// Actor is who acted, and Why the reason that they gave.
	Actor, Why string

	// Action names the act: "replay", "discard", "edit", "retry", "cancel", "note" and
	// so on.
	Action string

	// Subject names the changed row: a table and an ID, as "parked:17" for an entry of
	// the quarantine, "dead:17" for a dead letter, "sent:17" for a sent message,
	// "outbox:17" for a pending message, "replay:17" for a replay, "key:k" for an
	// ordering key, "topic:t" and "tenant:t" for a topic and a tenant
	// that was paused or resumed, and "group:f" for a failure group of the quarantine.
	Subject string

	// Consumer and MessageID are those of the message, or empty.
	Consumer, MessageID string

	// ReplayID is the replay of many entries that includes the act, or 0.
	ReplayID int64
}

// Page is a part of a list.
type Page struct {
	// Records are the latest first. There may be fewer than Filter.Limit, and even
	// none, although later pages have some.
	Records []Record

	// Next is Filter.BeforeID of the next page, or 0 if this is the last page.
	Next int64
}

// New returns the audit log in db, or an error that names each field of config that
// cannot be used. The tables must exist, see schema.Up.
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

// windowRows is how many rows one call looks at. No index but that of the IDs finds a
// row, because every index would slow down the changes.
const windowRows = 20_000

// List returns a page of the acts that match, the latest first. It looks at 20,000
// acts at most.
func (l *Log) List(ctx context.Context, f Filter) (Page, error) {
	err := f.validate()
	var p Page
	if err == nil {
		err = dialect.LeaveReplica(ctx, l.db, l.dialect.Read(ctx, l.db, func(tx *sql.Tx) (err error) {
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

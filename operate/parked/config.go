package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Messages gives access to the parked messages in a consumer's database.
type Messages struct {
	db    rows.DB
	table rows.Ordered
	store *store.Store
}

// New returns a Messages for the parked messages in db. If config is invalid, the error
// names each invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config operate.Config) (*Messages, error) {
	d, config, err := rows.Configure("parked", db, config)
	if err != nil {
		return nil, err
	}
	s, err := store.NewStore(db, config.Schema)
	if err != nil {
		return nil, err
	}
	return &Messages{d, tableOf(d), s}, nil
}

const windowRows = 20_000

func tableOf(d rows.DB) rows.Ordered {
	t := rows.Table{
		Rows: "parked messages", ID: "p.id", IDs: `p.id {among %s bigint}`, Ordered: true,
		Times:  map[string]string{"Created": "p.created_at"},
		States: []string{Waiting, Held, Quarantined, Resolved, Discarded},
	}
	// No partial index matches these conditions, so the rows of the window are read by their ids.
	for _, c := range [][2]string{
		{"Consumer", "p.consumer"},
		{"Topic", "p.topic"},
		{"MessageID", "p.message_id"},
		{"Tenant", "p.tenant"},
		{"OrderingKey", "p.ordering_key"},
		{"State", "'' || p.state"},
	} {
		t.Columns = append(t.Columns, rows.Column{Field: c[0], SQL: c[1], Stored: stored})
	}
	return rows.Ordered{
		DB: d, Table: t, Name: `{parked}`, Alias: "p", Key: "id", Indexed: indexed,
		Next: func(ctx context.Context, tx *sql.Tx, after int64) (next int64, err error) {
			n := 0
			err = tx.QueryRowContext(ctx, d.SQL(`SELECT COUNT(*), COALESCE(MAX(w.id), 0) FROM (
				SELECT id FROM {parked} WHERE id > $1 ORDER BY id LIMIT $2) AS w`), after, windowRows).Scan(&n, &next)
			if n < windowRows {
				next = 0
			}
			return next, err
		},
	}
}

func stored(name string) string { return store.Clean(name, store.MaxName) }

// The conditions of indexes may cover only some of the conditions of f.
func indexed(f operate.Filter) (where []string, args []any) {
	of, args := `consumer = $1`, []any{stored(f.Consumer)}
	if f.Topic != "" {
		of, args = of+` AND topic = $2`, append(args, stored(f.Topic))
	}
	switch {
	case f.MessageID != "":
		return []string{`message_id <> '' AND message_id = $1`}, []any{stored(f.MessageID)}
	case f.State == Quarantined && f.Consumer != "":
		return []string{`consumer = $1 AND state || '' = 'quarantined'`}, args[:1]
	case f.State == Quarantined:
		return []string{`state = 'quarantined'`}, nil
	case f.State == Waiting && f.Consumer != "":
		return []string{of + ` AND state = 'waiting' AND crashes = 0`, of + ` AND state = 'waiting' AND crashes > 0`}, args
	case f.State == Held && f.Consumer != "":
		return []string{of + ` AND state = 'held'`}, args
	}
	return nil, nil
}

// checkChange refuses a Filter that selects all messages without All, and a State in which the
// action changes none.
func (m *Messages) checkChange(f operate.Filter, do Action) error {
	err := m.table.CheckChange(f)
	switch {
	case f.State == "" || f.State == Waiting || f.State == Held && do != RunNow:
	case f.State == Held:
		err = errors.Join(err, errors.New(`State is "held": a held message runs after the messages before it`))
	case f.State == Quarantined:
		err = errors.Join(err, errors.New(`State is "quarantined": use package quarantine for messages in quarantine`))
	default:
		err = errors.Join(err, fmt.Errorf("State is %q: such a message does not change any more", f.State))
	}
	return err
}

var (
	// ErrEnded means that the message is neither waiting nor held: it is in quarantine (see package
	// quarantine), or was resolved or discarded.
	ErrEnded = errors.New("neither waiting nor held")

	// ErrHeld means that a held message cannot be handled before Message.BlockedBy is no longer the
	// head of the ordering key.
	ErrHeld = errors.New("held behind another message of its ordering key")

	// ErrHandled means that the inbox contains the id of the message. The consumer removes the row
	// at its next claim.
	ErrHandled = errors.New("the consumer has handled it")

	// ErrConsumerNotFound means that no consumer with this name is registered for this topic.
	ErrConsumerNotFound = errors.New("no such consumer")

	// ErrRunning means that the consumer ran less than two minutes ago.
	ErrRunning = errors.New("the consumer is running")

	// ErrNotEmpty means that the consumer has messages that are waiting, held or in
	// quarantine.
	ErrNotEmpty = errors.New("the consumer has messages")
)

// Action is a kind of change to messages.
type Action string

// Actions for [Messages.DryRun].
const (
	RunNow Action = "run"

	Cancel Action = "cancel"

	Discard Action = "discard"
)

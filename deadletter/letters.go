package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/outboxrow"
)

// Letter is a dead letter: a message that the forwarder gave up on, because the
// broker did not accept it.
type Letter struct {
	Message

	// Attempts is how often the forwarder tried to send the message.
	Attempts int

	// Reason is one of the Reason constants. Error is the last error of the
	// publisher.
	Reason, Error string

	// Unknown reports whether the message may have been sent all the same.
	Unknown bool

	// BlocksKey reports whether messages of the same ordering key wait for this
	// letter, see forwarder.BlockKey.
	BlocksKey bool

	// LastFailedAt is when the message became a dead letter.
	LastFailedAt time.Time
}

// Letters are the dead letters of an outbox.
type Letters struct {
	table table
}

// New returns the dead letters in db, or an error that names each field of config
// that cannot be used. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Letters, error) {
	t, err := table{name: `{outbox_dead}`, row: "dead letter", subject: "dead", arrived: "died_at", dead: true}.open(db, config)
	if err != nil {
		return nil, err
	}
	return &Letters{t}, nil
}

// List returns a page of the letters that match, in ascending order of their IDs
// and without their payloads.
func (l *Letters) List(ctx context.Context, f Filter) ([]Letter, error) {
	letters, err := l.list(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("deadletter: list: %w", err)
	}
	return letters, nil
}

// Get returns one letter with its payload, or [ErrNotFound].
func (l *Letters) Get(ctx context.Context, id int64) (Letter, error) {
	letters, err := l.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(letters) == 0 {
		err = l.table.notFound(id)
	}
	if err == nil {
		letters[0].Payload, err = l.table.payload(ctx, id)
	}
	if err != nil {
		return Letter{}, fmt.Errorf("deadletter: get: %w", err)
	}
	return letters[0], nil
}

// Count returns how many letters match. It ignores Filter.Limit.
func (l *Letters) Count(ctx context.Context, f Filter) (int, error) {
	n, _, err := l.table.count(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("deadletter: count: %w", err)
	}
	return n, nil
}

const letterColumns = `attempts, last_error, reason, unknown, {millis died_at},
	EXISTS (SELECT 1 FROM {blocked_keys} AS b
	        WHERE b.ordering_key = a.ordering_key AND b.position = a.position AND b.reason = '` + outboxrow.BlockedDead + `')`

func (l *Letters) list(ctx context.Context, f Filter) ([]Letter, error) {
	var letters []Letter
	err := l.table.list(ctx, f, letterColumns, func(rows *sql.Rows) error {
		var (
			letter Letter
			died   int64
			err    error
		)
		letter.Message, err = scanMessage(rows,
			&letter.Attempts, &letter.Error, &letter.Reason, &letter.Unknown, &died, &letter.BlocksKey)
		letter.LastFailedAt = fromMillis(died)
		letters = append(letters, letter)
		return err
	})
	return letters, err
}

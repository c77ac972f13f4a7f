package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/outboxrow"
)

// Letter is a dead letter. Usually this is a message that the forwarder gave up on,
// because the broker did not accept it. The field Reason says why the message is a dead
// letter.
type Letter struct {
	Message

	// Attempts is the number of failed attempts to send the message.
	Attempts int

	// Reason is one of the Reason constants. Error is the last error of the
	// publisher.
	Reason, Error string

	// Unknown reports whether the message may have been sent although no confirm arrived.
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

// New returns the dead letters in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Letters, error) {
	t, err := table{name: `{outbox_dead}`, row: "dead letter", subject: "dead", arrived: "died_at", dead: true}.open(db, config)
	if err != nil {
		return nil, err
	}
	return &Letters{t}, nil
}

// LetterPage is a part of the dead letters.
type LetterPage struct {
	// Letters are in ascending order of their IDs. A page can contain fewer letters than
	// Filter.Limit, or none, even if later pages contain letters.
	Letters []Letter

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the letters that match, without their payloads. For a single
// condition, an index finds the matching letters. If the Filter has several conditions,
// List looks at no more than 10,000 of the letters that match the rarest condition, and
// LetterPage.Next says where the search continues. FailedAfter and FailedBefore count
// as a second condition if they match more than 5,000 letters.
func (l *Letters) List(ctx context.Context, f Filter) (LetterPage, error) {
	p, err := l.list(ctx, f, false)
	if err != nil {
		return LetterPage{}, fmt.Errorf("deadletter: list: %w", err)
	}
	return p, nil
}

// Get returns one letter with its payload, or [ErrNotFound].
func (l *Letters) Get(ctx context.Context, id int64) (Letter, error) {
	p, err := l.list(ctx, Filter{IDs: []int64{id}}, false)
	if err == nil && len(p.Letters) == 0 {
		err = l.table.notFound(id)
	}
	if err == nil {
		p.Letters[0].Payload, err = l.table.payload(ctx, id)
	}
	if err != nil {
		return Letter{}, fmt.Errorf("deadletter: get: %w", err)
	}
	return p.Letters[0], nil
}

// Count counts the letters that match, at most 50,000 in one call. It looks at no more
// letters than List does. If Filter.Limit is set, it counts no more letters than this.
// Count.Next says where the next call continues.
func (l *Letters) Count(ctx context.Context, f Filter) (Count, error) {
	n, err := l.table.countPart(ctx, f)
	if err != nil {
		return Count{}, fmt.Errorf("deadletter: count: %w", err)
	}
	return n, nil
}

const letterColumns = `attempts, last_error, reason, unknown, {millis died_at},
	EXISTS (SELECT 1 FROM {blocked_keys} AS b
	        WHERE b.ordering_key = a.ordering_key AND b.position = a.position AND b.reason = '` + outboxrow.BlockedDead + `')`

func (l *Letters) list(ctx context.Context, f Filter, everywhere bool) (p LetterPage, err error) {
	p.Next, err = l.table.list(ctx, f, everywhere, letterColumns, func(rows *sql.Rows) error {
		var (
			letter Letter
			died   int64
			err    error
		)
		letter.Message, err = scanMessage(rows,
			&letter.Attempts, &letter.Error, &letter.Reason, &letter.Unknown, &died, &letter.BlocksKey)
		letter.LastFailedAt = fromMillis(died)
		p.Letters = append(p.Letters, letter)
		return err
	})
	if n := len(p.Letters); n == cmp.Or(f.Limit, page) {
		p.Next = p.Letters[n-1].ID
	}
	return p, err
}

package mover

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Mover moves messages from a stock forwarder's table into the outbox. It has
// no state: everything is in the tables.
type Mover struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	outbox  *outbox.Outbox
	sql     queries
}

// New returns a Mover in db, or an error that names every field of config that
// cannot be used. db is not closed by it.
func New(db *sql.DB, config Config) (*Mover, error) {
	config = config.withDefaults()
	errs := []error{config.validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	box, err := outbox.New(outbox.Config{Schema: config.Schema, MaxPayload: config.MaxPayload, MeterProvider: config.MeterProvider})
	if err != nil && config.Schema.Validate() == nil { // or it is told twice
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fields.Refused("mover", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("mover: %w", err)
	}
	return &Mover{db: db, config: config, dialect: d, outbox: box, sql: newQueries(config, d)}, nil
}

// Run moves what is there and what comes until ctx ends, and then returns nil.
// What is under way at that moment is moved as a whole or not at all.
//
// It returns an error if tables are missing or of another version ([ErrNoTable],
// schema.ErrMissing, ErrOutdated, ErrNewer, ErrDialect), or [ErrUnknownGroup]. A database
// that cannot be reached is no error: it is waited for.
func (m *Mover) Run(ctx context.Context) error {
	move := m.Move // until the tables have been looked at
	for failures := 0; ; {
		_, err := move(ctx)
		pause := m.config.PollInterval
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end, which is why it could not go on
		case err == nil:
			move = m.drain
			if failures > 0 {
				m.config.Logger.Info("Messages can be moved again", nil)
			}
			failures = 0
		case wrong(err):
			return err
		default:
			if failures == 0 {
				m.config.Logger.Error("Messages cannot be moved, trying again", err, nil)
			}
			failures++
			pause = max(pause, pauses(failures))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// pauses is how long to wait after the nth failure: 0.1 to 3.2 seconds.
func pauses(failures int) time.Duration {
	return 100 * time.Millisecond << min(failures-1, 5)
}

// Move moves what is there and returns how many rows it took, dead letters
// among them, when nothing can be read any more. What open transactions hold
// up is not waited for, see [Mover.Left].
//
// On an error, rows that were counted have been moved, the others have not; it
// can be called again at any time. Rows of a commit whose outcome is unknown
// are moved once, but may not be counted.
func (m *Mover) Move(ctx context.Context) (moved int, err error) {
	if err := m.check(ctx); err != nil {
		return 0, fmt.Errorf("mover: %w", err)
	}
	return m.drain(ctx)
}

// drain is Move without looking at the tables first.
func (m *Mover) drain(ctx context.Context) (moved int, err error) {
	for {
		waiting, err := m.waiting(ctx)
		if err == nil && !waiting {
			return moved, nil
		}
		if err == nil {
			var n int
			n, err = m.take(ctx)
			moved += n
		}
		// After an unknown commit the offset says what happened.
		if err != nil && !errors.Is(err, dialect.ErrCommitUnknown) {
			return moved, fmt.Errorf("mover: %w", err)
		}
	}
}

// check looks at the tables.
func (m *Mover) check(ctx context.Context) error {
	if err := schema.Check(ctx, m.db, m.config.Schema); err != nil && !errors.Is(err, schema.ErrLayout) { // it uses no inbox
		return err
	}
	return m.read(ctx, func(tx *sql.Tx) error {
		for _, table := range []string{m.config.MessagesTable, m.config.OffsetsTable} {
			var exists bool
			if err := tx.QueryRowContext(ctx, m.sql.exists, table).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				return fmt.Errorf("%w: %s", ErrNoTable, table)
			}
		}
		return nil
	})
}

// Left says what the mover has before it: messages that the consumer group has
// not acked, whether they can be read yet or not, and transactions that have
// written to the stock table and are still open. If both are 0 and no stock
// writer runs any more, the mover and the stock tables can go.
//
// It counts rows, which takes time in proportion to the backlog.
func (m *Mover) Left(ctx context.Context) (messages, writers int, err error) {
	if err := m.check(ctx); err != nil {
		return 0, 0, fmt.Errorf("mover: %w", err)
	}
	err = m.read(ctx, func(tx *sql.Tx) error {
		// First the writers: who has committed by then is seen by the count.
		if err := tx.QueryRowContext(ctx, m.sql.writers, m.config.MessagesTable).Scan(&writers); err != nil {
			return err
		}
		at, _, err := m.position(ctx, tx, m.sql.position)
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, m.sql.left, at.transaction, at.offset).Scan(&messages)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("mover: left: %w", err)
	}
	return messages, writers, nil
}

func (m *Mover) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return m.dialect.Read(ctx, m.db, work)
}

func (m *Mover) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Write(ctx, m.db, work))
}

package mover

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Mover moves messages from the table of Watermill's own forwarder into the outbox. All its state
// is in the tables.
type Mover struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	outbox  *outbox.Outbox
	sql     queries
}

// New returns a Mover for the tables in db. If config is invalid, the error names every
// invalid field. The Mover does not close db.
func New(db *sql.DB, config Config) (*Mover, error) {
	config = config.withDefaults()
	errs := []error{config.validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	box, err := outbox.New(outbox.Config{
		Schema: config.Schema, MaxPayload: config.MaxPayload, Check: config.Check, MeterProvider: config.MeterProvider,
	})
	if err != nil && config.Schema.Validate() == nil { // config.validate reports an invalid Schema already
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usercode.Refused("mover", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("mover: %w", err)
	}
	return &Mover{db: db, config: config, dialect: d, outbox: box, sql: newQueries(config, d)}, nil
}

// Run moves messages until ctx ends, and then returns nil. The last batch is moved completely or
// not at all.
//
// Run fails if tables are missing or have another version ([ErrNoTable], schema.ErrMissing,
// ErrOutdated, ErrNewer, ErrDialect), and with [ErrQueueTable] and [ErrUnknownGroup]. If it cannot
// reach the database, it tries again.
func (m *Mover) Run(ctx context.Context) error {
	move := m.Move // also checks the tables; after the first success, drain replaces it
	for failures := 0; ; {
		_, err := move(ctx)
		pause := m.config.PollInterval
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is the cause of err
		case err == nil:
			move = m.drain
			if failures > 0 {
				m.config.Logger.Info("Messages can be moved again", nil)
			}
			failures = 0
		case permanent(err):
			return err
		default:
			if failures == 0 {
				m.config.Logger.Error("Messages cannot be moved, retrying", err, nil)
			}
			failures++
			pause = max(pause, pauses.Delay(failures, 0))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

var pauses = backoff.Exponential{Base: 100 * time.Millisecond, Max: 3200 * time.Millisecond}

// Move moves all rows that it can read, and returns their number, including dead letters. It does
// not wait for rows behind open transactions, see [Mover.Left].
//
// If Move fails, it has moved the returned number of rows and no others. Call it again at any time.
// If the outcome of a commit is unknown, its rows are not moved twice, but may not be in the
// number.
func (m *Mover) Move(ctx context.Context) (moved int, err error) {
	if err := m.check(ctx); err != nil {
		return 0, fmt.Errorf("mover: %w", err)
	}
	return m.drain(ctx)
}

func (m *Mover) drain(ctx context.Context) (moved int, err error) {
	for {
		waiting, err := m.waiting(ctx)
		if err == nil && !waiting {
			return moved, nil
		}
		if err == nil {
			var n int
			n, err = m.moveBatch(ctx)
			moved += n
		}
		// After a commit with an unknown outcome, the offset shows whether the rows were moved.
		if err != nil && !errors.Is(err, dialect.ErrCommitUnknown) {
			return moved, fmt.Errorf("mover: %w", err)
		}
	}
}

func (m *Mover) check(ctx context.Context) error {
	// The mover does not use the inbox, so its layout does not matter.
	if err := schema.Check(ctx, m.db, m.config.Schema); err != nil && !errors.Is(err, schema.ErrLayout) {
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
			if table != m.config.MessagesTable {
				continue
			}
			// A queue has no table of offsets, so this is checked before the offsets.
			var queue bool
			if err := tx.QueryRowContext(ctx, m.sql.queue, table).Scan(&queue); err != nil {
				return err
			}
			if queue {
				return fmt.Errorf("%w: %s", ErrQueueTable, table)
			}
		}
		return nil
	})
}

// Left returns how many messages the consumer group has not acked, even those that cannot be read
// yet, and how many open transactions have written to the table of Watermill's own forwarder. If
// both are 0 and no service writes to this table any more, you can remove the mover, the table and
// its table of offsets.
//
// Left counts rows, so it takes longer if the backlog is long.
func (m *Mover) Left(ctx context.Context) (messages, writers int, err error) {
	if err := m.check(ctx); err != nil {
		return 0, 0, fmt.Errorf("mover: %w", err)
	}
	err = m.read(ctx, func(tx *sql.Tx) error {
		// First: the count then includes the messages of every writer that commits in between.
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
	return m.dialect.Write(ctx, m.db, work)
}

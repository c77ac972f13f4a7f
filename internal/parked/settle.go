package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Resolve ends a claim whose message was handled. The row goes, unless it has
// been replayed: then it stays as the record of how that ended.
func (s *Store) Resolve(ctx context.Context, c *Claim) error {
	if c.Replays > 0 {
		return s.settle(ctx, c, s.sql.resolve)
	}
	return s.settle(ctx, c, s.sql.remove)
}

// Postpone ends a claim whose message failed and is to be handled again after
// delay.
func (s *Store) Postpone(ctx context.Context, consumer string, c *Claim, f Failure, delay time.Duration) error {
	text, errType, group := f.columns(consumer)
	return s.settle(ctx, c, s.sql.postpone, delay.Milliseconds(), f.Attempts, f.Rounds, text, errType, group)
}

// Release gives a claim back without charging anything, to be taken up again
// after pause.
func (s *Store) Release(ctx context.Context, c *Claim, pause time.Duration) error {
	return s.settle(ctx, c, s.sql.release, pause.Milliseconds())
}

// settle runs a statement that moves the row on, guarded by the token.
func (s *Store) settle(ctx context.Context, c *Claim, query string, args ...any) error {
	var moved int64
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, query, append([]any{c.ID, c.Token}, args...)...)
		if err != nil {
			return err
		}
		moved, err = result.RowsAffected()
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("settle parked message %d: %w", c.ID, err)
	case moved == 0:
		c.settled.Store(true)
		return fmt.Errorf("%w: row %d", ErrClaimLost, c.ID)
	}
	c.settled.Store(true)
	return nil
}

package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Resolve ends claims whose messages were handled, in one transaction. It deletes
// their rows, except for kept rows and replayed rows, which become resolved. A
// replayed row is the record of the replay's outcome. If some claims were lost,
// Resolve returns [ErrClaimLost], and the others are resolved.
func (s *Store) Resolve(ctx context.Context, claims ...*Claim) error {
	var (
		gone, kept []*Claim
		keys       []Key
	)
	for _, c := range claims {
		keys = append(keys, c.keys()...)
		if c.Replays > 0 || c.Keep {
			kept = append(kept, c)
		} else {
			gone = append(gone, c)
		}
	}
	return s.settle(ctx, claims, keys, func(tx *sql.Tx, moved map[int64]bool) error {
		if err := s.move(ctx, tx, moved, gone, s.sql.remove); err != nil {
			return err
		}
		failpoint.Hit("parked/removed")
		return s.move(ctx, tx, moved, kept, s.sql.resolve)
	})
}

// Postpone ends a claim whose message failed. The message is due again after
// delay.
func (s *Store) Postpone(ctx context.Context, consumer string, c *Claim, f Failure, delay time.Duration) error {
	text, errType, group := f.columns(consumer)
	staysHead := c.Order != BlockWhileRunning
	return withASCIIFallback(func(encode encoder) error {
		return s.settleOne(ctx, c, !staysHead, s.sql.postpone,
			encode(delay.Milliseconds(), min(f.Attempts, MaxCount), min(f.Rounds, MaxCount), text, errType, group, staysHead)...)
	})
}

// Release ends a claim without counting an attempt. The message is due again after
// pause.
func (s *Store) Release(ctx context.Context, c *Claim, pause time.Duration) error {
	return s.release(ctx, []*Claim{c}, pause)
}

// HandBack is [Store.Release] for claims whose handlers have not been called. The
// messages are due at once.
func (s *Store) HandBack(ctx context.Context, claims []*Claim) error {
	return s.release(ctx, claims, 0)
}

func (s *Store) release(ctx context.Context, claims []*Claim, pause time.Duration) error {
	return s.settle(ctx, claims, nil, func(tx *sql.Tx, moved map[int64]bool) error {
		return s.move(ctx, tx, moved, claims, s.sql.release, pause.Milliseconds())
	})
}

// move runs a statement that moves the rows of claims, guarded by their tokens, and
// adds the ids of the moved rows to moved.
func (s *Store) move(ctx context.Context, tx *sql.Tx, moved map[int64]bool, claims []*Claim, query string, args ...any) error {
	if len(claims) == 0 {
		return nil
	}
	ids, tokens := make([]int64, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		ids[i], tokens[i] = c.ID, strconv.FormatInt(c.ID, 10)+" "+c.Token
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		moved[id] = true
		return err
	}, query, append([]any{s.dialect.List(ids), s.dialect.Strings(tokens)}, args...)...)
}

// settle runs move in a transaction of its own. A claim that it does not move was
// lost. The claims are no longer the heads of keys.
func (s *Store) settle(
	ctx context.Context, claims []*Claim, keys []Key, move func(tx *sql.Tx, moved map[int64]bool) error,
) error {
	return ended(claims, func() (moved map[int64]bool, err error) {
		err = s.changeKeys(ctx, keys, func(tx *sql.Tx) error {
			moved = make(map[int64]bool, len(claims))
			return move(tx, moved)
		})
		return moved, err
	})
}

// ended runs a transaction that ends claims, and marks the claims as settled.
func ended(claims []*Claim, transaction func() (moved map[int64]bool, err error)) error {
	failpoint.Hit("parked/settle")
	moved, err := transaction()
	failpoint.Hit("parked/settled")
	if err != nil {
		return fmt.Errorf("settle %d parked messages, the first is row %d: %w", len(claims), claims[0].ID, err)
	}
	var lost []error
	for _, c := range claims {
		c.settled.Store(true)
		if !moved[c.ID] {
			lost = append(lost, fmt.Errorf("%w: row %d", ErrClaimLost, c.ID))
		}
	}
	return errors.Join(lost...)
}

// settleOne runs a statement that moves one row, guarded by the token. With leaves
// the row is no longer the head of its ordering key.
func (s *Store) settleOne(ctx context.Context, c *Claim, leaves bool, query string, args ...any) error {
	var keys []Key
	if leaves {
		keys = c.keys()
	}
	return s.settle(ctx, []*Claim{c}, keys, func(tx *sql.Tx, moved map[int64]bool) error {
		return moveOne(ctx, tx, moved, c, query, args...)
	})
}

func moveOne(ctx context.Context, tx *sql.Tx, moved map[int64]bool, c *Claim, query string, args ...any) error {
	result, err := tx.ExecContext(ctx, query, append([]any{c.ID, c.Token}, args...)...)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	moved[c.ID] = n > 0
	return err
}

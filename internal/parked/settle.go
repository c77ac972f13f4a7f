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

// Resolve ends claims whose messages were handled, in one transaction. A row
// goes, unless it is kept or has been replayed: then it stays as the record of
// how that ended. If some claims were lost, the error says so, and the others
// are resolved.
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

// Postpone ends a claim whose message failed and is to be handled again after
// delay.
func (s *Store) Postpone(ctx context.Context, consumer string, c *Claim, f Failure, delay time.Duration) error {
	text, errType, group := f.columns(consumer)
	stays := c.Order != BlockWhileRunning
	return fitting(func(fit fitter) error {
		return s.settleOne(ctx, c, !stays, s.sql.postpone,
			fit(delay.Milliseconds(), min(f.Attempts, MaxCount), min(f.Rounds, MaxCount), text, errType, group, stays)...)
	})
}

// Release gives a claim back without charging anything, to be taken up again
// after pause.
func (s *Store) Release(ctx context.Context, c *Claim, pause time.Duration) error {
	return s.free(ctx, []*Claim{c}, pause)
}

// HandBack is [Store.Release], at once, for claims that nobody has begun to
// handle.
func (s *Store) HandBack(ctx context.Context, claims []*Claim) error { return s.free(ctx, claims, 0) }

func (s *Store) free(ctx context.Context, claims []*Claim, pause time.Duration) error {
	return s.settle(ctx, claims, nil, func(tx *sql.Tx, moved map[int64]bool) error {
		return s.move(ctx, tx, moved, claims, s.sql.release, pause.Milliseconds())
	})
}

// move runs a statement that moves the rows of claims on, guarded by their
// tokens, and notes which it has moved.
func (s *Store) move(ctx context.Context, tx *sql.Tx, moved map[int64]bool, claims []*Claim, query string, args ...any) error {
	if len(claims) == 0 {
		return nil
	}
	ids, held := make([]int64, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		ids[i], held[i] = c.ID, strconv.FormatInt(c.ID, 10)+" "+c.Token
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		moved[id] = true
		return err
	}, query, append([]any{s.dialect.List(ids), s.dialect.Strings(held)}, args...)...)
}

// settle runs move in a transaction of its own. A claim that it does not move
// was lost. The keys are those of which claims are no longer the heads.
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

// ended runs a transaction that ends claims, and notes that it has.
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

// settleOne runs a statement that moves the row on, guarded by the token. With
// leaves it is the head of its ordering key no longer.
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

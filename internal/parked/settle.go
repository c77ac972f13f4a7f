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

// Resolve ends the claims of handled messages, in one transaction. It deletes their
// rows, with two exceptions: rows of replayed messages, and rows whose claim has the
// field Keep set, become resolved instead. The row of a replayed message stays to show
// the outcome of the replay. If some claims were lost, Resolve returns [ErrClaimLost],
// and resolves the other claims.
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

// Postpone ends the claim of a failed message. The message is due again after the given
// delay.
func (s *Store) Postpone(ctx context.Context, consumer string, c *Claim, f Failure, delay time.Duration) error {
	text, errType, group := f.columns(consumer)
	staysHead := c.Order != BlockWhileRunning
	return withASCIIFallback(func(encode encoder) error {
		return s.settleOne(ctx, c, !staysHead, s.sql.postpone,
			encode(delay.Milliseconds(), min(f.Attempts, MaxCount), min(f.Rounds, MaxCount), text, errType, group, staysHead)...)
	})
}

// Release ends a claim without counting an attempt. The message is due again after the
// given pause.
func (s *Store) Release(ctx context.Context, c *Claim, pause time.Duration) error {
	return s.release(ctx, []*Claim{c}, pause)
}

// HandBack works like [Store.Release], for claims whose handlers were not called. The
// messages are due immediately.
func (s *Store) HandBack(ctx context.Context, claims []*Claim) error {
	return s.release(ctx, claims, 0)
}

func (s *Store) release(ctx context.Context, claims []*Claim, pause time.Duration) error {
	return s.settle(ctx, claims, nil, func(tx *sql.Tx, moved map[int64]bool) error {
		return s.move(ctx, tx, moved, claims, s.sql.release, pause.Milliseconds())
	})
}

// move runs a statement that changes the rows of claims. It changes only rows whose
// token matches the claim, and adds their ids to moved.
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

// settle runs the function move in its own transaction. If move does not add the id of
// a row to moved, the claim of the row was lost. The parameter keys contains the
// ordering keys whose heads the function move may settle.
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

// ended runs a transaction that ends claims, and marks the claims as settled. If the id
// of a claim's row is not in moved, the claim was lost, and ended returns
// [ErrClaimLost].
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

// settleOne runs a statement that changes the row of one claim, if the token matches.
// If leavesKey is true, the row is no longer the head of its ordering key after the
// statement.
func (s *Store) settleOne(ctx context.Context, c *Claim, leavesKey bool, query string, args ...any) error {
	var keys []Key
	if leavesKey {
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

package parkedrows

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Resolve ends the claims of handled messages, in one transaction. It deletes their rows, except
// those of replayed messages and of claims with Keep, which become resolved. If some claims were
// lost, it resolves the others and returns [ErrClaimLost].
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

// settle runs move in a transaction of its own. Claims whose row move does not report were lost.
// move may settle the heads of keys.
func (s *Store) settle(
	ctx context.Context, claims []*Claim, keys []Key, move func(tx *sql.Tx, moved map[int64]bool) error,
) error {
	return s.end(claims, func() (moved, stay map[int64]bool, err error) {
		err = s.changeKeys(ctx, keys, func(tx *sql.Tx) (err error) {
			moved = make(map[int64]bool, len(claims))
			if err = move(tx, moved); err == nil {
				stay, err = s.stay(ctx, tx, moved, claims)
			}
			return err
		})
		return moved, stay, err
	})
}

// end runs a transaction that ends claims. A claim whose row is in neither map was lost
// ([ErrClaimLost]). If the database has ignored the change of a row in stay, end returns
// [dialect.ErrUnchanged], and may be called again with the same claims.
func (s *Store) end(claims []*Claim, transaction func() (moved, stay map[int64]bool, err error)) error {
	failpoint.Hit("parked/settle")
	moved, stay, err := transaction()
	failpoint.Hit("parked/settled")
	if err != nil {
		return fmt.Errorf("settle %d parked messages, the first is row %d: %w", len(claims), claims[0].ID, err)
	}
	var lost []error
	first := int64(0)
	for _, c := range claims {
		switch {
		case stay[c.ID]:
			first = cmp.Or(first, c.ID)
			continue
		case moved[c.ID]:
			c.partly = len(stay) > 0
		case !c.partly:
			lost = append(lost, fmt.Errorf("%w: row %d", ErrClaimLost, c.ID))
		}
		c.settled.Store(true)
	}
	if len(stay) > 0 {
		return s.unsettled(len(stay), first)
	}
	return errors.Join(lost...)
}

func (s *Store) unsettled(rows int, first int64) error {
	return s.dialect.Unchanged("parked", fmt.Sprintf("%d rows of settled messages were not changed or deleted (the first has the id %d)",
		rows, first))
}

// stay returns the rows that still have their claims, because the database has ignored the change.
func (s *Store) stay(ctx context.Context, tx *sql.Tx, moved map[int64]bool, claims []*Claim) (map[int64]bool, error) {
	var missed []*Claim
	for _, c := range claims {
		if !moved[c.ID] {
			missed = append(missed, c)
		}
	}
	stay := map[int64]bool{}
	return stay, s.move(ctx, tx, stay, missed, s.sql.claimed)
}

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

// Patience repeats a database operation that must succeed before a message may be acked. If the
// message were handed back at once, the broker would redeliver it thousands of times a second, up
// to its limit of deliveries.
type Patience struct {
	// After UnackedWait, the message is handed back.
	UnackedWait time.Duration

	// OneTry is the timeout of one try. Defaults to 30 seconds.
	OneTry time.Duration

	Logger watermill.LoggerAdapter
}

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	oneTry     = 30 * time.Second
)

// Persist calls operation until it succeeds, the consumer shuts down, or UnackedWait is over. In
// the last two cases its error makes the caller hand the message back. If the claim is lost, it
// returns nil, because another process now has the row. The context of operation outlives that of
// the message. step names the operation in logs and errors.
func (p Patience) Persist(ctx context.Context, d *Delivery, step string, operation func(ctx context.Context) error) error {
	deadline := time.Now().Add(p.UnackedWait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := p.try(ctx, operation)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrClaimLost) {
			p.Logger.Info("Lease ended before the message was settled; the message is handled again",
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": step})
			return nil
		}
		if pause == firstPause {
			p.Logger.Error("Message stays unacked while a step is tried again", err,
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": step})
		}
		if time.Now().After(deadline) || !d.Sleep(ctx, pause) {
			return chain.Returned(fmt.Errorf("%s: %w", step, err))
		}
	}
}

func (p Patience) try(ctx context.Context, operation func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(p.OneTry, oneTry))
	defer cancel()
	return operation(ctx)
}

// Sleep returns false if the consumer shuts down first. It ignores the deadlines of middlewares,
// because the outcome of the message must still be stored.
func (d *Delivery) Sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.Closing:
		return false
	case <-d.base(ctx).Done():
		return false
	}
}

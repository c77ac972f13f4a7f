package parked

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/failpoint"
)

// Claim is a parked row that this process may handle until its lease ends.
type Claim struct {
	ID       int64
	Token    string
	Attempts int // calls of the handler before this claim
	Rounds   int // of the retry policy before this claim
	Crashes  int // this claim included, until it is settled
	Replays  int
	Keep     bool // the row, when the message was handled

	// Key is the ordering key of which the message is the head, if of any, and
	// Order what happens to the key if it fails.
	Key   Key
	Order KeyOrder

	// Waited is since when the message is known to have come before its turn; 0
	// if it is not.
	Waited time.Duration

	age     time.Duration // of the row when it was claimed
	claimed time.Time
	settled atomic.Bool
	managed atomic.Bool
	handled atomic.Bool
}

// Age returns how long the row has been there: by the database's clock until it
// was claimed, and by this process's from then on.
func (c *Claim) Age() time.Duration { return c.age + time.Since(c.claimed) }

// Manage says that a middleware moves the row on, so that an ack alone does
// not mean that the message was handled.
func (c *Claim) Manage() { c.managed.Store(true) }

// Managed says whether a middleware does.
func (c *Claim) Managed() bool { return c.managed.Load() }

// Handle says that the message was handled, so that the row is to be resolved.
func (c *Claim) Handle() { c.handled.Store(true) }

// Handled says whether it was.
func (c *Claim) Handled() bool { return c.handled.Load() }

// Settled says whether the row has been moved on under this claim.
func (c *Claim) Settled() bool { return c.settled.Load() }

// Claimed is a claim with its message. Err says why no handler is to see that:
// the envelope cannot be read, and Message is nil, or the transport could not
// decode what it was made of.
type Claimed struct {
	*Claim

	Message *message.Message
	Err     error
}

// Select says which rows to claim.
type Select struct {
	Consumer string
	Topic    string
	Owner    string // who claims, for people who look at the table
	Limit    int
	Lease    time.Duration
	Order    KeyOrder
	Keep     bool // the rows, when their messages were handled

	// Suspects claims rows under which a process has ended before; otherwise
	// only rows are claimed under which none has.
	Suspects bool
}

// Claim takes rows that are due, the longest due first, and counts a crash
// against each: it is taken back when the row is settled, so what remains
// counted are the claims whose process ended.
func (s *Store) Claim(ctx context.Context, sel Select) ([]Claimed, error) {
	token := uuid.NewString()
	var claimed []Claimed
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, s.sql.claim,
			sel.Consumer, sel.Topic, sel.Owner, token, sel.Lease.Milliseconds(), sel.Limit, sel.Suspects)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			c := Claimed{Claim: &Claim{Token: token, Order: sel.Order, Keep: sel.Keep, claimed: time.Now()}}
			var (
				age, waited int64
				envelope    []byte
				key         string
				raw         bool
				known       knownError
			)
			err := rows.Scan(&c.ID, &c.Attempts, &c.Rounds, &c.Crashes, &c.Replays, &age, &key, &waited, &envelope,
				&raw, &known.text, &known.typ)
			if err != nil {
				return err
			}
			c.Attempts, c.Rounds = min(c.Attempts, maxCount), min(c.Rounds, maxCount)
			c.age, c.Waited = duration(age), duration(waited)
			if key != "" {
				c.Key = Key{sel.Consumer, sel.Topic, key}
			}
			c.Message, c.Err = Decode(envelope)
			if c.Err == nil && raw {
				c.Err = known
			}
			claimed = append(claimed, c)
		}
		failpoint.Hit("parked/claim")
		return rows.Err()
	})
	failpoint.Hit("parked/claimed")
	if err != nil {
		return nil, fmt.Errorf("claim parked messages: %w", err)
	}
	slices.SortFunc(claimed, func(a, b Claimed) int { return cmp.Compare(a.ID, b.ID) })
	return claimed, nil
}

// duration is as long as a Duration can be if somebody has written a time into
// the row that is too far from now.
func duration(millis int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-most, min(millis, most))) * time.Millisecond
}

// Due says whether rows of the selection wait, without claiming any.
func (s *Store) Due(ctx context.Context, sel Select) (fresh, suspect bool, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.due, sel.Consumer, sel.Topic).Scan(&fresh, &suspect)
	})
	if err != nil {
		err = fmt.Errorf("look for parked messages: %w", err)
	}
	return fresh, suspect, err
}

// Applied says whether the inbox has the message of a claim: the process that
// handled it ended between the commit and the end of its row. It also waits for
// a commit that the process has left behind, and fails if that takes long.
func (s *Store) Applied(ctx context.Context, c *Claim) (applied bool, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if s.sql.briefly != "" {
			if _, err := tx.ExecContext(ctx, s.sql.briefly); err != nil {
				return err
			}
		}
		result, err := tx.ExecContext(ctx, s.sql.enter, c.ID)
		if err != nil {
			return err
		}
		if fresh, err := result.RowsAffected(); err != nil || fresh > 0 {
			return cmp.Or(err, errOnlyLooked)
		}
		return tx.QueryRowContext(ctx, s.sql.applied, c.ID).Scan(&applied)
	})
	if err != nil && !errors.Is(err, errOnlyLooked) {
		return false, fmt.Errorf("look up parked message %d in the inbox: %w", c.ID, err)
	}
	return applied, nil
}

// errOnlyLooked rolls back what was written to see whether it could be.
var errOnlyLooked = errors.New("only looked")

// Extend renews the leases of claims that are still being handled.
func (s *Store) Extend(ctx context.Context, lease time.Duration, claims []*Claim) error {
	byToken := map[string][]int64{}
	for _, c := range claims {
		if !c.Settled() {
			byToken[c.Token] = append(byToken[c.Token], c.ID)
		}
	}
	if len(byToken) == 0 {
		return nil
	}
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		for token, ids := range byToken {
			if _, err := tx.ExecContext(ctx, s.sql.extend, s.dialect.List(ids), token, lease.Milliseconds()); err != nil {
				return err
			}
			failpoint.Hit("parked/extended")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("extend leases of parked messages: %w", err)
	}
	return nil
}

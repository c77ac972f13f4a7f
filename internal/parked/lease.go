package parked

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/watermill-once/once/internal/dialect"
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
	Size     int  // of the envelope, in bytes
	Keep     bool // the row, when the message was handled

	// Key is the ordering key of which the message is the head, if of any, and
	// Order what happens to the key if it fails.
	Key   Key
	Order KeyOrder

	// Turn is whose it was to be claimed.
	Turn Turn

	// Waited is since when the message is known to have come before its turn; 0
	// if it is not.
	Waited time.Duration

	age     time.Duration // of the row when it was claimed
	claimed time.Time
	until   atomic.Pointer[time.Time]
	settled atomic.Bool
	managed atomic.Bool
	handled atomic.Bool
}

// Age returns how long the row has been there: by the database's clock until it
// was claimed, and by this process's from then on.
func (c *Claim) Age() time.Duration { return c.age + time.Since(c.claimed) }

// Held says whether the lease holds for certain: it began no earlier than this
// process asked for it. Once it has ended others may have claimed the row, or
// given the message up, and nothing is to be begun for it.
func (c *Claim) Held() bool {
	until := c.until.Load()
	return until != nil && time.Now().Before(*until)
}

// hold has the lease hold for that long from the time when it was asked for.
func (c *Claim) hold(asked time.Time, lease time.Duration) {
	until := asked.Add(lease)
	c.until.Store(&until)
}

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

// Extend renews the leases of claims that are still being handled, but of those
// that others have taken or are at.
func (s *Store) Extend(ctx context.Context, lease time.Duration, claims []*Claim) error {
	type row struct { // may have been claimed anew, and its first claim not be let go of yet
		token string
		id    int64
	}
	byToken, byRow := map[string][]int64{}, make(map[row]*Claim, len(claims))
	for _, c := range claims {
		if !c.Settled() {
			byToken[c.Token] = append(byToken[c.Token], c.ID)
			byRow[row{c.Token, c.ID}] = c
		}
	}
	if len(byToken) == 0 {
		return nil
	}
	var renewed []*Claim
	asked := time.Now()
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		for token, ids := range byToken {
			err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
				var id int64
				err := scan(&id)
				renewed = append(renewed, byRow[row{token, id}])
				return err
			}, s.sql.extend, s.dialect.List(ids), token, lease.Milliseconds())
			if err != nil {
				return err
			}
			failpoint.Hit("parked/extended")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("extend leases of parked messages: %w", err)
	}
	for _, c := range renewed {
		c.hold(asked, lease)
	}
	return nil
}

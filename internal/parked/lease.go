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
	Rounds   int // rounds of the retry policy before this claim
	Crashes  int // includes this claim until it is settled
	Replays  int
	Size     int  // of the envelope, in bytes
	Keep     bool // keep the row if the message is handled

	// Key is the ordering key whose head is the message. It is the zero value if
	// the message has no key or the consumer keeps no order. Order says what
	// happens to the key if the message fails.
	Key   Key
	Order KeyOrder

	// Turn is the priority class and the tenant of the row.
	Turn TenantTurn

	// Waited is the time since ParkEarly parked the message first; 0 if it was not
	// early.
	Waited time.Duration

	age     time.Duration // of the row when it was claimed
	claimed time.Time
	until   atomic.Pointer[time.Time]
	settled atomic.Bool
	managed atomic.Bool
	handled atomic.Bool
}

// Age returns how long the row has been in the table: by the database's clock until
// the claim, and by the clock of this process since then.
func (c *Claim) Age() time.Duration { return c.age + time.Since(c.claimed) }

// Leased reports whether the lease still lasts for certain. This process measures
// it from the moment before it asked for the lease, so it ends here no later than
// in the database. After its end another process may have claimed the row, or given
// up on the message, so no work may begin for the message.
func (c *Claim) Leased() bool {
	until := c.until.Load()
	return until != nil && time.Now().Before(*until)
}

// setLease sets the end of a lease that this process asked for at that time.
func (c *Claim) setLease(asked time.Time, lease time.Duration) {
	until := asked.Add(lease)
	c.until.Store(&until)
}

// Manage notes that a middleware settles the row. Then an ack alone does not mean
// that the message was handled.
func (c *Claim) Manage() { c.managed.Store(true) }

// Managed reports whether Manage was called.
func (c *Claim) Managed() bool { return c.managed.Load() }

// Handle notes that the message was handled, so that the row must be resolved.
func (c *Claim) Handle() { c.handled.Store(true) }

// Handled reports whether Handle was called.
func (c *Claim) Handled() bool { return c.handled.Load() }

// Settled reports whether this process has settled the row under this claim.
func (c *Claim) Settled() bool { return c.settled.Load() }

// Extend renews the leases of claims that are not settled. It skips a row that
// another process has claimed, or that is being settled.
func (s *Store) Extend(ctx context.Context, lease time.Duration, claims []*Claim) error {
	type row struct { // this process may have two claims of one row, if the lease of the first has ended
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
		c.setLease(asked, lease)
	}
	return nil
}

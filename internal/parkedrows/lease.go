package parkedrows

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
	Attempts int // number of calls of the handler before this claim
	Rounds   int // number of rounds of the retry policy before this claim
	Crashes  int // crash count; includes this claim until the claim is settled
	Replays  int
	Size     int  // size of the envelope in bytes
	Keep     bool // keep the row after the message is handled

	// Key is the ordering key of the message if the message is the head of the key. It is
	// the zero value if the message has no key, or if the consumer does not keep the order
	// of keys. Order says what happens to the key when the message fails.
	Key   Key
	Order KeyOrder

	Turn TenantTurn

	// Waited is the time since ParkEarly first parked the message, or 0 if it never did.
	Waited time.Duration

	age     time.Duration // age of the row when it was claimed
	claimed time.Time
	until   atomic.Pointer[time.Time]
	settled atomic.Bool
	partly  bool // settled by a call that must be repeated for other claims
	managed atomic.Bool
	handled atomic.Bool
}

// Age returns how long the row has been in the table. The database measured the time until the
// claim, this process measures the time after it.
func (c *Claim) Age() time.Duration { return c.age + time.Since(c.claimed) }

// Leased reports whether the lease certainly still lasts. If not, another process may have claimed
// the row, so do not begin any work for the message. This process counts the lease from before it
// asked for it, so it never ends later here than in the database.
func (c *Claim) Leased() bool {
	until := c.until.Load()
	return until != nil && time.Now().Before(*until)
}

func (c *Claim) setLease(asked time.Time, lease time.Duration) {
	until := asked.Add(lease)
	c.until.Store(&until)
}

// Manage records that a middleware settles the row: an ack alone no longer means that the message
// was handled.
func (c *Claim) Manage() { c.managed.Store(true) }

// Managed reports whether Manage was called.
func (c *Claim) Managed() bool { return c.managed.Load() }

// Handle records that the message was handled, so that its row can be resolved.
func (c *Claim) Handle() { c.handled.Store(true) }

// Handled reports whether Handle was called.
func (c *Claim) Handled() bool { return c.handled.Load() }

// Settled reports whether this process has settled the row with this claim.
func (c *Claim) Settled() bool { return c.settled.Load() }

// Extend renews the leases of the claims, except settled and lost ones and those that are being
// settled.
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

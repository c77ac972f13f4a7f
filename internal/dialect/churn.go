package dialect

import (
	"database/sql"
	"sync/atomic"
)

// Churn finds out whether a pool closes its connections as soon as they are
// free. database/sql does so with all but two unless it is told otherwise, and
// then most transactions wait until a server has started a process for them.
type Churn struct {
	uses   atomic.Int64
	closed atomic.Int64 // by the pool, when it was looked at
	said   atomic.Bool
}

// A pool is looked at after so many transactions. What it closes after a burst
// of a service's own is fewer.
const (
	usesOfLook  = 500
	closedOfBad = usesOfLook / 5
)

// Used counts a transaction. It returns true, once at most, if the pool closed
// connections during the last of them.
func (c *Churn) Used(db *sql.DB) bool {
	n := c.uses.Add(1)
	if n%usesOfLook != 1 {
		return false
	}
	closed := db.Stats().MaxIdleClosed
	before := c.closed.Swap(closed)
	return n > 1 && closed-before >= closedOfBad && !c.said.Swap(true)
}

package dialect

import (
	"database/sql"
	"sync/atomic"
)

// Churn detects a pool that closes most connections after each use. By default
// database/sql keeps only two idle connections. With more concurrent transactions, most
// of the transactions wait until the server has started a process for a new connection.
type Churn struct {
	uses     atomic.Int64
	closed   atomic.Int64 // number of closed connections at the last check
	reported atomic.Bool
}

// Churn checks the pool every lookEvery transactions. It reports a pool that has closed
// closedLimit connections since the last check. A short burst of load closes fewer
// connections.
const (
	lookEvery   = 500
	closedLimit = lookEvery / 5
)

// Used counts a transaction. It returns true, once, if the pool has closed many
// connections recently.
func (c *Churn) Used(db *sql.DB) bool {
	n := c.uses.Add(1)
	if n%lookEvery != 1 {
		return false
	}
	closed := db.Stats().MaxIdleClosed
	before := c.closed.Swap(closed)
	return n > 1 && closed-before >= closedLimit && !c.reported.Swap(true)
}

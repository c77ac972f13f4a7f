package telemetry

import (
	"context"
	"sync"
	"time"
)

const (
	// statsAge is the maximum age of a result that Get returns again without a query. So
	// the number of queries does not depend on the number of metric readers.
	statsAge = 2 * time.Second

	// statsTimeout is the timeout of the query. It is short because metric readers wait for
	// the query.
	statsTimeout = 2 * time.Second
)

// StatsCache caches the result of a query for observable metrics. The zero value is
// ready for use.
type StatsCache[T any] struct {
	mu      sync.Mutex
	expires time.Time
	stats   T
	ok      bool
	failed  bool // whether the last query failed and the failure was logged
}

// Get returns a result of the function query that is at most two seconds old. If the
// query fails, Get returns false, because an old value would hide the failure. Get
// calls logError only for the first of consecutive failures.
func (c *StatsCache[T]) Get(
	ctx context.Context, query func(ctx context.Context) (T, error), logError func(err error),
) (stats T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.expires) {
		return c.stats, c.ok
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var err error
	c.stats, err = query(ctx)
	c.ok = err == nil
	c.expires = time.Now().Add(statsAge)
	if err != nil && !c.failed {
		logError(err)
	}
	c.failed = err != nil
	return c.stats, c.ok
}

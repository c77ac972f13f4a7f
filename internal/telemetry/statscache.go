package telemetry

import (
	"context"
	"sync"
	"time"
)

const (
	// statsAge is the age up to which a result is used again, however many metric
	// readers ask.
	statsAge = 2 * time.Second

	// statsTimeout bounds the query, because metric readers wait for it.
	statsTimeout = 2 * time.Second
)

// StatsCache caches bounded stats of the tables for observable metrics. The
// zero value is ready for use.
type StatsCache[T any] struct {
	mu      sync.Mutex
	expires time.Time
	stats   T
	ok      bool
	failed  bool // and the failure was logged
}

// Get returns the result of query, at most two seconds old. It returns false if
// the query fails: an old value would hide the failure. Get calls logError for
// the first of several failures.
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

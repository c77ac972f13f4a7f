package telemetry

import (
	"context"
	"sync"
	"time"
)

const (
	// lookEvery is how often the tables are asked at most, however many look.
	lookEvery = 2 * time.Second

	// lookFor is how long those who look may have to wait for the tables.
	lookFor = 2 * time.Second
)

// Glance is what was seen of the tables last, for instruments that are observed.
// The zero value is ready for use.
type Glance[T any] struct {
	mu     sync.Mutex
	next   time.Time
	seen   T
	ok     bool
	failed bool // and that was told
}

// Look returns what ask has seen, now or a moment ago. It returns nothing if the
// database does not answer: an old value would say that all is well. That is
// told once, until there is an answer again.
func (g *Glance[T]) Look(ctx context.Context, ask func(ctx context.Context) (T, error), tell func(err error)) (seen T, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Now().Before(g.next) {
		return g.seen, g.ok
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var err error
	g.seen, err = ask(ctx)
	g.ok = err == nil
	g.next = time.Now().Add(lookEvery)
	if err != nil && !g.failed {
		tell(err)
	}
	g.failed = err != nil
	return g.seen, g.ok
}

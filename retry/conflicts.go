package retry

import (
	"sync"
	"time"
)

// conflicts remembers since when other transactions have made the calls of a message fail.
// Otherwise a message would be tried forever if a middleware such as Watermill's Timeout ends each
// delivery before Config.UnackedWait. Each process remembers its own calls.
type conflicts struct {
	mu    sync.Mutex
	spans map[conflicting]span
}

type conflicting struct{ consumer, message string }

type span struct{ first, last time.Time }

// maxConflicts limits the memory.
const maxConflicts = 10_000

// since records a conflict, and returns when the conflicts of the message began: at began, unless
// an earlier delivery had a conflict within the time forget.
func (c *conflicts) since(consumer, message string, began time.Time, forget time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spans == nil || len(c.spans) >= maxConflicts {
		c.spans = map[conflicting]span{}
	}
	now, key := time.Now(), conflicting{consumer, message}
	s, known := c.spans[key]
	if !known || now.Sub(s.last) > forget {
		s.first = began
	}
	s.last = now
	c.spans[key] = s
	return s.first
}

func (c *conflicts) end(consumer, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.spans, conflicting{consumer, message})
}

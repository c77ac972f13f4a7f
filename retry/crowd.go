package retry

import (
	"sync"
	"time"
)

// inProcess is what this process has in hand. When it ends, every row of that
// is charged with a crash, whatever subscription claimed it. So a suspect runs
// while nothing else that is parked does.
var inProcess crowd

// patience is how long all others make room for a suspect, and for how long it
// runs alone. A handler that does not return, its own or theirs, must not stop
// the process for good, so then they go on; and make room again every so often,
// or in a process that is never idle the suspect would not have its turn.
const (
	patience  = 30 * time.Second
	roomEvery = 10 * patience
)

// crowd counts parked messages in hand, or about to be claimed.
type crowd struct {
	mu     sync.Mutex
	inHand int
	alone  bool      // what is in hand is a suspect
	asking int       // subscriptions that have one
	since  time.Time // when they began to wait, or got their turn
	wake   func()    // the one that asked last
}

// ask makes room for a suspect; wake is called when it may be there.
func (c *crowd) ask(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking == 0 {
		c.since = time.Now()
	}
	c.asking++
	c.wake = wake
}

// withdraw ends an ask.
func (c *crowd) withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking--
}

// join takes n messages in hand that are no crashed, or is refused.
func (c *crowd) join(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (c.alone || c.asking > 0) && time.Since(c.since)%roomEvery < patience {
		return false
	}
	c.inHand += n
	return true
}

// isolate takes a suspect in hand, or is refused.
func (c *crowd) isolate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inHand > 0 {
		return false
	}
	c.inHand, c.alone, c.since = 1, true, time.Now()
	return true
}

// leave takes n messages out of hand.
func (c *crowd) leave(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inHand -= n
	if c.inHand > 0 || n == 0 {
		return
	}
	c.alone = false
	if c.asking > 0 {
		c.wake()
	}
}

package oncetest

import (
	"strings"
	"sync"
)

// call is one of two calls of a service that run at once. It stands still behind
// one of its statements that publish, until it is told to go on. A nil call does
// not.
type call struct {
	insert string // is in a statement that publishes
	stopAt int    // behind which of them it stands still, from 1; 0 for none

	stopped chan struct{} // closed when it stands still
	goOn    chan struct{} // closed when it may go on

	mu        sync.Mutex
	published int // statements that publish
	stopping  bool
	last      string   // the statement that came last
	after     []string // statements behind the one where it stood still
}

func newCall(table string, stopAt int) *call {
	return &call{insert: "INTO " + table, stopAt: stopAt, stopped: make(chan struct{}), goOn: make(chan struct{})}
}

// statement is called before each statement.
func (c *call) statement(sql string) {
	if c == nil {
		return
	}
	c.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = sql
	if c.stopping {
		c.after = append(c.after, sql)
	}
	if strings.Contains(sql, c.insert) {
		c.published++
	}
}

// notCarriedOut takes a statement back that the driver wants in another way.
func (c *call) notCarriedOut() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.Contains(c.last, c.insert) {
		c.published--
	}
	if n := len(c.after); n > 0 {
		c.after = c.after[:n-1]
	}
}

// commit is called before each commit.
func (c *call) commit() {
	if c != nil {
		c.wait()
	}
}

// wait stands still if the statement before was the one.
func (c *call) wait() {
	c.mu.Lock()
	here := !c.stopping && c.stopAt > 0 && c.published == c.stopAt
	c.stopping = c.stopping || here
	c.mu.Unlock()
	if here {
		close(c.stopped)
		<-c.goOn
	}
}

// afterwards returns what it did behind the place where it stood still.
func (c *call) afterwards() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.after
}

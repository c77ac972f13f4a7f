package oncetest

import (
	"strings"
	"sync"
)

// call is one of two concurrent calls of a service. The call pauses after one of its
// statements that publish events, until the channel resume is closed. These statements
// contain the text in the field insert. A nil call does not pause.
type call struct {
	insert     string // text that every statement that publishes contains
	pauseAfter int    // number of statements that publish, after which the call pauses; 0 means never

	paused chan struct{} // closed when the call pauses
	resume chan struct{} // closed to let the call continue

	mu         sync.Mutex
	published  int // number of statements that have published so far
	hasPaused  bool
	last       string   // the latest statement
	statements []string // statements after the pause
}

func newCall(table string, pauseAfter int) *call {
	return &call{insert: "INTO " + table, pauseAfter: pauseAfter, paused: make(chan struct{}), resume: make(chan struct{})}
}

// statement is called before each statement of the call.
func (c *call) statement(sql string) {
	if c == nil {
		return
	}
	c.pauseIfDue()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = sql
	if c.hasPaused {
		c.statements = append(c.statements, sql)
	}
	if strings.Contains(sql, c.insert) {
		c.published++
	}
}

// undo forgets the latest statement, because the driver returned driver.ErrSkip and did
// not run it. database/sql then prepares the statement and runs it again.
func (c *call) undo() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.Contains(c.last, c.insert) {
		c.published--
	}
	if n := len(c.statements); n > 0 {
		c.statements = c.statements[:n-1]
	}
}

// commit is called before each commit of the call. If the pause is due, it pauses the
// call.
func (c *call) commit() {
	if c != nil {
		c.pauseIfDue()
	}
}

// pauseIfDue pauses the call if pauseAfter of its statements have published, and the call
// has not paused yet. It returns when resume is closed.
func (c *call) pauseIfDue() {
	c.mu.Lock()
	due := !c.hasPaused && c.pauseAfter > 0 && c.published == c.pauseAfter
	c.hasPaused = c.hasPaused || due
	c.mu.Unlock()
	if due {
		close(c.paused)
		<-c.resume
	}
}

// statementsAfterPause returns the statements of the call after its pause.
func (c *call) statementsAfterPause() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statements
}

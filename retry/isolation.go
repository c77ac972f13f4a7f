package retry

import (
	"sync"
	"time"
)

// processGate is the isolation gate of this process. When the process dies,
// every row that it has claimed is charged with a crash, whichever subscription
// claimed it. So a message with crashes runs while no other parked message does.
var processGate isolationGate

// isolationTime bounds how long all other messages wait for a crashed message,
// and how long the crashed message runs alone. A handler that never returns must
// not stop the process: afterwards the other messages continue. They wait again
// every isolationEvery; otherwise a crashed message would never run in a process
// that is never idle.
const (
	isolationTime  = 30 * time.Second
	isolationEvery = 10 * isolationTime
)

// isolationGate lets a message with crashes run alone. It counts the parked
// messages that are claimed or about to be claimed.
type isolationGate struct {
	mu       sync.Mutex
	inFlight int
	isolated bool      // the one in flight is a crashed message
	waiting  int       // subscriptions that wait to run a crashed message
	since    time.Time // when the first of them began to wait, or the crashed message started
	wake     func()    // wakes the subscription that asked last
}

// request asks all others to make room for a crashed message. wake is called
// when nothing is in flight any more.
func (g *isolationGate) request(wake func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == 0 {
		g.since = time.Now()
	}
	g.waiting++
	g.wake = wake
}

// withdraw ends a request.
func (g *isolationGate) withdraw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
}

// enter admits n messages without crashes, or returns false.
func (g *isolationGate) enter(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.isolated || g.waiting > 0) && time.Since(g.since)%isolationEvery < isolationTime {
		return false
	}
	g.inFlight += n
	return true
}

// enterAlone admits a crashed message, or returns false if others are in flight.
func (g *isolationGate) enterAlone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight > 0 {
		return false
	}
	g.inFlight, g.isolated, g.since = 1, true, time.Now()
	return true
}

// leave removes n messages.
func (g *isolationGate) leave(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight -= n
	if g.inFlight > 0 || n == 0 {
		return
	}
	g.isolated = false
	if g.waiting > 0 {
		g.wake()
	}
}

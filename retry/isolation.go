package retry

import (
	"sync"
	"time"
)

// processGate is the isolation gate of this process. If the process dies, a crash is
// counted for every row that it has claimed, by whichever subscription. So a message
// with crashes runs only while no other parked message runs.
var processGate isolationGate

// isolationTime limits how long all other messages wait for a crashed message, and how
// long the crashed message runs by itself. A handler that never returns must not stop
// the process, so after this time the other messages continue. They wait again every
// isolationEvery. Otherwise a crashed message would never run in a process that always
// has other messages.
const (
	isolationTime  = 30 * time.Second
	isolationEvery = 10 * isolationTime
)

// isolationGate makes sure that a message with crashes runs by itself. It counts the
// parked messages that are claimed or about to be claimed.
type isolationGate struct {
	mu       sync.Mutex
	inFlight int
	isolated bool      // the message in flight is a crashed message
	waiting  int       // number of subscriptions that wait to run a crashed message
	since    time.Time // when the first of them began to wait, or when the crashed message started
	wake     func()    // wakes the subscription that made the latest request
}

// request keeps other messages out, so that a crashed message can run by itself. wake
// is called when nothing is in flight any more.
func (g *isolationGate) request(wake func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == 0 {
		g.since = time.Now()
	}
	g.waiting++
	g.wake = wake
}

// withdraw ends one request. It must be called once for each call of request, when the
// crashed message has entered or need not run any more.
func (g *isolationGate) withdraw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
}

// enter admits n messages without crashes. It returns false if they must wait.
func (g *isolationGate) enter(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.isolated || g.waiting > 0) && time.Since(g.since)%isolationEvery < isolationTime {
		return false
	}
	g.inFlight += n
	return true
}

// enterAlone admits a crashed message. It returns false if other messages are in
// flight.
func (g *isolationGate) enterAlone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight > 0 {
		return false
	}
	g.inFlight, g.isolated, g.since = 1, true, time.Now()
	return true
}

// leave must be called when n messages are not in flight any more.
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

package retry

import (
	"sync"
	"time"
)

// processGate is the isolation gate of this process. If the process dies, a crash is counted for
// every row that it has claimed. So a message with crashes is handled only while no other parked
// message is.
var processGate isolationGate

// isolationTime is the maximum time for which other messages wait for a message with crashes, or
// while it is handled alone: a handler that never returns must not stop the process.
//
// After isolationEvery they wait again. Otherwise a message with crashes would never be handled in
// a busy process.
const (
	isolationTime  = 30 * time.Second
	isolationEvery = 10 * isolationTime
)

// isolationGate counts the parked messages that are claimed or about to be claimed.
type isolationGate struct {
	mu       sync.Mutex
	inFlight int
	isolated bool      // whether the message in flight is a crashed message
	waiting  int       // number of subscriptions that wait to handle a crashed message
	since    time.Time // when the first of these subscriptions began to wait, or when the crashed message started
	wake     func()    // wakes the subscription with the latest request
}

// request makes other messages wait. The gate calls wake when no message is in flight any more.
func (g *isolationGate) request(wake func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == 0 {
		g.since = time.Now()
	}
	g.waiting++
	g.wake = wake
}

// withdraw ends one request, when the crashed message is admitted, or need not be handled any more.
func (g *isolationGate) withdraw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
}

func (g *isolationGate) enter(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.isolated || g.waiting > 0) && time.Since(g.since)%isolationEvery < isolationTime {
		return false
	}
	g.inFlight += n
	return true
}

func (g *isolationGate) enterAlone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight > 0 {
		return false
	}
	g.inFlight, g.isolated, g.since = 1, true, time.Now()
	return true
}

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

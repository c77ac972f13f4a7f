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
	since    time.Time // when the first subscription in requests began to wait, or when the crashed message started
	requests wakers    // subscriptions that wait to handle a crashed message
	refused  wakers    // subscriptions whose other messages wait
}

// wakers are channels that wake subscriptions. They have room for one value.
type wakers map[chan<- struct{}]struct{}

func (w *wakers) add(wake chan<- struct{}) {
	if *w == nil {
		*w = wakers{}
	}
	(*w)[wake] = struct{}{}
}

func (w *wakers) wakeUp() {
	for wake := range *w {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// request makes other messages wait. The gate wakes the subscription when no message is in flight
// any more.
func (g *isolationGate) request(wake chan<- struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.requests) == 0 {
		g.since = time.Now()
	}
	g.requests.add(wake)
}

// withdraw ends a request, when the crashed message is admitted, or need not be handled any more.
func (g *isolationGate) withdraw(wake chan<- struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.requests, wake)
	g.wakeRefused()
}

// enter admits n messages, unless a crashed message is alone or waits for this. Then the gate wakes
// the subscription when they need not wait any more.
func (g *isolationGate) enter(n int, wake chan<- struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.isolated || len(g.requests) > 0) && time.Since(g.since)%isolationEvery < isolationTime {
		g.refused.add(wake)
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
	g.requests.wakeUp()
	g.wakeRefused()
}

func (g *isolationGate) wakeRefused() {
	if !g.isolated && len(g.requests) == 0 {
		g.refused.wakeUp()
		clear(g.refused)
	}
}

package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/fields"
)

// maxUndecided is the number of consecutive calls of a handler with an undecided
// outcome that count as one attempt. So no attempt is counted if the database restarts
// once or twice while a message is handled. But a message that ends its own database
// session each time is not tried forever.
const maxUndecided = 3

// undecidedTries counts consecutive tries of a message whose outcome is undecided.
type undecidedTries struct {
	since  time.Time // start of the first of these tries
	calls  int       // number of calls of the handler
	pauses int
	late   bool // whether the tries took longer than Config.UnackedWait, or the message's context has ended
	logged bool
}

// chargesUndecided counts a try with an undecided outcome, and reports whether an
// attempt must be counted. A try that did not call the handler never counts as an
// attempt, because the database was unreachable before the message could do anything.
// Other tries count in two cases:
//
//   - The try is the last of maxUndecided calls.
//   - After the call, Config.UnackedWait or the deadline of a middleware, such as
//     Watermill's Timeout, has passed. The message would then return to the broker,
//     and the count of its calls would begin again.
func (a *attempt) chargesUndecided(v *disposition.Error) bool {
	u := &a.undecided
	if u.since.IsZero() {
		u.since = time.Now()
	}
	// The time since u.since includes the tries, because a connection may take long to fail.
	u.late = a.ctx.Err() != nil || time.Since(u.since) > a.config.UnackedWait
	if v.NotCalled {
		return false
	}
	u.calls++
	a.failedBefore = true
	return u.calls >= maxUndecided || u.late
}

// undecidedPauses are the pauses after tries with an undecided outcome.
var undecidedPauses = backoff.Exponential{Base: 50 * time.Millisecond, Max: 5 * time.Second}

// waitUndecided pauses before the next try. It returns false if the message must return
// to the transport, because it is late or because the consumer shuts down.
func (a *attempt) waitUndecided(err error) bool {
	u := &a.undecided
	u.pauses++
	if u.late || !a.delivery.Sleep(a.ctx, undecidedPauses.Delay(u.pauses, 0)) {
		return false
	}
	if waited := time.Since(u.since); !u.logged && waited >= logUndecidedAfter {
		u.logged = true
		a.config.Logger.Error("Message is held: the outcome of its attempt is unknown", err,
			fields.Message(a.original.UUID, a.original.Metadata, watermill.LogFields{
				"consumer": a.delivery.Consumer, "topic": a.delivery.Topic,
			}))
	}
	return true
}

// logUndecidedAfter is how long a wait must last before it is logged. A short wait is
// normal, because another process is often handling a copy of the message. A long wait
// may mean that the database is unreachable, or refuses this process.
const logUndecidedAfter = time.Second

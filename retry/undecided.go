package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/fields"
)

// maxUndecided is how many consecutive calls of a handler may have an undecided outcome
// before one attempt is counted. So no attempt is counted if the database restarts once
// or twice while a message is handled. But a message that ends its own database session
// each time is not tried without end.
const maxUndecided = 3

// undecidedTries counts the consecutive tries of a message with an undecided outcome.
type undecidedTries struct {
	since  time.Time // start of the first of these tries
	calls  int       // number of calls of the handler
	pauses int
	late   bool // the tries took longer than Config.UnackedWait, or the message's context has ended
	logged bool
}

// chargesUndecided counts a try with an undecided outcome, and reports whether it
// counts as an attempt. If the try did not call the handler, it never counts, because
// the database was unreachable before the message could do anything. Otherwise the last
// of maxUndecided calls counts, and also a call after which Config.UnackedWait has
// passed, or the deadline of a middleware such as Watermill's Timeout: otherwise the
// message would return to the broker, and its count would begin again.
func (a *attempt) chargesUndecided(v *disposition.Error) bool {
	u := &a.undecided
	if u.since.IsZero() {
		u.since = time.Now()
	}
	u.late = a.ctx.Err() != nil || time.Since(u.since) > a.config.UnackedWait // includes the tries, because a connection may take long to fail
	if v.NotCalled {
		return false
	}
	u.calls++
	a.failedBefore = true
	return u.calls >= maxUndecided || u.late
}

// undecidedPauses determines the pauses after tries with an undecided outcome.
var undecidedPauses = backoff.Exponential{Base: 50 * time.Millisecond, Max: 5 * time.Second}

// waitUndecided pauses before the next try. It returns false if the message must return
// to the transport, because it is late or the consumer shuts down.
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

// logUndecidedAfter is the delay before the wait is logged. A short wait is normal:
// usually another process is handling a copy of the message. If the wait is long, the
// database may be unreachable, or may refuse this process.
const logUndecidedAfter = time.Second

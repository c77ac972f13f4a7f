package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/disposition"
)

// maxUndecided is how many consecutive calls of a handler may end undecided
// before one attempt is charged. So a database that restarts once or twice while
// a message is handled costs no attempt, and a message that ends its own database
// session each time is not tried for ever.
const maxUndecided = 3

// undecidedTries counts the consecutive tries of a message that ended undecided.
type undecidedTries struct {
	since  time.Time // start of the first try
	calls  int       // of the handler
	pauses int
	late   bool // the tries took longer than Config.UnackedWait
	logged bool
}

// chargesUndecided counts a try that ended undecided, and reports whether the
// message is charged with an attempt. A try that did not call the handler is
// never charged: the database was unreachable before the message could do
// anything. Otherwise the last of maxUndecided calls is charged. So is a call
// after which Config.UnackedWait is over: without the charge the message would
// return to the broker and its count would begin anew.
func (a *attempt) chargesUndecided(v *disposition.Error) bool {
	u := &a.undecided
	if u.since.IsZero() {
		u.since = time.Now()
	}
	u.late = time.Since(u.since) > a.config.UnackedWait // includes the tries: a connection may take long to fail
	if v.NotCalled {
		return false
	}
	u.calls++
	a.failedBefore = true
	return u.calls >= maxUndecided || u.late
}

// undecidedPauses computes the pauses after tries that ended undecided.
var undecidedPauses = backoff.Exponential{Base: 50 * time.Millisecond, Max: 5 * time.Second}

// waitUndecided pauses before the next try. It returns false if the message must
// return to the transport, because Config.UnackedWait is over or the consumer
// shuts down.
func (a *attempt) waitUndecided(err error) bool {
	u := &a.undecided
	u.pauses++
	if u.late || !a.delivery.Sleep(a.ctx, undecidedPauses.Delay(u.pauses, 0)) {
		return false
	}
	if waited := time.Since(u.since); !u.logged && waited >= logUndecidedAfter {
		u.logged = true
		a.config.Logger.Error("Message is held: the outcome of its attempt is unknown", err, watermill.LogFields{
			"message_uuid": a.original.UUID, "consumer": a.delivery.Consumer, "topic": a.delivery.Topic,
		})
	}
	return true
}

// logUndecidedAfter delays the log line. A short wait is normal: usually another
// process handles a copy of the message. After a long wait the database may be
// unreachable, or refuse this process.
const logUndecidedAfter = time.Second

package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/disposition"
)

// mostUndecided is how many calls of a handler in a row may end undecided before
// an attempt is charged. A database that restarts once or twice while a message
// is handled costs no attempt; a message that ends its own session each time is
// not handled for ever.
const mostUndecided = 3

// undecidedTries are the tries of a message, one after another, that ended
// undecided.
type undecidedTries struct {
	since time.Time     // the first of them
	calls int           // of the handler
	pause time.Duration // before the next
	late  bool          // they took longer than Config.UnackedWait
	told  bool          // to the logger
}

// blames adds a try that ended undecided, and reports whether an attempt is
// charged for it. A try that did not call the handler is never charged: the
// database was away before the message could do anything. Of the others the
// last is, or the one after which the message would be handed back: it would
// begin anew elsewhere.
func (a *attempt) blames(v *disposition.Error) bool {
	u := &a.undecided
	if u.since.IsZero() {
		u.since = time.Now()
	}
	u.late = time.Since(u.since) > a.config.UnackedWait // the tries too: a database may take long to say that it is not there
	if v.NotCalled {
		return false
	}
	u.calls++
	a.suspect = true
	return u.calls >= mostUndecided || u.late
}

// Pauses after tries that ended undecided.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// holds waits for the next try. It returns false if the message has to be
// handed back: Config.UnackedWait is over, or the consumer is shutting down.
func (a *attempt) holds(err error) bool {
	u := &a.undecided
	u.pause = max(firstPause, min(2*u.pause, lastPause))
	if u.late || !a.delivery.Sleep(a.ctx, u.pause) {
		return false
	}
	if held := time.Since(u.since); !u.told && held >= tellHeld {
		u.told = true
		a.config.Logger.Error("Message is held: what becomes of it cannot be decided", err, watermill.LogFields{
			"message_uuid": a.original.UUID, "consumer": a.delivery.Consumer, "topic": a.delivery.Topic,
		})
	}
	return true
}

// tellHeld is for how long nobody is told that a message is held: mostly another
// copy of it is under way. Longer, and the database may be away, or refuse us.
const tellHeld = time.Second

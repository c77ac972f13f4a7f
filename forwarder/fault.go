package forwarder

import (
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// fault is the state of one kind of work that may fail and is then tried again.
type fault struct {
	attempts int
	logged   bool
	until    time.Time // the work is not tried before this time
}

// workTexts are the log messages for work that fails, and for work that succeeds again.
type workTexts struct{ failed, worked string }

var (
	leaseTexts     = workTexts{"The lease could not be renewed, trying again", "The lease could be renewed again"}
	retentionTexts = workTexts{
		"What was sent long ago could not be deleted, trying again", "What was sent long ago could be deleted again",
	}
)

// failed records a failure. It logs only the first one. A failure because another
// transaction was in the way also leads to a pause, but is not logged.
func (f *fault) failed(l *loop, texts workTexts, err error) {
	if !f.logged && !dialect.Contended(err) {
		f.logged = true
		l.config.Logger.Error(texts.failed, err, nil)
	}
	f.attempts++
	f.until = time.Now().Add(jitter(pauses(f.attempts)))
}

// worked records a success. It returns true if there were failures before, and logs the
// success if a failure was logged.
func (f *fault) worked(l *loop, texts workTexts) (again bool) {
	again = f.attempts > 0
	if f.logged {
		l.config.Logger.Info(texts.worked, nil)
	}
	*f = fault{}
	return again
}

// waits reports whether the work must still wait. If so, it also wakes the loop at the
// end of the wait.
func (f *fault) waits(l *loop, now time.Time) bool {
	if now.Before(f.until) {
		l.wake(f.until)
		return true
	}
	return false
}

package forwarder

import (
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// fault is the state of one kind of work that may fail.
type fault struct {
	attempts int
	logged   bool
	until    time.Time // the work is not tried before
}

// workTexts are the log lines of work that fails, and that works again.
type workTexts struct{ failed, worked string }

var (
	leaseTexts     = workTexts{"The lease could not be renewed, trying again", "The lease could be renewed again"}
	retentionTexts = workTexts{
		"What was sent long ago could not be deleted, trying again", "What was sent long ago could be deleted again",
	}
)

// failed notes a failure and logs the first one. Contention also backs off, but
// is not logged.
func (f *fault) failed(l *loop, texts workTexts, err error) {
	if !f.logged && !dialect.Contended(err) {
		f.logged = true
		l.config.Logger.Error(texts.failed, err, nil)
	}
	f.attempts++
	f.until = time.Now().Add(jitter(pauses(f.attempts)))
}

// worked notes a success. It returns true after failures, and logs the success
// if a failure was logged.
func (f *fault) worked(l *loop, texts workTexts) (again bool) {
	again = f.attempts > 0
	if f.logged {
		l.config.Logger.Info(texts.worked, nil)
	}
	*f = fault{}
	return again
}

// waits reports whether the work must wait, and wakes the loop when the wait is
// over.
func (f *fault) waits(l *loop, now time.Time) bool {
	if now.Before(f.until) {
		l.wake(f.until)
		return true
	}
	return false
}

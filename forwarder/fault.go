package forwarder

import (
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// fault is the state of one kind of work that is tried again when it fails.
type fault struct {
	attempts int
	logged   bool
	until    time.Time // the work is not tried again before this time
}

// workTexts are the log messages for work that fails, and for work that succeeds again.
type workTexts struct{ failed, worked string }

var (
	leaseTexts     = workTexts{"The lease could not be renewed, trying again", "The lease could be renewed again"}
	retentionTexts = workTexts{
		"What was sent long ago could not be deleted, trying again", "What was sent long ago could be deleted again",
	}
)

// failed records a failure, and makes the work wait before it is tried again. Only the
// first failure is logged. A failure is not logged at all if its only cause is another
// transaction, for example a deadlock.
func (f *fault) failed(l *loop, texts workTexts, err error) {
	if !f.logged && !dialect.Contended(err) {
		f.logged = true
		l.config.Logger.Error(texts.failed, err, nil)
	}
	f.attempts++
	f.until = time.Now().Add(jitter(pauses(f.attempts)))
}

// worked records a success. It returns true if the work had failed before. If a failure
// was logged, worked logs the success.
func (f *fault) worked(l *loop, texts workTexts) (again bool) {
	again = f.attempts > 0
	if f.logged {
		l.config.Logger.Info(texts.worked, nil)
	}
	*f = fault{}
	return again
}

// waits reports whether the work must wait because of a failure. If so, it also makes
// the loop wake up at the end of the wait.
func (f *fault) waits(l *loop, now time.Time) bool {
	if now.Before(f.until) {
		l.wake(f.until)
		return true
	}
	return false
}

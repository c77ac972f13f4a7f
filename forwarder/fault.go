package forwarder

import (
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// fault is the state of one kind of work that may fail.
type fault struct {
	attempts int
	told     bool
	until    time.Time // not to be tried again before
}

// failed notes a failure and says so once. Giving way to other work is none,
// and may come before one.
func (f *fault) failed(l *loop, what string, err error) {
	if !f.told && !dialect.Contended(err) {
		f.told = true
		l.config.Logger.Error(what+", trying again", err, nil)
	}
	f.attempts++
	f.until = time.Now().Add(jitter(pauses(f.attempts)))
}

// worked notes a success, and returns true if there were failures before. It
// says so if they were told of.
func (f *fault) worked(l *loop, what string) (again bool) {
	again = f.attempts > 0
	if f.told {
		l.config.Logger.Info(what+" again", nil)
	}
	*f = fault{}
	return again
}

// waits says whether to wait, and has the loop look again afterwards.
func (f *fault) waits(l *loop, now time.Time) bool {
	if now.Before(f.until) {
		l.at(f.until)
		return true
	}
	return false
}

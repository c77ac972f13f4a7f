package retry

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// The pause after a try that ended undecided doubles, up to a bound: a database
// that is away for minutes is not asked twenty times a second, and one that is
// back is not waited for.
func TestThePauseAfterAnUndecidedTryDoubles(t *testing.T) {
	closing := make(chan struct{})
	close(closing) // nobody waits for the pauses
	a := &attempt{
		Retries:  &Retries{config: Config{Logger: watermill.NopLogger{}}},
		ctx:      t.Context(),
		delivery: &parked.Delivery{Closing: closing},
		original: message.NewMessage("m1", nil),
	}
	for try, want := range []time.Duration{
		50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		1600 * time.Millisecond, 3200 * time.Millisecond, 5 * time.Second, 5 * time.Second,
	} {
		a.holds(errors.New("undecided"))
		if got := a.undecided.pause; got != want {
			t.Errorf("the pause after try %d is %v, want %v", try+1, got, want)
		}
	}
}

package retry

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// The pause after an undecided try doubles up to a bound: a database that is
// unreachable for minutes gets few queries, and its return is noticed soon.
func TestPauseAfterUndecidedTryDoubles(t *testing.T) {
	closing := make(chan struct{})
	close(closing) // the test does not wait for the pauses
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
		a.waitUndecided(errors.New("undecided"))
		if got := undecidedPauses.Delay(a.undecided.pauses, 0); got != want {
			t.Errorf("the pause after try %d is %v, want %v", try+1, got, want)
		}
	}
}

package retry

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// The pauses must become longer, so that an unreachable database does not get twenty
// queries a second. But they must not become so long that the end of the outage is
// noticed late.
func TestPauseAfterUndecidedTryDoublesUpToFiveSeconds(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing) // ends each pause immediately
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

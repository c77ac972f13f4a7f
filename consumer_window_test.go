package once

import (
	"math"
	"testing"
	"time"

	"github.com/watermill-once/once/retry"
)

// Trap 79. If the message with the next version fails, messages with higher versions
// are held for longer than retry retries it.
func TestVersionsAreHeldForLongerThanRetryRetries(t *testing.T) {
	for name, c := range map[string]struct {
		retried, least, most time.Duration
	}{
		"the default": {retry.Config{}.LongestDelay(), 15 * time.Minute, 15 * time.Minute},
		"a day":       {24 * time.Hour, 25 * time.Hour, 30 * time.Hour},
		"for ever":    {math.MaxInt64, 30 * 24 * time.Hour, 60 * 24 * time.Hour},
	} {
		got := windowFor(c.retried)
		if got < c.least || got > c.most || name != "for ever" && got <= c.retried {
			t.Errorf("%s: window is %v, retries last %v", name, got, c.retried)
		}
	}
}

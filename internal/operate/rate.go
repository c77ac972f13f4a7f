package operate

import (
	"context"
	"time"
)

// Rate is a number of messages a second; 0 is no limit.
type Rate int

// Batch returns how many messages of most one transaction may have. With a rate
// it is at most a quarter of a second's, so that messages leave evenly.
func (r Rate) Batch(most int) int {
	if r == 0 {
		return most
	}
	return max(1, min(most, int(r)/4))
}

// Pause waits until n messages that began at that time have taken as long as the
// rate says. It returns the error of ctx when ctx ends.
func (r Rate) Pause(ctx context.Context, began time.Time, n int) error {
	if r == 0 {
		return ctx.Err()
	}
	wait := time.NewTimer(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(r))))
	defer wait.Stop()
	select {
	case <-wait.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

package operate

import (
	"context"
	"time"
)

// LongestWait is the longest time for which [Rate.Wait] waits: at the lowest rate, until
// the next message.
const LongestWait = time.Second

// Rate keeps a replay at a number of messages a second.
type Rate struct {
	perSecond int
	tokens    float64   // how many messages may leave,
	filledAt  time.Time // at this time
}

// NewRate returns a Rate under which one message may leave now. 0 is no limit.
func NewRate(perSecond int) *Rate {
	return &Rate{perSecond: perSecond, tokens: 1, filledAt: time.Now()}
}

// Room returns how many messages may leave now, at most most.
func (r *Rate) Room(most int) int {
	if r.perSecond == 0 {
		return most
	}
	rate, now := float64(r.perSecond), time.Now()
	// At most one second's worth: time that passed without messages is lost.
	r.tokens = min(r.tokens+rate*now.Sub(r.filledAt).Seconds(), rate)
	r.filledAt = now
	return int(min(float64(most), r.tokens)) // the rate may not fit into an int
}

// Took records that n messages left.
func (r *Rate) Took(n int) { r.tokens -= float64(n) }

// Wait waits until Room returns most, or a quarter of a second's worth if that is
// less, so that messages leave evenly. It returns the error of ctx when ctx ends.
func (r *Rate) Wait(ctx context.Context, most int) error {
	batch := max(1, min(most, r.perSecond/4))
	for r.Room(batch) < batch && r.perSecond > 0 {
		missing := float64(batch) - r.tokens
		wait := time.NewTimer(time.Duration(missing/float64(r.perSecond)*float64(time.Second)) + 1)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
	return ctx.Err()
}

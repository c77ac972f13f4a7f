package operate

import (
	"context"
	"time"
)

// LongestWait is the longest time for which [Rate.Wait] waits. It is the time between
// two messages at the lowest rate, which is one message per second.
const LongestWait = time.Second

// Rate limits the number of messages that a call replays, cancels or changes per
// second.
type Rate struct {
	perSecond int
	tokens    float64   // number of messages that may be changed at the time filledAt
	filledAt  time.Time // time at which tokens was last updated
}

// NewRate returns a Rate. The parameter perSecond is the number of messages that it
// allows per second; 0 means no limit. One message may be changed immediately.
func NewRate(perSecond int) *Rate {
	return &Rate{perSecond: perSecond, tokens: 1, filledAt: time.Now()}
}

// Room returns how many messages may be changed now. The result is at most the
// parameter limit.
func (r *Rate) Room(limit int) int {
	if r.perSecond == 0 {
		return limit
	}
	rate, now := float64(r.perSecond), time.Now()
	// Allow at most the messages of one second, because unused time is not saved.
	r.tokens = min(r.tokens+rate*now.Sub(r.filledAt).Seconds(), rate)
	r.filledAt = now
	return int(min(float64(limit), r.tokens)) // the rate may not fit into an int
}

// Took records that n messages were changed.
func (r *Rate) Took(n int) { r.tokens -= float64(n) }

// Wait waits until the rate allows a batch of messages. The parameter limit is the
// maximum size of a batch. A batch is also limited to the messages of a quarter of a
// second, so that the changes are spread evenly. If ctx ends first, Wait returns the
// error of ctx.
func (r *Rate) Wait(ctx context.Context, limit int) error {
	batch := max(1, min(limit, r.perSecond/4))
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

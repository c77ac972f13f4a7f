package parked

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/disposition"
)

// Patience is how a middleware keeps at something that must not be given up
// lightly, while the message stays with it, neither acked nor nacked. Handing
// it back at once would have the broker redeliver it thousands of times a
// second and use up the broker's own limit of deliveries.
type Patience struct {
	// UnackedWait is how long to keep on; then the message is handed back.
	UnackedWait time.Duration

	// OneTry is how long one try may take. 0 is half a minute.
	OneTry time.Duration

	Logger watermill.LoggerAdapter
}

// Pauses between two tries.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	oneTry     = 30 * time.Second
)

// Persist calls do until it returns no error, the consumer shuts down or the
// time to hold is over. do gets a context that outlives the message's. A claim
// that was lost ends it too: the row is someone else's by now.
func (p Patience) Persist(ctx context.Context, d *Delivery, what string, do func(ctx context.Context) error) error {
	deadline := time.Now().Add(p.UnackedWait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := p.try(ctx, do)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrClaimLost) {
			p.Logger.Info("The lease ran out before the message was settled; it is handled anew",
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": what})
			return nil
		}
		if pause == firstPause {
			p.Logger.Error("Cannot "+what+", holding the message until it works", err,
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic})
		}
		if time.Now().After(deadline) || !d.Sleep(ctx, pause) {
			return disposition.HandBack(fmt.Errorf("%s: %w", what, err))
		}
	}
}

func (p Patience) try(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(p.OneTry, oneTry))
	defer cancel()
	return do(ctx)
}

// Sleep waits for pause, or returns false if the consumer shuts down first.
func (d *Delivery) Sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.Closing:
		return false
	case <-ctx.Done():
		return false
	}
}

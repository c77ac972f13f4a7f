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

// Patience repeats a database operation that must succeed before a message may be
// acked. The message stays unacked meanwhile. Handing the message back at once
// would make the broker redeliver it thousands of times a second, and would use up
// the broker's own limit of deliveries.
type Patience struct {
	// UnackedWait is how long to repeat the operation; then the message is handed
	// back.
	UnackedWait time.Duration

	// OneTry is the timeout of one try. Defaults to 30 seconds.
	OneTry time.Duration

	Logger watermill.LoggerAdapter
}

// Pauses between two tries.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	oneTry     = 30 * time.Second
)

// Persist calls do until it succeeds, the consumer shuts down or UnackedWait is
// over; in the latter cases its error hands the message back. The context of do
// outlives that of the message. A lost claim also ends Persist, without an error:
// another process has the row now.
func (p Patience) Persist(ctx context.Context, d *Delivery, what string, do func(ctx context.Context) error) error {
	deadline := time.Now().Add(p.UnackedWait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := p.try(ctx, do)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrClaimLost) {
			p.Logger.Info("Lease ended before the message was settled; the message is handled again",
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": what})
			return nil
		}
		if pause == firstPause {
			p.Logger.Error("Message stays unacked while a step is tried again", err,
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": what})
		}
		if time.Now().After(deadline) || !d.Sleep(ctx, pause) {
			return disposition.Returned(fmt.Errorf("%s: %w", what, err))
		}
	}
}

func (p Patience) try(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(p.OneTry, oneTry))
	defer cancel()
	return do(ctx)
}

// Sleep waits for pause, or returns false if the consumer shuts down first. It does not
// return early when a deadline of a middleware passes: what must be stored for the
// message is stored nevertheless.
func (d *Delivery) Sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.Closing:
		return false
	case <-d.base(ctx).Done():
		return false
	}
}

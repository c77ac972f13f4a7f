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
// acked. The message stays unacked until then. If the message were handed back
// immediately, the broker would redeliver it thousands of times a second, and it would
// soon reach the broker's own limit of deliveries.
type Patience struct {
	// UnackedWait is the maximum time for which the operation is repeated. After this time
	// the message is handed back.
	UnackedWait time.Duration

	// OneTry is the timeout of one try. Defaults to 30 seconds.
	OneTry time.Duration

	Logger watermill.LoggerAdapter
}

// Shortest and longest pause between two tries, and the default timeout of one try.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	oneTry     = 30 * time.Second
)

// Persist calls the function operation until it succeeds, the consumer shuts down, or
// UnackedWait is over. In the last two cases Persist returns an error that makes the
// caller hand the message back. If the claim is lost, Persist returns nil, because
// another process now has the row. The context that is passed to operation does not end
// with the context of the message. The parameter step is the name of the operation for
// logs and errors.
func (p Patience) Persist(ctx context.Context, d *Delivery, step string, operation func(ctx context.Context) error) error {
	deadline := time.Now().Add(p.UnackedWait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := p.try(ctx, operation)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrClaimLost) {
			p.Logger.Info("Lease ended before the message was settled; the message is handled again",
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": step})
			return nil
		}
		if pause == firstPause {
			p.Logger.Error("Message stays unacked while a step is tried again", err,
				watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "step": step})
		}
		if time.Now().After(deadline) || !d.Sleep(ctx, pause) {
			return disposition.Returned(fmt.Errorf("%s: %w", step, err))
		}
	}
}

func (p Patience) try(ctx context.Context, operation func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(p.OneTry, oneTry))
	defer cancel()
	return operation(ctx)
}

// Sleep waits for the given pause. It returns false if the consumer shuts down first.
// It ignores the deadlines of middlewares, because the outcome of the message must
// still be stored.
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

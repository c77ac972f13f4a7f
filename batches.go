package once

import (
	"context"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/gather"
	"github.com/watermill-once/once/internal/routed"
	"github.com/watermill-once/once/internal/start"
)

// batchSubscriber is the subscriber of a handler with batches. It passes the number of
// messages that the batches need in flight to the subscribers that it wraps.
type batchSubscriber struct {
	message.Subscriber

	size, inFlight int
}

// Subscribe implements message.Subscriber.
func (s *batchSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.Subscriber.Subscribe(gather.With(ctx, s.inFlight), topic)
}

// checkBatches returns an error if the subscriber of a handler allows fewer messages in
// flight than a full batch needs. Batches run one after another, so with small batches
// a handler is slower than without batches.
func (s *starter) checkBatches(h routed.Handler) error {
	batches, byConsumer := routed.Find[*batchSubscriber](h.Subscriber)
	if !byConsumer && !slices.ContainsFunc(h.Chain, func(f routed.Func) bool { return f.Name == batchMiddleware }) {
		return nil
	}
	transport, ok := routed.Find[start.Limited](h.Subscriber)
	if !ok {
		return nil
	}
	limit, automatic := transport.InFlight()
	size, inFlight, remedy := 0, 0, ""
	if byConsumer {
		size, inFlight, remedy = batches.size, batches.inFlight, "do not set InFlight, or "
	} else {
		for _, part := range s.parts {
			if part.BatchSize > size {
				size, inFlight = part.BatchSize, part.BatchInFlight
			}
		}
	}
	if automatic && byConsumer || limit >= size {
		return nil
	}
	return fmt.Errorf("handler %q collects batches of %d messages, but its subscriber has at most %d in flight: a batch can never be full; "+
		"%sset InFlight to %d, or dedup.Config.Batch.Size to %d or less", h.Name, size, limit, remedy, inFlight, max(1, limit/2))
}

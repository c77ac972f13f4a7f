package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

func (s *stream) storeAll() {
	for b := range s.batches {
		s.store(b)
	}
}

// store keeps at it until the messages are stored, and acked, or Hold is over
// or the consumer shuts down. A commit of unknown outcome is one more reason to
// try again: what is there already is passed over. If the process dies before
// it knows, the transport delivers again, and the same happens.
func (s *stream) store(b batch) {
	// The first message has waited for the batches before.
	patience := parked.Patience{Hold: s.config.Hold - time.Since(b.since), Logger: s.config.Logger}
	err := patience.Persist(s.ctx, s.delivery, "store messages", func(ctx context.Context) (err error) {
		b, err = s.try(ctx, b)
		return err
	})
	if err == nil {
		return
	}
	s.config.Logger.Error("Messages are not stored and go back", err,
		watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic, "messages": len(b.messages)})
	for _, msg := range b.messages {
		msg.Nack()
	}
}

// try stores and acks messages, and returns those for which that failed. If
// the database refuses them, each is tried alone: it may mean one of them.
func (s *stream) try(ctx context.Context, b batch) (left batch, err error) {
	err = s.insert(ctx, b)
	switch {
	case err == nil:
		return left, nil
	case len(b.messages) == 1, !dialect.Refused(err):
		return b, err
	}
	err = nil
	for _, msg := range b.messages {
		var alone batch
		s.add(&alone, msg)
		if failed := s.insert(ctx, alone); failed != nil {
			s.add(&left, msg)
			err = failed
		}
	}
	return left, err
}

// insert acks the messages when their commit is known.
func (s *stream) insert(ctx context.Context, b batch) error {
	failpoint.Hit("inbox/store")
	began := time.Now()
	stored, err := s.Intake.store.Receive(ctx, b.rows)
	s.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	if err != nil {
		return err
	}
	s.instruments.receivedMany(int64(len(b.messages)), stored)
	for _, msg := range b.messages {
		failpoint.Hit("inbox/ack")
		msg.Ack()
	}
	failpoint.Hit("inbox/acked")
	if stored > 0 {
		s.subscription.Wake()
	}
	return nil
}

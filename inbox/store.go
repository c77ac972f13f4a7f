package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

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
	left := b.messages
	// The first message has waited for the batches before.
	patience := parked.Patience{Hold: s.config.Hold - time.Since(b.since), Logger: s.config.Logger}
	err := patience.Persist(s.ctx, s.delivery, "store messages", func(ctx context.Context) (err error) {
		left, err = s.try(ctx, left)
		return err
	})
	if err == nil {
		return
	}
	s.config.Logger.Error("Messages are not stored and go back", err,
		watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic, "messages": len(left)})
	for _, msg := range left {
		msg.Nack()
	}
}

// try stores and acks messages, and returns those for which that failed. If
// the database refuses them, each is tried alone: it may mean one of them.
func (s *stream) try(ctx context.Context, msgs []*message.Message) (left []*message.Message, err error) {
	err = s.insert(ctx, msgs)
	switch {
	case err == nil:
		return nil, nil
	case len(msgs) == 1, !dialect.Refused(err):
		return msgs, err
	}
	err = nil
	for i := range msgs {
		if failed := s.insert(ctx, msgs[i:i+1]); failed != nil {
			left, err = append(left, msgs[i]), failed
		}
	}
	return left, err
}

// insert acks the messages when their commit is known.
func (s *stream) insert(ctx context.Context, msgs []*message.Message) error {
	failpoint.Hit("inbox/store")
	began := time.Now()
	stored, err := s.Intake.store.Receive(ctx, s.delivery.Topic, s.subscription, msgs)
	s.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	if err != nil {
		return err
	}
	for _, msg := range msgs {
		failpoint.Hit("inbox/ack")
		msg.Ack()
	}
	failpoint.Hit("inbox/acked")
	s.instruments.receivedMany(int64(len(msgs)), stored)
	if stored > 0 {
		s.subscription.Wake()
	}
	return nil
}

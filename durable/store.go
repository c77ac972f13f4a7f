package durable

import (
	"context"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// storeAll stores one batch after the other. Where the order of keys is kept and
// one has gone back, those behind it go back too: they would overtake it.
func (s *stream) storeAll() {
	defer s.aside.Wait()
	for b := range s.batches {
		if stored := s.store([]batch{b}, b.since, s.mayPass); !stored && s.subscription.KeyOrder {
			break
		}
	}
	for b := range s.batches {
		b.handBack()
	}
}

// store keeps at it until the messages are stored, and acked, or UnackedWait is over
// or the consumer shuts down. A commit of unknown outcome is one more reason to
// try again: what is there already is passed over. If the process dies before
// it knows, the transport delivers again, and the same happens.
//
// What fails with an error that others may pass is kept at besides.
func (s *stream) store(parts []batch, since time.Time, mayPass func(error) bool) (stored bool) {
	// The first message has waited for the batches before.
	patience := parked.Patience{UnackedWait: s.config.UnackedWait - time.Since(since), OneTry: s.oneTry, Logger: s.config.Logger}
	if s.subscription.KeyOrder { // what goes back comes again behind what came after it
		patience.UnackedWait = math.MaxInt64
	}
	err := patience.Persist(s.ctx, s.delivery, "store messages", func(ctx context.Context) (err error) {
		parts, err = s.tryAll(ctx, parts)
		if ctx.Err() == nil && mayPass(err) {
			s.aside.Go(func() { s.store(parts, since, func(error) bool { return false }) })
			return nil
		}
		return err
	})
	if err == nil {
		return true
	}
	left := 0
	for _, part := range parts {
		left += len(part.messages)
		part.handBack()
	}
	s.config.Logger.Error("Messages are not stored and go back", err,
		watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic, "messages": left})
	return false
}

// passAgain is how long others wait behind messages that the database refuses,
// if nothing was stored since it has refused some before.
const passAgain = 5 * time.Second

// mayPass says whether others may pass messages that the database refuses. It may
// refuse all there are, so they may until the next refusal, and from then on if
// something was stored in between, or every so often: several that are refused
// may have come one after the other.
func (s *stream) mayPass(err error) bool {
	if s.subscription.KeyOrder || !dialect.Refused(err) {
		return false
	}
	stored := s.stored.Load()
	if stored == s.passed && time.Since(s.passedAt) < passAgain {
		return false
	}
	s.passed, s.passedAt = stored, time.Now()
	return true
}

func (b batch) handBack() {
	for _, msg := range b.messages {
		msg.Nack()
	}
}

// tryAll stores the parts of a batch, and returns what is left of them. One for
// which the time was not enough, or the memory (of locks: each ordering key has
// one), is two the next time: tried as it is, it could fail for ever. Nothing overtakes a part that the database did not answer, nor
// one that it refused if the order of keys is kept.
func (s *stream) tryAll(ctx context.Context, parts []batch) (left []batch, err error) {
	for n, part := range parts {
		if err != nil && (ctx.Err() != nil || !dialect.Refused(err) || s.subscription.KeyOrder) {
			return append(left, parts[n:]...), err
		}
		rest, failed := s.try(ctx, part)
		if failed == nil {
			continue
		}
		err = failed
		if half := len(rest.messages) / 2; half > 0 && (ctx.Err() != nil || dialect.TooMuch(failed)) {
			left = append(left, s.batchOf(rest.messages[:half]), s.batchOf(rest.messages[half:]))
		} else {
			left = append(left, rest)
		}
	}
	return left, err
}

func (s *stream) batchOf(messages []*message.Message) (b batch) {
	for _, msg := range messages {
		s.add(&b, msg)
	}
	return b
}

// try stores and acks messages, and returns those for which that failed. If
// the database refuses them, each is tried alone: it may mean one of them. With
// the order of keys those behind that one wait.
func (s *stream) try(ctx context.Context, b batch) (left batch, err error) {
	err = s.insert(ctx, b)
	switch {
	case err == nil:
		return left, nil
	case len(b.messages) == 1, !dialect.Refused(err):
		return b, err
	}
	err = nil
	for n, msg := range b.messages {
		failed := s.insert(ctx, s.batchOf([]*message.Message{msg}))
		if failed == nil {
			continue
		}
		if s.subscription.KeyOrder {
			return s.batchOf(b.messages[n:]), failed
		}
		s.add(&left, msg)
		err = failed
	}
	return left, err
}

// insert acks the messages when their commit is known.
func (s *stream) insert(ctx context.Context, b batch) error {
	failpoint.Hit("durable/store")
	began := time.Now()
	stored, err := s.Storage.store.Receive(ctx, b.rows)
	s.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	if err != nil {
		return err
	}
	s.stored.Add(int64(len(b.messages)))
	s.instruments.receivedMany(int64(len(b.messages)), stored)
	for _, msg := range b.messages {
		failpoint.Hit("durable/ack")
		msg.Ack()
	}
	failpoint.Hit("durable/acked")
	if stored > 0 {
		s.subscription.Wake()
	}
	return nil
}

package durable

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
)

// With retry's KeyOrder, storeAll nacks the batches after one that could not be stored, because
// they must not overtake it.
func (s *stream) storeAll() {
	defer s.refused.Wait()
	for b := range s.batches {
		if stored := s.store([]batch{b}, b.since, s.mayPass); !stored && s.subscription.KeyOrder {
			break
		}
	}
	for b := range s.batches {
		b.nack()
	}
}

// store stores and acks messages. After an error it tries again until UnackedWait is over or the
// consumer shuts down (with retry's KeyOrder until the latter), and then nacks them. After a commit
// with an unknown outcome it tries again, too: rows that exist are skipped, also when the transport
// delivers the messages again.
//
// If mayPass returns true for an error, store returns true, and a goroutine continues to try.
func (s *stream) store(parts []batch, since time.Time, mayPass func(error) bool) (stored bool) {
	// The first message has been waiting for earlier batches already.
	patience := parkedrows.Patience{UnackedWait: s.config.UnackedWait - time.Since(since), OneTry: s.oneTry, Logger: s.config.Logger}
	if s.subscription.KeyOrder { // later messages would overtake a nacked message
		patience.UnackedWait = math.MaxInt64
	}
	err := patience.Persist(s.ctx, s.delivery, "store messages", func(ctx context.Context) (err error) {
		parts, err = s.tryAll(ctx, parts)
		if ctx.Err() == nil && mayPass(err) {
			s.refused.Go(func() { s.store(parts, since, func(error) bool { return false }) })
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
		part.nack()
	}
	s.config.Logger.Error("Messages cannot be stored and are nacked", err,
		watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic, "messages": left})
	return false
}

// passAgain is the shortest time between two refused batches that later messages pass without a
// stored message in between.
const passAgain = 5 * time.Second

// mayPass reports whether later messages may pass a refused batch. With KeyOrder, they wait.
// Otherwise they pass the first one. If the next is refused, too, the database may be refusing all
// messages, so they pass it only if a message was stored in between, or passAgain is over:
// otherwise several refused batches would stop all later messages.
func (s *stream) mayPass(err error) bool {
	if s.subscription.KeyOrder || !dialect.Refused(err) {
		return false
	}
	stored := s.stored.Load()
	if stored == s.storedBefore && time.Since(s.passedAt) < passAgain {
		return false
	}
	s.storedBefore, s.passedAt = stored, time.Now()
	return true
}

func (b batch) nack() {
	for _, msg := range b.messages {
		msg.Nack()
	}
}

// tryAll returns the parts of a batch that it could not store. It halves one that took too long, or
// needed too much memory for locks (each ordering key takes one), because it could fail forever. If
// the database does not answer, or with KeyOrder after a refused part, the later parts are not
// tried, because they must not overtake it.
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

// try returns the messages that it could not store. If the database refuses the batch, it tries one
// by one, because it may refuse only one of them. With KeyOrder, the messages after a refused one
// wait.
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

// stream stores the messages of one subscription: one goroutine collects batches, and another
// stores them in the order of arrival.
type stream struct {
	*Storage

	ctx          context.Context
	subscription parkedrows.Subscription
	delivery     *parkedrows.Delivery
	batches      chan batch
	ended        chan struct{} // closed when the transport delivers no more messages

	stored       atomic.Int64   // number of stored messages
	storedBefore int64          // value of stored when later messages were last allowed to pass a refused batch
	passedAt     time.Time      // when storedBefore was last set, or zero
	refused      sync.WaitGroup // refused batches that are tried again while later messages pass
}

// maxBytes is the maximum size of a batch. A single message may exceed it.
const maxBytes = 8 << 20

type batch struct {
	messages []*message.Message
	rows     *parkedrows.Batch
	since    time.Time // when the first message arrived
}

// Another goroutine may be storing the previous batch meanwhile.
func (s *stream) add(b *batch, msg *message.Message) {
	if len(b.messages) == 0 {
		b.rows, b.since = parkedrows.NewBatch(s.delivery.Topic, s.subscription), time.Now()
	}
	b.messages = append(b.messages, msg)
	b.rows.Add(msg)
}

func (s *stream) collect(in <-chan *message.Message, out chan<- *message.Message) {
	defer close(s.ended)
	defer close(s.batches)
	wait := time.NewTimer(0)
	defer wait.Stop()
	var b batch
	for waited := true; in != nil || len(b.messages) > 0; {
		full := len(b.messages) == s.config.BatchSize || len(b.messages) > 0 && b.rows.Bytes() >= maxBytes
		receive, batches := in, s.batches
		if full { // receive no more messages, so that the transport waits as it does for a slow handler
			receive = nil
		}
		if len(b.messages) == 0 || !waited && !full && in != nil {
			batches = nil
		}
		select {
		case msg, ok := <-receive:
			switch {
			case !ok:
				in = nil
			case chain.Unrunnable(msg.Context()) != nil:
				out <- msg
			default:
				if len(b.messages) == 0 {
					waited = false
					wait.Reset(s.config.BatchWait)
				}
				s.add(&b, msg)
			}
		case batches <- b:
			b = batch{}
		case <-wait.C:
			waited = true
		}
	}
}

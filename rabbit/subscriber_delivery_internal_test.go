package rabbit

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A nacked message waits for its pause. The wait ends early if it has no purpose: the
// channel is lost, the subscription ends, or the message will not return to the queue.
func TestPauseOfANackEndsEarlyIfItHasNoPurpose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act    func(msg *message.Message) bool
		events func(lose, end, stop func())
		drop   bool // NoRequeueOnNack
		want   time.Duration
		acked  bool
		lost   bool // nobody waits for the result any more
	}{
		"ack":                           {act: (*message.Message).Ack, acked: true},
		"nack":                          {act: (*message.Message).Nack, want: time.Hour},
		"nack that drops the message":   {act: (*message.Message).Nack, drop: true},
		"nack, then a lost channel":     {act: (*message.Message).Nack, events: func(lose, _, _ func()) { lose() }, want: time.Second},
		"nack, then the end":            {act: (*message.Message).Nack, events: func(_, end, _ func()) { end() }, want: time.Second},
		"neither, and the end":          {events: func(_, _, stop func()) { stop() }, want: time.Second, lost: true},
		"a lost channel before the ack": {events: func(lose, _, _ func()) { lose() }, act: (*message.Message).Ack, acked: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			sub := &subscription{s: &Subscriber{}, handled: make(chan *delivery, 1), stopped: make(chan struct{})}
			sub.s.config.Consume = amqp.ConsumeConfig{NoRequeueOnNack: c.drop}
			var end context.CancelFunc
			sub.ctx, end = context.WithCancel(t.Context())
			ch := &consumeChannel{sub: sub}
			ch.ctx, ch.lose = context.WithCancelCause(t.Context())
			d := &delivery{channel: ch, msg: message.NewMessage("m", nil), pause: time.Hour}
			if c.events != nil {
				time.AfterFunc(time.Second, func() { c.events(func() { ch.lose(errCancelled) }, end, func() { close(sub.stopped) }) })
			}
			if c.act != nil {
				c.act(d.msg)
			}
			began := time.Now()
			d.waitHandled()
			if took := time.Since(began); took != c.want || d.acked != c.acked || (len(sub.handled) == 0) != c.lost {
				t.Errorf("%s: it took %v, want %v; acked is %t, and %d are handled", name, took, c.want, d.acked, len(sub.handled))
			}
			end()
			ch.lose(nil)
			pass(2 * time.Second)
		})
	}
}

// settler records the acks and nacks that are sent.
type settler struct {
	amqp091.Acknowledger

	fails error
}

func (s settler) Ack(uint64, bool) error { return s.fails }

func (s settler) Nack(uint64, bool, bool) error { return s.fails }

// An ack forgets how often the message was requeued, and a nack counts. If neither was
// sent, the number stays, because the broker delivers the message again.
func TestRequeuesAreCountedUntilTheAck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ack   bool
		fails error
		lost  bool
		want  requeueCounts
	}{
		"ack":                 {ack: true, want: requeueCounts{"other": 1}},
		"nack":                {want: requeueCounts{"m": 4, "other": 1}},
		"an ack is not sent":  {ack: true, fails: errors.New("closed"), want: requeueCounts{"m": 3, "other": 1}},
		"a nack is not sent":  {fails: errors.New("closed"), want: requeueCounts{"m": 3, "other": 1}},
		"the channel is lost": {ack: true, lost: true, want: requeueCounts{"m": 3, "other": 1}},
	} {
		s := &Subscriber{}
		s.instruments = newSubscriberInstruments(s)
		sub := &subscription{s: s, requeues: requeueCounts{"m": 3, "other": 1}, inFlight: 2, retired: map[*consumeChannel]bool{}}
		ch := &consumeChannel{sub: sub, unacked: []uint64{7}, inFlight: 1}
		ch.ctx, ch.lose = context.WithCancelCause(t.Context()) //nolint:fatcontext // each channel has its own context
		if c.lost {
			ch.lose(errCancelled)
		}
		sub.retired[ch] = true
		s.inFlight.Store(3)
		ctx, cancel := context.WithCancel(t.Context())
		sub.settleOn(ch, []*delivery{{
			channel: ch, acked: c.ack, cancel: cancel, msg: message.NewMessage("m", nil),
			raw: amqp091.Delivery{Acknowledger: settler{fails: c.fails}, DeliveryTag: 7},
		}})
		sub.running.Wait()
		if !maps.Equal(sub.requeues, c.want) {
			t.Errorf("%s: the counts are %v, want %v", name, sub.requeues, c.want)
		}
		if ctx.Err() == nil || sub.inFlight != 1 || ch.inFlight != 0 || s.inFlight.Load() != 2 || len(sub.retired) != 0 {
			t.Errorf("%s: the context is %v; in flight are %d, %d and %d; %d channels are retired",
				name, ctx.Err(), sub.inFlight, ch.inFlight, s.inFlight.Load(), len(sub.retired))
		}
	}
}

// A message that a handler has received counts as in flight, and its delivery is no longer
// in the buffer.
func TestHandedOutMessageIsInFlight(t *testing.T) {
	t.Parallel()
	sub := &subscription{s: &Subscriber{}, handled: make(chan *delivery, 2), stopped: make(chan struct{}), out: make(chan *message.Message)}
	sub.cfg.InFlight = 1
	ch := &consumeChannel{sub: sub}
	if out, next := sub.next(ch); out != nil || next != nil {
		t.Error("there is a message although the buffer is empty")
	}
	for range 2 {
		ch.buffered = append(ch.buffered, &delivery{channel: ch, msg: message.NewMessage("m", nil)})
	}
	first, all := ch.buffered[0], ch.buffered
	if out, next := sub.next(ch); out == nil || next != first.msg {
		t.Errorf("the next message is %p, want %p", next, first.msg)
	}
	sub.handOut(ch)
	if len(ch.buffered) != 1 || all[0] != nil || first.handedOut.IsZero() {
		t.Errorf("%d are in the buffer, which keeps %p", len(ch.buffered), all[0])
	}
	if ch.inFlight != 1 || sub.inFlight != 1 || sub.s.inFlight.Load() != 1 {
		t.Errorf("in flight are %d, %d and %d, want one", ch.inFlight, sub.inFlight, sub.s.inFlight.Load())
	}
	if out, next := sub.next(ch); out != nil || next != nil {
		t.Error("there is a message although InFlight messages are in flight")
	}
	first.msg.Ack()
	if d := <-sub.handled; d != first || !d.acked {
		t.Errorf("handled is %p, want %p", d, first)
	}
	sub.running.Wait()
}

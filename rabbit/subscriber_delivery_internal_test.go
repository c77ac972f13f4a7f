package rabbit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
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
				time.AfterFunc(time.Second, func() { c.events(func() { ch.lose(errTimedOut) }, end, func() { close(sub.stopped) }) })
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
		s := &Subscriber{cfg: SubscriberConfig{Logger: watermill.NopLogger{}}}
		s.instruments = newSubscriberInstruments(s)
		sub := &subscription{s: s, requeues: requeueCounts{"m": 3, "other": 1}, inFlight: 2, retired: map[*consumeChannel]bool{}}
		ch := &consumeChannel{sub: sub, unacked: []uint64{7}, inFlight: 1}
		ch.ctx, ch.lose = context.WithCancelCause(t.Context()) //nolint:fatcontext // each channel has its own context
		if c.lost {
			ch.lose(errTimedOut)
		}
		sub.retired[ch] = true
		s.inFlight.Store(3)
		ctx, cancel := context.WithCancel(t.Context())
		sub.settleOn(ch, []*delivery{{
			channel: ch, acked: c.ack, cancel: cancel, id: "m", msg: message.NewMessage("changed by the handler", nil),
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

// Trap 104. After a cancel, acks wait until the reason is known. If the consumer timeout
// has passed, no ack is sent, because it would revive the cancelled consumer.
func TestTrap104_AcksAfterACancelWaitForItsReason(t *testing.T) {
	t.Parallel()
	for reason, want := range map[error]int{errQueueDeleted: acked, errTimedOut: lost} {
		synctest.Test(t, func(t *testing.T) {
			requeued, sub := &acknowledger{}, &subscription{s: &Subscriber{}}
			ch := &consumeChannel{sub: sub, cancelled: make(chan struct{}), judged: make(chan struct{}), unacked: []uint64{1, 2}}
			ch.ctx, ch.lose = context.WithCancelCause(t.Context())
			close(ch.cancelled)
			all := []*delivery{
				{acked: true, raw: amqp091.Delivery{Acknowledger: requeued, DeliveryTag: 1}},
				{raw: amqp091.Delivery{Acknowledger: requeued, DeliveryTag: 2}},
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				ch.acknowledge(all)
			}()
			synctest.Wait()
			if len(requeued.tags) > 0 {
				t.Error("a nack is sent although the reason of the cancel is not known")
			}
			if want == lost {
				ch.lose(reason)
			}
			close(ch.judged)
			<-done
			if all[0].outcome != want || (want == lost) != (len(requeued.tags) == 0) {
				t.Errorf("%v: the outcome is %d, want %d; nacked %v", reason, all[0].outcome, want, requeued.tags)
			}
		})
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
	if out, next := sub.next(ch); out == nil || next != first {
		t.Errorf("the next message is %p, want %p", next, first.msg)
	}
	sub.handOut(first)
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

func TestBrokerVersion(t *testing.T) {
	for version, want := range map[any]string{
		"3.8.9": "3.8", "3.13.7": "3.13", "4.0.0": "4.0", "4.1.4": "4.1", "4.3.0": "4.3", "4.10.2": "4.10", "10.0.1": "10.0",
		"4.3.0-beta.1": "4.3", "4.0-rc": "4.0", "4.2": "4.2", "4": "4.0", "4.1.0+3.gabcdef": "4.1",
		"": "0.0", "unknown": "0.0", "4.x": "4.0", 4: "0.0", nil: "0.0",
	} {
		major, minor := brokerVersion(amqp091.Table{"version": version})
		if got := fmt.Sprintf("%d.%d", major, minor); got != want {
			t.Errorf("%v is read as %s, want %s", version, got, want)
		}
	}
	if major, minor := brokerVersion(nil); major != 0 || minor != 0 {
		t.Errorf("no properties are read as %d.%d", major, minor)
	}
}

// Trap 47. The limit of a quorum queue is in its arguments. Since RabbitMQ 4, a quorum
// queue without such an argument has the broker's default limit. Other types of queues
// have no limit.
func TestTrap47TheDeliveryLimitOfAQueue(t *testing.T) {
	quorum := func(limit any) amqp091.Table {
		return amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": limit}
	}
	for name, c := range map[string]struct {
		queue   amqp091.Table
		major   int
		limit   int64
		limited bool
	}{
		"3, not configured":                 {amqp091.Table{"x-queue-type": "quorum"}, 3, 0, false},
		"4, not configured":                 {amqp091.Table{"x-queue-type": "quorum"}, 4, 20, true},
		"5, not configured":                 {amqp091.Table{"x-queue-type": "quorum"}, 5, 20, true},
		"no version, not configured":        {amqp091.Table{"x-queue-type": "quorum"}, 0, 0, false},
		"4, a classic queue":                {amqp091.Table{"x-queue-type": "classic"}, 4, 0, false},
		"4, a classic one with limit":       {amqp091.Table{"x-queue-type": "classic", "x-delivery-limit": 3}, 4, 0, false},
		"4, no type configured":             {nil, 4, 0, false},
		"3, a limit":                        {quorum(int32(3)), 3, 3, true},
		"4, a limit":                        {quorum(int64(100)), 4, 100, true},
		"4, a limit of 0":                   {quorum(0), 4, 0, true},
		"4, no limit configured":            {quorum(-1), 4, -1, false},
		"4, no limit configured, as a byte": {quorum(int8(-1)), 4, -1, false},
		"4, a limit as a short":             {quorum(int16(7)), 4, 7, true},
		"4, a limit as unsigned":            {quorum(uint8(200)), 4, 200, true},
		"4, a limit that is no number":      {quorum("7"), 4, 20, true}, // the broker refuses such a queue
	} {
		limit, limited := deliveryLimit(c.queue, c.major)
		if limited != c.limited || (limited && limit != c.limit) {
			t.Errorf("%s: %d, %v, want %d, %v", name, limit, limited, c.limit, c.limited)
		}
	}
}

// Trap 97. The Subscriber declares a queue without a limit if three conditions are
// true: no limit is configured, the default limit could make the queue lose messages, and
// the broker supports queues without a limit. A queue without a type can be a quorum queue,
// because a virtual host has a default type for durable queues.
func TestTrap97_AQueueIsDeclaredWithoutTheDefaultLimit(t *testing.T) {
	for name, c := range map[string]struct {
		queue   amqp091.Table
		version string
		want    bool
	}{
		"3.10":                 {amqp091.Table{"x-queue-type": "quorum"}, "3.10.8", false},
		"3.13":                 {amqp091.Table{"x-queue-type": "quorum"}, "3.13.7", false},
		"4.0":                  {amqp091.Table{"x-queue-type": "quorum"}, "4.0.5", true},
		"4.3":                  {amqp091.Table{"x-queue-type": "quorum"}, "4.3.6", true},
		"unknown":              {amqp091.Table{"x-queue-type": "quorum"}, "", false},
		"classic":              {amqp091.Table{"x-queue-type": "classic"}, "4.0.5", false},
		"stream":               {amqp091.Table{"x-queue-type": "stream"}, "4.0.5", false},
		"no type":              {nil, "4.0.5", true},
		"no type, 3.13":        {nil, "3.13.7", false},
		"a limit":              {amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": 5}, "4.0.5", false},
		"none":                 {amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": -1}, "4.0.5", false},
		"dead-letter exchange": {amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": ""}, "4.0.5", false},
	} {
		before := len(c.queue)
		sub := &subscription{s: &Subscriber{}, arguments: c.queue}
		sub.s.config.Queue.Durable = true
		got, ok := sub.withoutDeliveryLimit(amqp091.Table{"version": c.version})
		if ok != c.want || len(c.queue) != before {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, c.want)
		}
		if ok && (got["x-delivery-limit"] != int32(-1) || len(got) != before+1) {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, queue := range map[string]amqp.QueueConfig{
		"transient": {}, "deleted automatically": {Durable: true, AutoDelete: true}, "exclusive": {Durable: true, Exclusive: true},
	} {
		sub := &subscription{s: &Subscriber{}}
		sub.s.config.Queue = queue
		if got, ok := sub.withoutDeliveryLimit(amqp091.Table{"version": "4.0.5"}); ok {
			t.Errorf("a queue without a type that is %s: %v", name, got)
		}
	}
}

// Trap 47. Since RabbitMQ 4.3, a nack does not count towards the delivery limit.
func TestTrap47WhichBrokersCountNacks(t *testing.T) {
	for version, want := range map[[2]int]bool{
		{3, 8}: true, {3, 13}: true, {4, 0}: true, {4, 2}: true, {4, 3}: false, {4, 10}: false, {5, 0}: false,
	} {
		if got := nacksCount(version[0], version[1]); got != want {
			t.Errorf("%v: %v, want %v", version, got, want)
		}
	}
}

func TestTrap46TheConsumerTimeout(t *testing.T) {
	hour := amqp091.Table{"x-consumer-timeout": int32(time.Hour.Milliseconds())}
	minute := amqp091.Table{"x-consumer-timeout": time.Minute.Milliseconds()}
	for name, c := range map[string]struct {
		consume, queue amqp091.Table
		want           time.Duration
	}{
		"not configured":    {nil, nil, 30 * time.Minute},
		"the queue's":       {nil, minute, time.Minute},
		"the consumer's":    {hour, nil, time.Hour},
		"the consumer's is": {hour, minute, time.Hour},
		"no number":         {amqp091.Table{"x-consumer-timeout": "1h"}, nil, 30 * time.Minute},
	} {
		if got := consumerTimeout(c.consume, c.queue); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

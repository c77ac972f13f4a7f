package rabbit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/usercode"
)

type delivery struct {
	channel   *consumeChannel
	raw       amqp091.Delivery
	msg       *message.Message
	id        string             // id of msg; a handler may change the field of msg at any time
	cancel    context.CancelFunc // ends the message's context
	pause     time.Duration      // pause between a nack and the return of the message to the queue
	handedOut time.Time
	earlier   []*delivery // handler calls for the same message that must return first

	acked   bool // true if the handler has acked the message, false if it has nacked it
	outcome int  // outcome, as an index of series
}

func (d *delivery) message() *message.Message {
	if d == nil {
		return nil
	}
	return d.msg
}

// Undecodable returns why Config.Marshaler could not read the message, or nil.
func Undecodable(msg *message.Message) error { return usercode.Undecodable(msg.Context()) }

// decode lets Marshaler read a message that the configured marshaler cannot.
func (sub *subscription) decode(ch *consumeChannel, raw amqp091.Delivery) *delivery {
	d := &delivery{channel: ch, raw: raw}
	ctx, cancel := context.WithCancel(ch.ctx)
	d.cancel = cancel
	count, counted := deliveryCount(raw)

	msg, err := sub.unmarshal(raw)
	if err != nil {
		msg, _ = Marshaler{}.Unmarshal(raw)
		ctx = usercode.WithUndecodable(ctx, fmt.Errorf("rabbit: the message cannot be decoded: %w", err))
		sub.s.instruments.undecodable.Add(1, 0)
		sub.s.cfg.Logger.Error("Message cannot be decoded", err,
			meta.LogFields(msg.UUID, msg.Metadata, sub.fields().Add(watermill.LogFields{"size": len(raw.Body)})))
	}
	if msg.Metadata = meta.Delivered(msg.Metadata); msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 2)
	}
	msg.Metadata[meta.Redelivered] = strconv.FormatBool(raw.Redelivered)
	delete(msg.Metadata, meta.DeliveryCount)
	if counted {
		msg.Metadata[meta.DeliveryCount] = strconv.FormatInt(count, 10)
	}
	msg.SetContext(ctx)
	d.msg, d.id = msg, msg.UUID
	times := max(int(min(count, maxCounted)), sub.requeues[msg.UUID])
	d.pause = pauseAfter(times+1, sub.s.cfg.NackMin, sub.s.cfg.NackMax)
	sub.s.instruments.countDelivery(raw.Redelivered)
	sub.consumed()
	return d
}

// unmarshal calls the marshaler, after a failure with all headers as text: watermill-amqp's fails
// on every header that is not a string, and the broker itself adds such headers.
func (sub *subscription) unmarshal(raw amqp091.Delivery) (*message.Message, error) {
	msg, err := sub.unmarshalOnce(raw)
	if err == nil {
		return msg, nil
	}
	text := raw
	text.Headers = make(amqp091.Table, len(raw.Headers))
	for key, value := range raw.Headers {
		text.Headers[key] = headerText(value)
	}
	if msg, textErr := sub.unmarshalOnce(text); textErr == nil {
		return msg, nil
	}
	return nil, err
}

func (sub *subscription) unmarshalOnce(raw amqp091.Delivery) (msg *message.Message, err error) {
	err = usercode.Guarded(func() (err error) { msg, err = sub.s.config.Marshaler.Unmarshal(raw); return err })
	if usercode.Stack(err) != "" {
		err = fmt.Errorf("the marshaler panicked: %w", err)
	}
	if err == nil && msg == nil {
		err = errors.New("the marshaler returned no message and no error")
	}
	return msg, redact(err)
}

// waitHandled waits for the handler's ack or nack, and after a nack for the pause.
func (d *delivery) waitHandled() {
	sub := d.channel.sub
	defer sub.s.calls.remove(d)
	select {
	case <-d.msg.Acked():
		d.acked = true
	case <-d.msg.Nacked():
		if !sub.s.config.Consume.NoRequeueOnNack {
			d.waitPause()
		}
	case <-sub.stopped:
		return
	}
	sub.handled <- d
}

func (d *delivery) waitPause() {
	timer := time.NewTimer(d.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.channel.ctx.Done():
	case <-d.channel.sub.ctx.Done():
	}
}

// requeueCounts counts the requeues of each message id, because classic queues, and quorum queues
// since RabbitMQ 4.3, do not.
type requeueCounts map[string]int

const (
	maxCounted    = 1 << 20
	maxRemembered = 10_000
)

func (n requeueCounts) add(id string) {
	if len(n) == maxRemembered {
		clear(n) // as a consequence, all pauses begin at NackMin again
	}
	n[id]++
}

func (n requeueCounts) forget(id string) { delete(n, id) }

// handlerCalls contains the deliveries that handlers have not answered. When a channel is lost, the
// broker delivers its messages again, often to the same process, while the handlers of the first
// delivery still run.
type handlerCalls struct {
	mu   sync.Mutex
	byID map[messageKey][]*delivery
}

type messageKey struct{ queue, id string }

func (d *delivery) key() messageKey { return messageKey{d.channel.sub.queue, d.id} }

func (c *handlerCalls) add(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = make(map[messageKey][]*delivery)
	}
	c.byID[d.key()] = append(c.byID[d.key()], d)
}

func (c *handlerCalls) remove(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.byID[d.key()], func(other *delivery) bool { return other == d })
	if len(left) == 0 {
		delete(c.byID, d.key())
	} else {
		c.byID[d.key()] = left
	}
}

// The bodies count, too, because messages of other senders may have no id, or share one.
func (c *handlerCalls) of(d *delivery) []*delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	var same []*delivery
	for _, other := range c.byID[d.key()] {
		if bytes.Equal(other.raw.Body, d.raw.Body) {
			same = append(same, other)
		}
	}
	return same
}

// waitForEarlierCalls makes d wait for handlers with the same message. When they have returned,
// sub.wake gets a signal.
func (sub *subscription) waitForEarlierCalls(d *delivery) {
	if !d.raw.Redelivered {
		return
	}
	d.earlier = sub.s.calls.of(d)
	for _, other := range d.earlier {
		sub.running.Go(func() {
			select {
			case <-other.msg.Acked():
			case <-other.msg.Nacked():
			case <-d.channel.ctx.Done():
				return
			case <-sub.stopped:
				return
			}
			select {
			case sub.wake <- struct{}{}:
			default: // there is a signal already
			}
		})
	}
}

func (d *delivery) mayRun() bool {
	d.earlier = slices.DeleteFunc(d.earlier, (*delivery).answered)
	return len(d.earlier) == 0
}

func (d *delivery) answered() bool {
	select {
	case <-d.msg.Acked():
		return true
	case <-d.msg.Nacked():
		return true
	default:
		return false
	}
}

// settle acks or nacks d, and the other deliveries that wait in sub.handled.
func (sub *subscription) settle(d *delivery) {
	handled := []*delivery{d}
	for range len(sub.handled) {
		handled = append(handled, <-sub.handled)
	}
	for len(handled) > 0 {
		ch := handled[0].channel
		others := slices.DeleteFunc(slices.Clone(handled), func(d *delivery) bool { return d.channel == ch })
		sub.settleOn(ch, slices.DeleteFunc(handled, func(d *delivery) bool { return d.channel != ch }))
		handled = others
	}
}

func (sub *subscription) settleOn(ch *consumeChannel, handled []*delivery) {
	ch.acknowledge(handled)
	for _, d := range handled {
		switch d.outcome {
		case acked:
			sub.requeues.forget(d.id)
		case requeued:
			sub.requeues.add(d.id)
		case lost:
			sub.logLost(d)
		}
		sub.s.instruments.countSettled(d.outcome, time.Since(d.handedOut))
		d.cancel()
	}
	sub.inFlight -= len(handled)
	sub.s.inFlight.Add(-int64(len(handled)))
	ch.inFlight -= len(handled)
	if ch.inFlight == 0 && sub.retired[ch] {
		delete(sub.retired, ch)
		sub.running.Go(ch.close)
	}
}

// The line of the lost channel or connection does not name the messages.
func (sub *subscription) logLost(d *delivery) {
	if !d.acked {
		return
	}
	reason := cmp.Or(context.Cause(d.channel.ctx), error(amqp091.ErrClosed))
	sub.s.cfg.Logger.Info("Ack not sent, the broker delivers the message again", meta.LogFields(d.id, d.msg.Metadata,
		sub.fields().Add(watermill.LogFields{"reason": reason.Error(), "took": time.Since(d.handedOut)})))
}

// acknowledge sends one multiple ack for the acked deliveries before the first unacked one, and one
// ack for each later one. On a lost channel it sends nothing.
func (ch *consumeChannel) acknowledge(handled []*delivery) {
	if ch.isLost() {
		for _, d := range handled {
			d.outcome = lost
		}
		return
	}
	slices.SortFunc(handled, func(a, b *delivery) int { return cmp.Compare(a.raw.DeliveryTag, b.raw.DeliveryTag) })
	var acks []*delivery
	for _, d := range handled {
		if at, ok := slices.BinarySearch(ch.unacked, d.raw.DeliveryTag); ok {
			ch.unacked = slices.Delete(ch.unacked, at, at+1)
		}
		if d.acked {
			acks = append(acks, d)
		} else {
			d.outcome = ch.nack(d)
		}
	}
	together := len(acks)
	if len(ch.unacked) > 0 {
		together, _ = slices.BinarySearchFunc(acks, ch.unacked[0],
			func(d *delivery, tag uint64) int { return cmp.Compare(d.raw.DeliveryTag, tag) })
	}
	ch.ack(acks[:together])
	for n := together; n < len(acks); n++ {
		ch.ack(acks[n : n+1])
	}
}

// A multiple ack also acks every earlier delivery of the channel, so acks must contain all that
// have no ack or nack yet.
func (ch *consumeChannel) ack(acks []*delivery) {
	if len(acks) == 0 {
		return
	}
	failpoint.Hit("rabbit/ack")
	err := acks[len(acks)-1].raw.Ack(len(acks) > 1)
	failpoint.Hit("rabbit/acked")
	for _, d := range acks {
		d.outcome = outcomeUnlessLost(acked, err)
	}
}

func (ch *consumeChannel) nack(d *delivery) (outcome int) {
	if ch.sub.s.config.Consume.NoRequeueOnNack {
		return outcomeUnlessLost(dropped, d.raw.Nack(false, false))
	}
	failpoint.Hit("rabbit/requeue")
	err := d.raw.Nack(false, true)
	failpoint.Hit("rabbit/requeued")
	return outcomeUnlessLost(requeued, err)
}

// After an error, the ack or nack was not sent, and the channel will be closed soon.
func outcomeUnlessLost(outcome int, err error) int {
	if err != nil {
		return lost
	}
	return outcome
}

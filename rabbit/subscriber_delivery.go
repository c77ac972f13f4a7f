package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/meta"
)

// delivery is a message that the broker has delivered. If the broker delivers the
// message again, this is another delivery.
type delivery struct {
	channel   *consumeChannel
	raw       amqp.Delivery
	msg       *message.Message
	cancel    context.CancelFunc // ends the message's context
	pause     time.Duration      // pause between a nack and the return of the message to the queue
	handedOut time.Time

	acked   bool // true if the handler has acked the message, false if it has nacked it
	outcome int  // outcome, as an index of series
}

// Undecodable returns the error that Config.Marshaler returned for the message, or nil.
// If there is an error, [Marshaler] has read the message instead.
func Undecodable(msg *message.Message) error { return disposition.Unrunnable(msg.Context()) }

// decode returns a delivery. If the configured marshaler cannot decode the message, the
// delivery contains the message as Marshaler reads it.
func (sub *subscription) decode(ch *consumeChannel, raw amqp.Delivery) *delivery {
	d := &delivery{channel: ch, raw: raw}
	ctx, cancel := context.WithCancel(ch.ctx)
	d.cancel = cancel
	count, counted := deliveryCount(raw)

	msg, err := sub.unmarshal(raw)
	if err != nil {
		msg, _ = Marshaler{}.Unmarshal(raw)
		ctx = disposition.WithUndecodable(ctx, fmt.Errorf("rabbit: the message cannot be decoded: %w", err))
		sub.s.instruments.undecodable.Add(1, 0)
		sub.s.cfg.Logger.Error("Message cannot be decoded", err,
			fields.Message(msg.UUID, msg.Metadata, sub.fields().Add(watermill.LogFields{"size": len(raw.Body)})))
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
	d.msg = msg
	times := max(int(min(count, maxCounted)), sub.requeues[msg.UUID])
	d.pause = pauseAfter(times+1, sub.s.cfg.NackMin, sub.s.cfg.NackMax)
	sub.s.instruments.countDelivery(raw.Redelivered)
	return d
}

// unmarshal calls the marshaler. If the marshaler fails, it calls the marshaler again
// with all headers converted to text. watermill-amqp's marshaler fails on every header
// that is not a string, and the broker itself adds such headers.
func (sub *subscription) unmarshal(raw amqp.Delivery) (*message.Message, error) {
	msg, err := sub.unmarshalOnce(raw)
	if err == nil {
		return msg, nil
	}
	text := raw
	text.Headers = make(amqp.Table, len(raw.Headers))
	for key, value := range raw.Headers {
		text.Headers[key] = headerText(value)
	}
	if msg, textErr := sub.unmarshalOnce(text); textErr == nil {
		return msg, nil
	}
	return nil, err
}

func (sub *subscription) unmarshalOnce(raw amqp.Delivery) (msg *message.Message, err error) {
	defer func() {
		if value := recover(); value != nil {
			msg, err = nil, fmt.Errorf("the marshaler panicked: %v", value)
		}
	}()
	msg, err = sub.s.config.Marshaler.Unmarshal(raw)
	if err == nil && msg == nil {
		err = errors.New("the marshaler returned no message and no error")
	}
	return msg, redact(err)
}

// waitHandled waits for the handler's ack or nack. After a nack, it also waits for the
// pause. Then it sends the delivery to the channel sub.handled.
func (d *delivery) waitHandled() {
	sub := d.channel.sub
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

// waitPause waits for the pause, or until the channel is lost or the subscription ends.
func (d *delivery) waitPause() {
	timer := time.NewTimer(d.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.channel.ctx.Done():
	case <-d.channel.sub.ctx.Done():
	}
}

// requeueCounts contains how often each message was requeued, by message id. It is
// needed because some queues do not count requeues: classic queues, and quorum queues
// since RabbitMQ 4.3.
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

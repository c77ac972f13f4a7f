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

	verdicts "github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/meta"
)

// delivery is one message as it was delivered once.
type delivery struct {
	in     *intake
	raw    amqp.Delivery
	msg    *message.Message
	cancel context.CancelFunc // of the message's context
	pause  time.Duration      // before it goes back, if it does
	taken  time.Time

	acked   bool // else nacked; set when the handler has answered
	outcome int  // as a series; set when the broker is told
}

// Undecodable returns why Config.Marshaler could not read the message, which
// then came as [Marshaler] reads it; nil if it could.
func Undecodable(msg *message.Message) error { return verdicts.Undecodable(msg.Context()) }

// decode makes a message of what was delivered, whatever that is.
func (sub *subscription) decode(in *intake, raw amqp.Delivery) *delivery {
	d := &delivery{in: in, raw: raw}
	ctx, cancel := context.WithCancel(in.ctx)
	d.cancel = cancel
	count, counted := deliveryCount(raw)

	msg, err := sub.unmarshal(raw)
	if err != nil {
		msg, _ = Marshaler{}.Unmarshal(raw)
		ctx = verdicts.WithUndecodable(ctx, fmt.Errorf("rabbit: the message cannot be decoded: %w", err))
		sub.s.instruments.undecodable.Add(1, 0)
		sub.s.cfg.Logger.Error("Message cannot be decoded", err,
			sub.fields().Add(watermill.LogFields{"message_uuid": msg.UUID, "size": len(raw.Body)}))
	}
	if msg.Metadata = meta.Sent(msg.Metadata); msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 2)
	}
	msg.Metadata[MetadataRedelivered] = strconv.FormatBool(raw.Redelivered)
	delete(msg.Metadata, MetadataDeliveryCount)
	if counted {
		msg.Metadata[MetadataDeliveryCount] = strconv.FormatInt(count, 10)
	}
	msg.SetContext(ctx)
	d.msg = msg
	times := max(int(min(count, maxCounted)), sub.returned[msg.UUID])
	d.pause = jitter(backoff(times+1, sub.s.cfg.NackMin, sub.s.cfg.NackMax))
	sub.s.instruments.deliveredOne(raw.Redelivered)
	return d
}

// unmarshal tries a marshaler that fails on what the broker adds, as
// watermill-amqp's does on every header that is not a string, once more with
// all headers as text.
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
	if msg, again := sub.unmarshalOnce(text); again == nil {
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
		err = errors.New("the marshaler gave no message")
	}
	return msg, redact(err)
}

// await waits for the answer of the handler, and after a nack until it is time
// to give the message back.
func (d *delivery) await() {
	sub := d.in.sub
	select {
	case <-d.msg.Acked():
		d.acked = true
	case <-d.msg.Nacked():
		if !sub.s.config.Consume.NoRequeueOnNack {
			d.rest()
		}
	case <-sub.gone:
		return
	}
	sub.answers <- d
}

// rest pauses, unless the message goes back now or has gone back already.
func (d *delivery) rest() {
	timer := time.NewTimer(d.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.in.ctx.Done():
	case <-d.in.sub.ctx.Done():
	}
}

// nackCounts remembers how often messages were given back, for brokers that do
// not count that: classic queues, and quorum queues from RabbitMQ 4.3.
type nackCounts map[string]int

const (
	maxCounted    = 1 << 20
	maxRemembered = 10_000
)

func (n nackCounts) add(id string) {
	if len(n) == maxRemembered {
		clear(n) // their pauses grow from the shortest again
	}
	n[id]++
}

func (n nackCounts) forget(id string) { delete(n, id) }

package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/examples/orders/service"
)

// AMQPWire is a connection of our own to the broker of an [service.AMQP].
type AMQPWire struct {
	transport  *service.AMQP
	connection *amqp.Connection

	mu      sync.Mutex
	channel *amqp.Channel
	closed  <-chan *amqp.Error // why, if the broker closed the channel
}

// NewAMQPWire connects to the broker.
func NewAMQPWire(url string, transport *service.AMQP) (*AMQPWire, error) {
	connection, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("demo: connect to the broker: %w", err)
	}
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("demo: connect to the broker: %w", err)
	}
	return &AMQPWire{
		transport: transport, connection: connection,
		channel: channel, closed: channel.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

// Backend implements [Wire].
func (w *AMQPWire) Backend() string { return "servers" }

// Send implements [Wire].
func (w *AMQPWire) Send(ctx context.Context, topic string, r Rubbish) error {
	headers := amqp.Table{wamqp.DefaultMessageUUIDHeaderKey: r.ID}
	for name, value := range r.Headers {
		headers[name] = value
	}
	if r.Typed {
		headers["x-death"] = []any{amqp.Table{"count": int64(3), "time": time.Now()}}
		headers["x-delivery-count"] = "many"
		headers["number"] = math.MaxFloat64
		headers["void"] = nil
		headers["bytes"] = []byte{0, 0xff}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	confirmation, err := w.channel.PublishWithDeferredConfirmWithContext(ctx, w.transport.Exchange(topic), "", false, false,
		amqp.Publishing{Headers: headers, Body: r.Payload})
	if err == nil {
		var acked bool
		if acked, err = confirmation.WaitContext(ctx); err == nil && !acked {
			err = errors.New("not confirmed")
		}
	}
	if err != nil {
		return fmt.Errorf("demo: send to exchange %s: %w", w.transport.Exchange(topic), w.reason(err))
	}
	return nil
}

// Waiting implements [Wire]. What a consumer has in hand is not counted.
func (w *AMQPWire) Waiting(context.Context) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := 0
	for _, to := range service.Subscriptions() {
		queue, err := w.channel.QueueDeclarePassive(w.transport.Queue(to), true, false, false, false, nil)
		if err != nil {
			return 0, fmt.Errorf("demo: look at queue %s: %w", w.transport.Queue(to), w.reason(err))
		}
		waiting += queue.Messages
	}
	return waiting, nil
}

// reason returns why the broker closed the channel: what it said when it did,
// not what every later call says.
func (w *AMQPWire) reason(err error) error {
	select {
	case closed, ok := <-w.closed:
		if ok {
			return closed
		}
	default:
	}
	return err
}

// Close implements [Wire].
func (w *AMQPWire) Close() error { return w.connection.Close() }

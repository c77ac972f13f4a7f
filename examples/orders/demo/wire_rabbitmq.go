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

// RabbitMQWire is the [Wire] of a [service.RabbitMQ]. It uses a separate connection.
type RabbitMQWire struct {
	transport  *service.RabbitMQ
	connection *amqp.Connection

	mu      sync.Mutex
	channel *amqp.Channel
	closed  <-chan *amqp.Error // receives the reason when the broker closes the channel
}

// NewRabbitMQWire connects to the broker.
func NewRabbitMQWire(url string, transport *service.RabbitMQ) (*RabbitMQWire, error) {
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
	return &RabbitMQWire{
		transport: transport, connection: connection,
		channel: channel, closed: channel.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

// Backend implements [Wire].
func (w *RabbitMQWire) Backend() string { return "servers" }

// Send implements [Wire].
func (w *RabbitMQWire) Send(ctx context.Context, topic string, m Malformed) error {
	headers := amqp.Table{wamqp.DefaultMessageUUIDHeaderKey: m.ID}
	for name, value := range m.Headers {
		headers[name] = value
	}
	if m.Typed {
		headers["x-death"] = []any{amqp.Table{"count": int64(3), "time": time.Now()}}
		headers["x-delivery-count"] = "many"
		headers["number"] = math.MaxFloat64
		headers["void"] = nil
		headers["bytes"] = []byte{0, 0xff}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	confirmation, err := w.channel.PublishWithDeferredConfirmWithContext(ctx, w.transport.Exchange(topic), "", false, false,
		amqp.Publishing{Headers: headers, Body: m.Payload})
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

// Waiting implements [Wire].
func (w *RabbitMQWire) Waiting(context.Context) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := 0
	for _, to := range service.Subscriptions() {
		queue, err := w.channel.QueueDeclarePassive(w.transport.Queue(to), true, false, false, false, nil)
		if err != nil {
			return 0, fmt.Errorf("demo: count the messages in queue %s: %w", w.transport.Queue(to), w.reason(err))
		}
		waiting += queue.Messages
	}
	return waiting, nil
}

// reason returns the broker's reason for closing the channel, or err if the broker has
// given no reason. err is the error of a later call, and says only that
// the channel is closed.
func (w *RabbitMQWire) reason(err error) error {
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
func (w *RabbitMQWire) Close() error { return w.connection.Close() }

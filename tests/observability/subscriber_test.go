package observability

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// leaky is a topology builder that passes its channels to the test.
type leaky struct {
	wamqp.DefaultTopologyBuilder

	channels chan *amqp.Channel
}

func (l *leaky) BuildTopology(
	channel *amqp.Channel, queue, exchange string, config wamqp.Config, logger watermill.LoggerAdapter,
) error {
	err := l.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, config, logger)
	if err == nil {
		l.channels <- channel
	}
	return err
}

// Unmarshal fails for the id "undecodable".
func (o odd) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.MessageId == "undecodable" {
		return nil, errors.New("cannot be read")
	}
	return o.Marshaler.Unmarshal(d)
}

func (w *watch) subscriber(config wamqp.Config, cfg rabbit.SubscriberConfig) *rabbit.Subscriber {
	w.Helper()
	cfg.MeterProvider, cfg.Logger = w.meters, &w.logs
	cfg.ReconnectMin, cfg.ReconnectMax = 10*time.Millisecond, 100*time.Millisecond
	s, err := rabbit.NewSubscriber(config, cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *watch) subscribe(s *rabbit.Subscriber, topic string) func() *message.Message {
	w.Helper()
	messages, err := s.Subscribe(context.WithoutCancel(w.Context()), topic)
	if err != nil {
		w.Fatal(err)
	}
	return func() *message.Message {
		w.Helper()
		select {
		case msg := <-messages:
			return msg
		case <-time.After(time.Minute):
			w.Fatal("no message within a minute")
			return nil
		}
	}
}

// moveSubscriber interrupts a subscriber in every way, and settles its messages
// in every way.
func moveSubscriber(w *watch, seen *seen) {
	broker := testkit.Rabbit(w.T)
	name := broker.Name("q")
	topology := &leaky{channels: make(chan *amqp.Channel, 10)}
	config := queue(broker.URL)
	config.Marshaler, config.TopologyBuilder = odd{}, topology
	s := w.subscriber(config, rabbit.SubscriberConfig{NackMin: time.Millisecond, NackMax: time.Millisecond})
	w.zero("once.subscriber.")
	w.awaitValue(1, "once.subscriber.connected", "")
	next := w.subscribe(s, name)
	p := w.rabbit(queue(broker.URL), rabbit.PublisherConfig{})
	sent := 0
	send := func(id string) {
		w.Helper()
		sent++
		if err := p.Publish(name, message.NewMessage(id, nil)); err != nil {
			w.Fatal(err)
		}
	}

	send("1")
	msg := next()
	w.awaitValue(1, "once.subscriber.in_flight", "")
	seen.look(w)
	msg.Nack()
	next().Ack()
	send("undecodable")
	next().Ack()
	w.awaitValue(1, "once.subscriber.undecodable", "")
	w.awaitValue(2, "once.subscriber.settled", "once.outcome=acked")
	w.awaitValue(1, "once.subscriber.settled", "once.outcome=requeued")
	w.awaitValue(0, "once.subscriber.in_flight", "")

	// First the channel is closed while a message is unacked. Then the consumer is cancelled, and
	// then the connection is lost.
	send("2")
	msg = next()
	if err := (<-topology.channels).Ack(99, false); err != nil { // 406
		w.Fatal(err)
	}
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=channel")
	msg.Ack()
	w.awaitValue(1, "once.subscriber.settled", "once.outcome=lost")
	next().Ack()
	w.awaitValue(3, "once.subscriber.settled", "once.outcome=acked")
	if _, err := w.declare(broker.URL, name, nil).QueueDelete(name, false, false, false); err != nil {
		w.Fatal(err)
	}
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=consumer")
	broker.Ctl(w.T, "close_all_connections", "--vhost", broker.VHost, "test")
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=connection")
	w.awaitValue(2, "once.subscriber.connects", "once.outcome=ok")
	seen.look(w)
	if got := w.value("once.subscriber.delivered", "once.outcome=first"); got != float64(sent) {
		w.Errorf("%v first deliveries of %d messages", got, sent)
	}
	if got := w.value("once.subscriber.delivered", "once.outcome=redelivered"); got != 2 {
		w.Errorf("%v redeliveries, want 2", got)
	}
	if got := w.value("once.subscriber.handle.duration", ""); got != 5 {
		w.Errorf("%v durations of 5 answers", got)
	}

	// The metrics add up the subscribers of one process.
	config = queue(broker.URL)
	config.Consume.NoRequeueOnNack = true
	other := w.subscriber(config, rabbit.SubscriberConfig{})
	w.awaitValue(2, "once.subscriber.connected", "")
	if err := s.Close(); err != nil {
		w.Error(err)
	}
	for n := range 2 {
		if err := p.Publish(name, message.NewMessage(strconv.Itoa(n), nil)); err != nil {
			w.Error(err)
		}
	}
	next = w.subscribe(other, name)
	next().Nack()
	next().Ack()
	w.awaitValue(1, "once.subscriber.settled", "once.outcome=dropped")
	if got := w.value("once.subscriber.connected", ""); got != 1 {
		w.Errorf("connected is %v with one subscriber", got)
	}
	w.subscriber(queue("amqp://127.0.0.1:1/"), rabbit.SubscriberConfig{})
	w.awaitValue(1, "once.subscriber.connects", "once.outcome=failed")
	if err := other.Close(); err != nil {
		w.Error(err)
	}
	seen.look(w)
}

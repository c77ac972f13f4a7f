package observability

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// moveRabbit publishes every kind of message to a working broker.
func moveRabbit(w *watch, seen *seen) {
	broker := kit.Rabbit(w.T)
	full, roomy := broker.Name("full"), broker.Name("roomy")
	w.declare(broker.URL, full, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	w.declare(broker.URL, roomy, nil)
	config := queue(broker.URL)
	config.Marshaler = odd{}
	p := w.rabbit(config, rabbit.PublisherConfig{})
	w.zero("once.rabbit.")
	w.awaitValue(1, "once.rabbit.connected", "")

	for _, c := range []struct {
		topic, id string
		want      error
	}{
		{roomy, "1", nil},
		{full, "2", nil},
		{full, "3", rabbit.ErrNacked},
		{broker.Name("nobody"), "4", rabbit.ErrReturned},
		{roomy, "fail", rabbit.ErrRefused},
		{roomy, "invalid", rabbit.ErrInvalid},
		{strings.Repeat("x", 256), "5", rabbit.ErrTooLarge},
	} {
		if err := p.Publish(c.topic, message.NewMessage(c.id, nil)); !errors.Is(err, c.want) {
			w.Errorf("message %s: %v, want %v", c.id, err, c.want)
		}
	}
	seen.look(w)
	kit.Check(w, p.Close())
	if err := p.Publish(roomy, message.NewMessage("6", nil)); !errors.Is(err, rabbit.ErrClosed) {
		w.Errorf("a closed publisher: %v", err)
	}
	w.want(-1, "once.rabbit.connected", "")
	seen.look(w)
	for outcome, want := range map[string]float64{
		"confirmed": 2, "nacked": 1, "returned": 1, "refused": 1, "invalid": 1, "too_large": 1, "closed": 1,
	} {
		w.want(want, "once.rabbit.published", "once.outcome="+outcome)
	}
	w.want(2, "once.rabbit.confirm.duration", "")
}

// odd is a marshaler. Messages with certain ids cannot be marshaled, or cannot be sent afterwards.
type odd struct{ rabbit.Marshaler }

func (o odd) Marshal(msg *message.Message) (amqp.Publishing, error) {
	publishing, err := o.Marshaler.Marshal(msg)
	switch msg.UUID {
	case "fail":
		err = errors.New("cannot be marshaled")
	case "invalid":
		publishing.Headers["a header"] = struct{}{}
	}
	return publishing, err
}

// troubleRabbit freezes, blocks and kills the broker.
func troubleRabbit(w *watch, seen *seen) {
	broker := kit.PrivateRabbit(w.T)
	w.declare(broker.URL("/"), "q", nil)
	p := w.rabbit(queue(broker.URL("/")), rabbit.PublisherConfig{
		ConfirmTimeout: 5 * time.Second, ReadyTimeout: 100 * time.Millisecond,
	})
	w.awaitValue(1, "once.rabbit.connected", "")
	w.awaitValue(0, "once.rabbit.blocked", "")
	publish := func(id string) error { return p.Publish("q", message.NewMessage(id, nil)) }

	broker.Freeze()
	unknown := kit.Go(func() error { return publish("1") })
	w.awaitValue(1, "once.rabbit.in_flight", "")
	seen.look(w)
	if err := <-unknown; !errors.Is(err, rabbit.ErrUnknown) {
		w.Errorf("a frozen broker: %v", err)
	}
	broker.Thaw()

	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	kit.OK(w, broker.RaiseMemoryAlarm(ctx))
	number := 1
	w.eventually("publishing is blocked", func() bool {
		number++
		return errors.Is(publish(strconv.Itoa(number)), rabbit.ErrUnavailable) && w.value("once.rabbit.blocked", "") == 1
	})
	seen.look(w)
	broker.Kill()
	w.awaitValue(1, "once.rabbit.connects", "once.outcome=failed")
	w.want(0, "once.rabbit.connected", "")
	seen.look(w)
}

// forbidRabbit has a user that may not publish, and that loses the right to read a queue.
func forbidRabbit(w *watch, seen *seen) {
	broker := kit.Rabbit(w.T)
	name, user := broker.Name("q"), broker.Name("user")
	channel := w.declare(broker.URL, name, nil)
	backend := func(call string, args ...any) {
		w.Helper()
		broker.Eval(w.T, fmt.Sprintf("rabbit_auth_backend_internal:"+call, args...))
	}
	mayRead := func(names string) {
		w.Helper()
		backend(`set_permissions(<<"%s">>, <<"%s">>, <<"^$">>, <<"^$">>, <<"^%s$">>, <<"test">>)`, user, broker.VHost, names)
	}
	backend(`add_user(<<"%s">>, <<"s3cret">>, <<"test">>)`, user)
	defer backend(`delete_user(<<"%s">>, <<"test">>)`, user)
	mayRead(name)
	address, err := url.Parse(broker.URL)
	kit.OK(w, err)
	address.User = url.UserPassword(user, "s3cret")

	p := w.rabbit(queue(address.String()), rabbit.PublisherConfig{ReadyTimeout: time.Minute})
	if err := p.Publish(name, message.NewMessage("1", nil)); !errors.Is(err, rabbit.ErrForbidden) {
		w.Errorf("a user without the right to write: %v", err)
	}
	s := w.subscriber(queue(address.String()), rabbit.SubscriberConfig{})
	w.subscribe(s, name)
	mayRead("")
	_, err = channel.QueueDelete(name, false, false, false) // interrupts the subscription
	if err == nil {
		_, err = channel.QueueDeclare(name, true, false, false, false, nil)
	}
	kit.OK(w, err)
	w.awaitValue(1, "once.subscriber.forbidden", "")
	seen.look(w)
}

// leaky is a marshaler that passes the channel of each delivery to the test.
type leaky struct {
	odd

	channels chan amqp.Acknowledger
}

func (l leaky) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	l.channels <- d.Acknowledger
	return l.odd.Unmarshal(d)
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
	s, err := rabbit.NewSubscriber(config, cfg)
	kit.OK(w, err)
	w.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *watch) subscribe(s *rabbit.Subscriber, topic string) func() *message.Message {
	w.Helper()
	messages, err := s.Subscribe(context.WithoutCancel(w.Context()), topic)
	kit.OK(w, err)
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
	broker := kit.Rabbit(w.T)
	name := broker.Name("q")
	config := queue(broker.URL)
	deliveries := leaky{channels: make(chan amqp.Acknowledger, 10)}
	config.Marshaler = deliveries
	s := w.subscriber(config, rabbit.SubscriberConfig{NackMin: time.Millisecond, NackMax: time.Millisecond})
	w.zero("once.subscriber.")
	w.awaitValue(1, "once.subscriber.connected", "")
	next := w.subscribe(s, name)
	p := w.rabbit(queue(broker.URL), rabbit.PublisherConfig{})
	sent := 0
	send := func(id string) {
		w.Helper()
		sent++
		kit.OK(w, p.Publish(name, message.NewMessage(id, nil)))
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
	if err := (<-deliveries.channels).Ack(99, false); err != nil { // 406
		w.Fatal(err)
	}
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=channel")
	msg.Ack()
	w.awaitValue(1, "once.subscriber.settled", "once.outcome=lost")
	next().Ack()
	w.awaitValue(3, "once.subscriber.settled", "once.outcome=acked")
	kit.OK(w, kit.Err(w.declare(broker.URL, name, nil).QueueDelete(name, false, false, false)))
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=consumer")
	broker.CloseConnections(w.T, "test")
	w.awaitValue(1, "once.subscriber.recovered", "once.reason=connection")
	w.awaitValue(2, "once.subscriber.connects", "once.outcome=ok")
	seen.look(w)
	w.want(float64(sent), "once.subscriber.delivered", "once.outcome=first")
	w.want(2, "once.subscriber.delivered", "once.outcome=redelivered")
	w.want(5, "once.subscriber.handle.duration", "")

	// The metrics add up the subscribers of one process.
	config = queue(broker.URL)
	config.Consume.NoRequeueOnNack = true
	other := w.subscriber(config, rabbit.SubscriberConfig{})
	w.awaitValue(2, "once.subscriber.connected", "")
	kit.Check(w, s.Close())
	for n := range 2 {
		kit.Check(w, p.Publish(name, message.NewMessage(strconv.Itoa(n), nil)))
	}
	next = w.subscribe(other, name)
	next().Nack()
	next().Ack()
	w.awaitValue(1, "once.subscriber.settled", "once.outcome=dropped")
	w.want(1, "once.subscriber.connected", "")
	w.subscriber(queue("amqp://127.0.0.1:1/"), rabbit.SubscriberConfig{})
	w.awaitValue(1, "once.subscriber.connects", "once.outcome=failed")
	kit.Check(w, other.Close())
	seen.look(w)
}

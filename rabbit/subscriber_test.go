package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

func TestNewSubscriberNamesEveryInvalidField(t *testing.T) {
	config := amqp.Config{Consume: amqp.ConsumeConfig{Qos: amqp.QosConfig{PrefetchCount: 1 << 16, PrefetchSize: 1}}}
	config.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: time.Hour, BackoffMaxInterval: time.Minute}
	_, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{
		InFlight: 1 << 16, NackMin: time.Hour, NackMax: time.Minute, ReadyTimeout: -1, CloseTimeout: -1,
		DialTimeout: -1, WriteTimeout: -1,
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{
		"Connection.AmqpURI", "Queue.GenerateName", "Exchange.GenerateName", "Consume.Qos.PrefetchCount",
		"Consume.Qos.PrefetchSize", "InFlight", "NackMin", "ReadyTimeout", "CloseTimeout",
		"DialTimeout", "WriteTimeout", "Connection.Reconnect.BackoffInitialInterval",
	} {
		if !strings.Contains(err.Error(), "rabbit: "+name) {
			t.Errorf("the error does not name %s:\n%v", name, err)
		}
	}
}

// A Subscriber works with the configuration that watermill-amqp's constructor returns.
func TestSubscriberReceivesPublishedMessages(t *testing.T) {
	uri := brokerURL(t)
	topic := uniqueName("topic")
	s := newSubscriber(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("a")), brisk)
	values := context.WithValue(context.WithoutCancel(t.Context()), ctxKey{}, "value")
	messages, err := s.Subscribe(values, topic)
	kit.OK(t, err)
	p := newPublisher(t, topicConfig(uri), rabbit.PublisherConfig{})
	sent := newMessage("m")
	sent.Metadata.Set("key", "value")
	mustBe(t, "confirmed", p.Publish(topic, sent)) // a confirm shows that the queue is bound

	msg := receive(t, messages)
	if msg.UUID != "m" || string(msg.Payload) != "payload of m" || msg.Metadata.Get("key") != "value" ||
		msg.Metadata.Get("once_redelivered") != "false" {
		t.Errorf("got %+v", msg)
	}
	if msg.Context().Value(ctxKey{}) != "value" || msg.Context().Err() != nil {
		t.Errorf("context %v", msg.Context())
	}
	msg.Ack()
	finished(t, "the context of an acked message ends", msg.Context().Done())
	kit.Check(t, s.Close())
	if n := depth(t, uri, topic+"_a"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	if _, err := s.Subscribe(t.Context(), topic); !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("a closed subscriber subscribes: %v", err)
	}
	if err := s.SubscribeInitialize(topic); !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("a closed subscriber declares: %v", err)
	}
}

type ctxKey struct{}

func TestInFlightIsReachedAndBounded(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	send(t, uri, queue, ids...)
	cfg := brisk
	cfg.InFlight = 5
	config := queueConfig(uri)
	config.Consume.Qos.PrefetchCount = 7 // prefetches two more
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)

	held := make([]*message.Message, 5)
	for i := range held {
		held[i] = receive(t, messages)
	}
	eventually(t, "the messages are prefetched", func() bool { return depth(t, uri, queue) <= 13 })
	nothing(t, messages)
	if n := depth(t, uri, queue); n != 13 {
		t.Errorf("%d messages are left in the queue, want 13", n)
	}
	// Messages may be acked in any order.
	held[3].Ack()
	next := receive(t, messages)
	nothing(t, messages)
	next.Ack()
	for _, msg := range held {
		msg.Ack()
	}
	h := handle(messages)
	eventually(t, "all are handled", func() bool { return h.ids() == 14 })
	kit.Check(t, s.Close())
	finished(t, "the subscription ends", h.ended)
	if n := depth(t, uri, queue); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// Subscribe fails immediately if the broker refuses the topology. If there is no broker,
// it does not fail. All subscriptions together then wait only once for ReadyTimeout.
func TestSubscribeReturnsTheRefusalOfTheBroker(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	config := queueConfig(uri)
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	s := newSubscriber(t, config, brisk)
	if _, err := s.Subscribe(t.Context(), queue); err == nil || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("Subscribe: %v", err)
	}
	if err := s.SubscribeInitialize(queue); err == nil || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("SubscribeInitialize: %v", err)
	}

	away := newSubscriber(t, queueConfig("amqp://someone:secret@127.0.0.1:"+closedPort), rabbit.SubscriberConfig{
		ReadyTimeout: 500 * time.Millisecond,
	})
	if err := away.SubscribeInitialize("q"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("SubscribeInitialize without a broker: %v", err)
	}
	began := time.Now()
	var all []<-chan *message.Message
	for i := range 100 {
		all = append(all, subscribe(t, away, fmt.Sprint("q", i)))
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("100 subscriptions took %v: each waited for ReadyTimeout", took)
	}
	kit.Check(t, away.Close())
	for _, messages := range all {
		if msg, ok := <-messages; ok {
			t.Errorf("got %+v", msg)
		}
	}
}

func TestTrap42_NackedMessagesComeBackAfterGrowingPauses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp091.Table{
		"counted by the broker": {"x-queue-type": "quorum"},
		"counted here":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			uri := brokerURL(t)
			queue := declareQueue(t, uri, args)
			send(t, uri, queue, "bad")
			cfg := brisk
			cfg.NackMin, cfg.NackMax = 50*time.Millisecond, time.Hour
			config := queueConfig(uri)
			config.Queue.Arguments = args
			messages := subscribe(t, newSubscriber(t, config, cfg), queue)

			// The pauses are 50, 100, 200, 400 and 800 ms. Jitter shortens each pause by
			// at most half.
			began := time.Now()
			for range 5 {
				receive(t, messages).Nack()
			}
			msg := receive(t, messages)
			if took := time.Since(began); took < 775*time.Millisecond {
				t.Errorf("five redeliveries in %v", took)
			}
			if msg.Metadata.Get("once_redelivered") != "true" {
				t.Errorf("metadata %v", msg.Metadata)
			}
			if count := msg.Metadata.Get("once_delivery_count"); args != nil && count != "5" {
				t.Errorf("delivery count %q", count)
			}
			msg.Ack()
		})
	}
}

// Trap 42. While a nacked message waits for its pause, it does not block other
// messages.
func TestTrap42_NackedMessagesDoNotBlockOthers(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	cfg := brisk
	cfg.InFlight = 2
	cfg.NackMin, cfg.NackMax = time.Hour, time.Hour
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, queue)
	send(t, uri, queue, "bad")
	receive(t, messages).Nack()
	for i := range 10 {
		id := fmt.Sprint("m", i)
		send(t, uri, queue, id)
		msg := receive(t, messages)
		if msg.UUID != id {
			t.Errorf("got %s, want %s", msg.UUID, id)
		}
		msg.Ack()
	}
	if err := s.Close(); err != nil { // Close must not wait for an hour
		t.Error(err)
	}
	if left := drain(t, uri, queue); left["bad"] != 1 || len(left) != 1 {
		t.Errorf("left in the queue: %v", left)
	}
}

func TestNackWithoutRequeueDeadLetters(t *testing.T) {
	uri := brokerURL(t)
	dead := declareQueue(t, uri, nil)
	args := amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
	queue := declareQueue(t, uri, args)
	config := queueConfig(uri)
	config.Queue.Arguments = args
	config.Consume.NoRequeueOnNack = true
	messages := subscribe(t, newSubscriber(t, config, brisk), queue)
	send(t, uri, queue, "bad")
	receive(t, messages).Nack()

	// A dead-lettered message has an x-death header, which is an array of tables.
	back := receive(t, subscribe(t, newSubscriber(t, amqp.NewDurableQueueConfig(uri), brisk), dead))
	kit.Check(t, rabbit.Undecodable(back))
	if string(back.Payload) != "payload of bad" || !strings.Contains(back.Metadata.Get("x-death"), queue) {
		t.Errorf("metadata %v", back.Metadata)
	}
	back.Ack()
}

// picky is a marshaler that cannot decode some messages.
type picky struct{ rabbit.Marshaler }

func (p picky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	switch d.MessageId {
	case "odd":
		return nil, errors.New("cannot be read")
	case "none":
		return nil, nil //nolint:nilnil // simulates a mistake in a marshaler
	case "panic":
		panic("another mistake in the marshaler")
	}
	return p.Marshaler.Unmarshal(d)
}

func TestTrap41_UndecodableMessagesAreDelivered(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	h := new(heard)
	cfg := brisk
	cfg.Logger = h
	config := queueConfig(uri)
	config.Marshaler = picky{}
	messages := subscribe(t, newSubscriber(t, config, cfg), queue)
	for _, id := range []string{"odd", "none", "panic"} {
		send(t, uri, queue, id)
		msg := receive(t, messages)
		if msg.UUID != id || string(msg.Payload) != "payload of "+id || rabbit.Undecodable(msg) == nil {
			t.Errorf("got %+v, undecodable for %v", msg, rabbit.Undecodable(msg))
		}
		msg.Ack()
	}
	send(t, uri, queue, "fine")
	msg := receive(t, messages)
	if rabbit.Undecodable(msg) != nil {
		t.Errorf("undecodable for %v", rabbit.Undecodable(msg))
	}
	msg.Ack()
	said := 0
	for _, line := range h.all() {
		if strings.Contains(line, "payload of") {
			t.Errorf("a payload is logged: %s", line)
		}
		if strings.HasPrefix(line, "Message cannot be decoded") {
			said++
		}
	}
	if said != 3 {
		t.Errorf("logged %d times: %q", said, h.all())
	}
}

// Several subscriptions share a connection, and ack and nack messages at the same time.
// Each subscription must receive all messages of its queue.
func TestManySubscriptionsShareAConnection(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	s := newSubscriber(t, queueConfig(uri), brisk)
	var all sync.WaitGroup
	for range 5 {
		queue := declareQueue(t, uri, nil)
		all.Go(func() {
			messages, err := s.Subscribe(context.WithoutCancel(t.Context()), queue)
			if err != nil {
				t.Error(err)
				return
			}
			p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})
			kit.Check(t, p.Publish(queue, numbered("m", 200)...))
			seen := make(map[string]bool)
			for n := 0; len(seen) < 200; n++ {
				msg := <-messages
				if n%20 == 0 {
					msg.Nack()
					continue
				}
				seen[msg.UUID] = true
				msg.Ack()
			}
		})
	}
	all.Wait()
	kit.Check(t, s.Close())
}

// lenient ignores ErrGivenBack, because some tests of the suite close a subscriber that
// has unacked messages.
type lenient struct{ *rabbit.Subscriber }

func (l lenient) Close() error {
	if err := l.Subscriber.Close(); !errors.Is(err, rabbit.ErrGivenBack) {
		return err
	}
	return nil
}

// This is Watermill's test suite for all Pub/Subs. Messages keep their order only if one
// message is in flight at a time.
func TestUniversalSuite(t *testing.T) {
	uri := brokerURL(t)
	pubSub := func(t *testing.T, config amqp.Config, cfg rabbit.SubscriberConfig) (message.Publisher, message.Subscriber) {
		t.Helper()
		cfg.CloseTimeout = time.Second
		return newPublisher(t, config, rabbit.PublisherConfig{}), lenient{newSubscriber(t, config, cfg)}
	}
	fanout := func(group string) amqp.Config {
		config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
		config.Marshaler = rabbit.Marshaler{}
		return config
	}
	features := tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true}

	tests.TestPubSub(t, features,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			return pubSub(t, fanout("test"), brisk)
		},
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			return pubSub(t, fanout(group), brisk)
		})

	features.GuaranteedOrder, features.GuaranteedOrderWithSingleSubscriber = true, true
	one := brisk
	one.InFlight = 1
	inOrder := func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return pubSub(t, fanout("test"), one)
	}
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"order": tests.TestPublishSubscribeInOrder, "no ack": tests.TestNoAck,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, inOrder)
		})
	}
}

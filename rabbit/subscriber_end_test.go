package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/rabbit"
)

func TestCloseDrains(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	cfg := brisk
	cfg.InFlight = 3
	cfg.CloseTimeout = time.Minute
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, queue)
	send(t, uri, queue, "a", "b", "c", "d", "e")
	held := []*message.Message{receive(t, messages), receive(t, messages)}

	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s.Close() }()
	}
	eventually(t, "the messages that no handler has are given back at once", func() bool { return depth(t, uri, queue) == 3 })
	for _, msg := range held {
		if err := msg.Context().Err(); err != nil {
			t.Errorf("%s: %v, although it can still be acked", msg.UUID, err)
		}
		select {
		case _, ok := <-messages:
			t.Fatalf("got a message or the end of the subscription (open: %v)", ok)
		default:
		}
		msg.Ack()
	}
	for range 2 {
		kit.Check(t, <-closed)
	}
	if _, ok := <-messages; ok {
		t.Error("a message after Close")
	}
	if left := drain(t, uri, queue); len(left) != 3 {
		t.Errorf("left in the queue: %v", left)
	}
}

// Messages that are given back must not be delivered to the same consumer again,
// because each delivery counts towards the delivery limit of the queue.
func TestMessagesGivenBackAreNotDeliveredAgain(t *testing.T) {
	uri := brokerURL(t)
	args := amqp091.Table{"x-queue-type": "quorum"}
	queue := declareQueue(t, uri, args)
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	send(t, uri, queue, ids...)
	cfg := brisk
	cfg.InFlight = 1
	config := queueConfig(uri)
	config.Queue.Arguments = args
	config.Consume.Qos.PrefetchCount = len(ids)
	s := newSubscriber(t, config, cfg)
	held := receive(t, subscribe(t, s, queue))
	eventually(t, "all are prefetched", func() bool { return depth(t, uri, queue) == 0 })
	closed := kit.Go(s.Close)
	eventually(t, "the messages that no handler has are given back", func() bool { return depth(t, uri, queue) == len(ids)-1 })
	held.Ack()
	kit.Check(t, <-closed)

	channel := admin(t, uri)
	for range ids[1:] {
		got, ok, err := channel.Get(queue, true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if count := unmarshal(t, got).Metadata["once_delivery_count"]; count != "1" {
			t.Errorf("%s was delivered %s times", got.MessageId, count)
		}
	}
}

func TestCloseGivesBackUnackedMessages(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	cfg := brisk
	cfg.CloseTimeout = 50 * time.Millisecond
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, queue)
	send(t, uri, queue, "a", "b")
	held := []*message.Message{receive(t, messages), receive(t, messages)}
	for range 2 {
		if err := s.Close(); !errors.Is(err, rabbit.ErrGivenBack) || !strings.Contains(err.Error(), "2 messages") {
			t.Errorf("Close: %v, want 2 given back", err)
		}
	}
	for _, msg := range held {
		if msg.Context().Err() == nil {
			t.Errorf("the context of %s has not ended", msg.UUID)
		}
		msg.Ack() // this is too late
	}
	eventually(t, "they are in the queue again", func() bool { return depth(t, uri, queue) == 2 })
	if left := drain(t, uri, queue); left["a"] != 1 || left["b"] != 1 {
		t.Errorf("left in the queue: %v", left)
	}
}

// If a subscription ends, but not its Subscriber, the connection stays open for other
// subscriptions. So the channel of the subscription must be closed. Otherwise its
// unacked messages would not return to the queue.
func TestEndedSubscriptionGivesBackUnackedMessages(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	cfg := brisk
	cfg.CloseTimeout = 50 * time.Millisecond
	s := newSubscriber(t, queueConfig(uri), cfg)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, err := s.Subscribe(ctx, queue)
	kit.OK(t, err)
	send(t, uri, queue, "a")
	msg := receive(t, messages)
	cancel()
	if _, ok := <-messages; ok {
		t.Error("got a message after the end")
	}
	if msg.Context().Err() == nil {
		t.Error("the context of the message has not ended")
	}
	eventually(t, "the message is in the queue again", func() bool { return depth(t, uri, queue) == 1 })
}

// The context of a message must end before another consumer can get the message. The
// broker may deliver the message to the other consumer before the Subscriber learns
// that its channel is closed, so the context must end even earlier.
func TestContextEndsBeforeAnotherConsumerGetsTheMessage(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	w := newTap(t, uri)
	cfg := brisk
	cfg.CloseTimeout = 50 * time.Millisecond
	cfg.DialTimeout = time.Minute
	s := newSubscriber(t, queueConfig(w.tapped), cfg)
	messages := subscribe(t, s, queue)
	send(t, uri, queue, "a")
	msg := receive(t, messages)
	resume := w.silentAtClose()
	defer resume()
	closed := kit.Go(s.Close)
	eventually(t, "the message is in the queue again", func() bool { return depth(t, uri, queue) == 1 })
	if msg.Context().Err() == nil {
		t.Error("its context has not ended")
	}
	resume()
	if err := <-closed; !errors.Is(err, rabbit.ErrGivenBack) {
		t.Error(err)
	}
}

func TestTrap57_EndOfASubscriptionDoesNotCancelItsMessages(t *testing.T) {
	uri := brokerURL(t)
	ending, staying := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	s := newSubscriber(t, queueConfig(uri), brisk)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	messages, err := s.Subscribe(ctx, ending)
	kit.OK(t, err)
	others := subscribe(t, s, staying)
	send(t, uri, ending, "a")
	msg := receive(t, messages)
	cancel()
	send(t, uri, staying, "b")
	receive(t, others).Ack()
	if err := msg.Context().Err(); err != nil {
		t.Errorf("context: %v", err)
	}
	msg.Ack()
	if _, ok := <-messages; ok {
		t.Error("got a message after the end")
	}
	if n := depth(t, uri, ending); n != 0 {
		t.Errorf("%d messages are left, although the ack came before the end", n)
	}
	if _, err := s.Subscribe(ctx, ending); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe with an ended context: %v", err)
	}
}

// Trap 76. Close does not wait for a stuck queue.
func TestTrap76_CloseOfASubscriptionToAStuckQueue(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	uri := broker.URL("/")
	stuck := declareQueue(t, uri, nil)
	defer suspend(t, broker, stuck)()
	cfg := brisk
	cfg.DialTimeout, cfg.CloseTimeout = time.Second, time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, stuck)
	closesSoon(t, s, messages)
}

// neighbours contains two queues of one subscriber. A test makes the queue named stuck
// stop responding. Messages of the queue named other must still be delivered.
type neighbours struct {
	*testing.T

	broker       *servers.Rabbit
	uri          string
	stuck, other string
	log          *heard
	subscriber   *rabbit.Subscriber
	others       <-chan *message.Message
	held         *message.Message // an unacked message of the queue other
}

func newNeighbours(t *testing.T, closeTimeout time.Duration) *neighbours {
	t.Helper()
	n := &neighbours{T: t, broker: kit.PrivateRabbitInTurn(t), log: new(heard)}
	n.uri = n.broker.URL("/")
	n.stuck, n.other = declareQueue(t, n.uri, nil), declareQueue(t, n.uri, nil)
	cfg := brisk
	cfg.Logger = n.log
	cfg.InFlight = 2
	cfg.DialTimeout, cfg.CloseTimeout = 3*time.Second, closeTimeout
	n.subscriber = newSubscriber(t, queueConfig(n.uri), cfg)
	n.others = subscribe(t, n.subscriber, n.other)
	send(t, n.uri, n.other, "held")
	n.held = receive(t, n.others)
	return n
}

// checkOther fails the test if the queue other no longer delivers messages, or if the
// held message cannot be acked.
func (n *neighbours) checkOther() {
	n.Helper()
	for i := range 10 {
		id := fmt.Sprint("m", i)
		send(n.T, n.uri, n.other, id)
		msg := receive(n.T, n.others)
		if msg.UUID != id {
			n.Errorf("got %s, want %s", msg.UUID, id)
		}
		msg.Ack()
	}
	n.checkHeld()
}

// checkHeld acks the held message, and fails the test if its context has ended.
func (n *neighbours) checkHeld() {
	n.Helper()
	if err := n.held.Context().Err(); err != nil {
		n.Errorf("the context of a message of another queue: %v", err)
	}
	n.held.Ack()
	finished(n.T, "the ack is sent", n.held.Context().Done())
}

// connectedOnce fails the test if the subscriber has connected more than once.
func (n *neighbours) connectedOnce() {
	n.Helper()
	if times := n.log.said(connectedLine); times != 1 {
		n.Errorf("connected %d times: %q", times, n.log.all())
	}
}

// Trap 76. Two subscriptions to a stuck queue end: first one that has consumed from the
// queue, then one that still waits for the queue. Other subscriptions must not be
// affected.
func TestTrap76_EndsOfSubscriptionsToAStuckQueueDoNotAffectOthers(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	n := newNeighbours(t, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	consuming, err := n.subscriber.Subscribe(ctx, n.stuck)
	kit.OK(t, err)
	send(t, n.uri, n.stuck, "acked", "left")
	acked := receive(t, consuming)
	acked.Ack()
	finished(t, "the ack is sent", acked.Context().Done())
	left := receive(t, consuming)
	resume := suspend(t, n.broker, n.stuck)
	defer resume()

	cancel()
	ended(t, consuming)
	finished(t, "the context of the unacked message ends", left.Context().Done())
	left.Ack() // this is too late

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	beginning, err := n.subscriber.Subscribe(ctx, n.stuck) // takes up to DialTimeout, like the end of the first subscription
	kit.OK(t, err)
	cancel()
	ended(t, beginning)
	n.checkOther()

	resume()
	msg := receive(t, subscribe(t, n.subscriber, n.stuck))
	if msg.UUID != "left" {
		t.Errorf("got %s, want the unacked message", msg.UUID)
	}
	msg.Ack()
	kit.Check(t, n.subscriber.Close())
	for _, queue := range []string{n.stuck, n.other} {
		if left := drain(t, n.uri, queue); len(left) != 0 {
			t.Errorf("left in %s: %v", queue, left)
		}
	}
	n.connectedOnce()
}

// Trap 76. Close waits for the messages of other queues until CloseTimeout is over.
func TestTrap76_CloseBesideAStuckQueueWaitsForOthers(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	uri := broker.URL("/")
	stuck, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	cfg := brisk
	cfg.DialTimeout, cfg.CloseTimeout = time.Second, 2*time.Minute
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages, others := subscribe(t, s, stuck), subscribe(t, s, other)
	send(t, uri, other, "held")
	held := receive(t, others)
	defer suspend(t, broker, stuck)()

	closed := kit.Go(s.Close)
	ended(t, messages)
	select {
	case <-held.Context().Done():
		t.Error("the message can no longer be acked")
	case <-time.After(cfg.DialTimeout):
	}
	held.Ack()
	kit.Check(t, <-closed)
	if left := drain(t, uri, other); len(left) != 0 {
		t.Errorf("left in the queue: %v", left)
	}
}

// Trap 76. If a queue is stuck, Subscribe returns when its context ends.
func TestTrap76_ASubscribeToAStuckQueueEndsWithItsContext(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	uri := broker.URL("/")
	stuck := declareQueue(t, uri, nil)
	send(t, uri, stuck, "m")
	resume := suspend(t, broker, stuck)
	defer resume()
	cfg := brisk
	cfg.DialTimeout = 90 * time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	subscribe(t, s, declareQueue(t, uri, nil)) // makes sure that there is a connection

	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.Subscribe(ctx, stuck)
		result <- err
	}()
	select {
	case err := <-result:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	select {
	case err := <-result:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Subscribe did not return")
	}
	resume()
	msg := receive(t, subscribe(t, s, stuck))
	if msg.Metadata.Get("once_redelivered") != "false" {
		t.Error("the message was delivered to the subscription that was cancelled")
	}
	msg.Ack()
}

// Trap 76. If a queue is already stuck when a subscription to it begins, other
// subscriptions are not affected.
func TestTrap76_AStuckQueueDoesNotAffectOtherSubscriptions(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	n := newNeighbours(t, brisk.CloseTimeout)
	resume := suspend(t, n.broker, n.stuck)
	defer resume()

	messages := subscribe(t, n.subscriber, n.stuck)
	n.checkOther()

	resume()
	send(t, n.uri, n.stuck, "late")
	receive(t, messages).Ack()
	n.connectedOnce()
	if times := n.log.said(interruptedLine); times != 1 {
		t.Errorf("interrupted %d times: %q", times, n.log.all())
	}
}

// Trap 76. If a queue is stuck when its topology is declared, subscriptions to other
// queues are not affected.
func TestTrap76_DeclaringAStuckQueueDoesNotAffectSubscriptions(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	n := newNeighbours(t, brisk.CloseTimeout)
	resume := suspend(t, n.broker, n.stuck)
	defer resume()

	if err := n.subscriber.SubscribeInitialize(n.stuck); err == nil {
		t.Error("no error, although the queue is stuck")
	}
	n.checkHeld()
	resume()
	kit.Check(t, n.subscriber.SubscribeInitialize(n.stuck))
	n.connectedOnce()
}

// ended waits for the end of a subscription. It fails the test if a message arrives.
func ended(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			t.Fatalf("got %+v", msg)
		}
	case <-time.After(time.Minute):
		t.Fatal("the subscription has not ended")
	}
}

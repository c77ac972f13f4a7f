package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

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
		if err := <-closed; err != nil {
			t.Error(err)
		}
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
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "the messages that no handler has are given back", func() bool { return depth(t, uri, queue) == len(ids)-1 })
	held.Ack()
	if err := <-closed; err != nil {
		t.Error(err)
	}

	channel := admin(t, uri)
	for range ids[1:] {
		got, ok, err := channel.Get(queue, true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if count := got.Headers["x-delivery-count"]; count != int64(1) {
			t.Errorf("%s was delivered %v times", got.MessageId, count)
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
	if err != nil {
		t.Fatal(err)
	}
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
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
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
	if err != nil {
		t.Fatal(err)
	}
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

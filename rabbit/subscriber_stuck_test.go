package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
)

// Close does not wait for a stuck queue.
func TestTrap76_CloseOfASubscriptionToAStuckQueue(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck := declareQueue(t, uri, nil)
	defer suspend(t, broker, stuck)()
	cfg := brisk
	cfg.DialTimeout, cfg.CloseTimeout = time.Second, time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, stuck)
	closesSoon(t, s, messages)
}

// Two subscriptions to a stuck queue end: one consumes, the other has only begun.
// Other subscriptions are not affected.
func TestTrap76_EndsOfSubscriptionsToAStuckQueueDoNotAffectOthers(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	h := new(heard)
	cfg := brisk
	cfg.Logger = h
	cfg.InFlight = 2
	cfg.DialTimeout, cfg.CloseTimeout = 3*time.Second, time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	others := subscribe(t, s, other)
	send(t, uri, other, "held")
	held := receive(t, others)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	consuming, err := s.Subscribe(ctx, stuck)
	if err != nil {
		t.Fatal(err)
	}
	send(t, uri, stuck, "acked", "left")
	acked := receive(t, consuming)
	acked.Ack()
	finished(t, "the ack is sent", acked.Context().Done())
	left := receive(t, consuming)
	resume := suspend(t, broker, stuck)
	defer resume()

	cancel()
	ended(t, consuming)
	finished(t, "the context of the unacked message ends", left.Context().Done())
	left.Ack() // too late

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	beginning, err := s.Subscribe(ctx, stuck) // takes up to DialTimeout, like the end of the first one
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	ended(t, beginning)
	mustStillDeliver(t, uri, other, others, held)

	resume()
	msg := receive(t, subscribe(t, s, stuck))
	if msg.UUID != "left" {
		t.Errorf("got %s, want the unacked message", msg.UUID)
	}
	msg.Ack()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, queue := range []string{stuck, other} {
		if left := drain(t, uri, queue); len(left) != 0 {
			t.Errorf("left in %s: %v", queue, left)
		}
	}
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
}

// Close waits for the messages of other queues for all of CloseTimeout.
func TestTrap76_CloseBesideAStuckQueueWaitsForOthers(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	cfg := brisk
	cfg.DialTimeout, cfg.CloseTimeout = time.Second, 2*time.Minute
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages, others := subscribe(t, s, stuck), subscribe(t, s, other)
	send(t, uri, other, "held")
	held := receive(t, others)
	defer suspend(t, broker, stuck)()

	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	ended(t, messages)
	select {
	case <-held.Context().Done():
		t.Error("the message can no longer be acked")
	case <-time.After(cfg.DialTimeout):
	}
	held.Ack()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if left := drain(t, uri, other); len(left) != 0 {
		t.Errorf("left in the queue: %v", left)
	}
}

// Subscribe to a stuck queue returns when its context ends.
func TestTrap76_ASubscribeToAStuckQueueEndsWithItsContext(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck := declareQueue(t, uri, nil)
	send(t, uri, stuck, "m")
	resume := suspend(t, broker, stuck)
	defer resume()
	cfg := brisk
	cfg.DialTimeout = 90 * time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	subscribe(t, s, declareQueue(t, uri, nil)) // so that there is a connection

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

// A queue is stuck when a subscription to it begins.
func TestTrap76_AStuckQueueDoesNotAffectOtherSubscriptions(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	h := new(heard)
	cfg := brisk
	cfg.Logger = h
	cfg.InFlight = 2
	cfg.DialTimeout = 3 * time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	others := subscribe(t, s, other)
	send(t, uri, other, "held")
	held := receive(t, others)
	resume := suspend(t, broker, stuck)
	defer resume()

	messages := subscribe(t, s, stuck)
	mustStillDeliver(t, uri, other, others, held)

	resume()
	send(t, uri, stuck, "late")
	receive(t, messages).Ack()
	if n, said := h.said(connectedLine), h.said(interruptedLine); n != 1 || said != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
}

// A queue is stuck when its topology is declared.
func TestTrap76_DeclaringAStuckQueueDoesNotAffectSubscriptions(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	uri := broker.URL("/")
	stuck, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	h := new(heard)
	cfg := brisk
	cfg.Logger = h
	cfg.DialTimeout = 3 * time.Second
	s := newSubscriber(t, queueConfig(uri), cfg)
	others := subscribe(t, s, other)
	send(t, uri, other, "held")
	held := receive(t, others)
	resume := suspend(t, broker, stuck)
	defer resume()

	if err := s.SubscribeInitialize(stuck); err == nil {
		t.Error("no error, although the queue is stuck")
	}
	if err := held.Context().Err(); err != nil {
		t.Errorf("the context of a message of another queue: %v", err)
	}
	held.Ack()
	finished(t, "the ack is sent", held.Context().Done())
	resume()
	if err := s.SubscribeInitialize(stuck); err != nil {
		t.Error(err)
	}
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
}

// mustStillDeliver fails the test unless the queue still delivers messages and held
// can be acked.
func mustStillDeliver(t *testing.T, uri, queue string, messages <-chan *message.Message, held *message.Message) {
	t.Helper()
	for i := range 10 {
		id := fmt.Sprint("m", i)
		send(t, uri, queue, id)
		msg := receive(t, messages)
		if msg.UUID != id {
			t.Errorf("got %s, want %s", msg.UUID, id)
		}
		msg.Ack()
	}
	if err := held.Context().Err(); err != nil {
		t.Errorf("the context of a message of another queue: %v", err)
	}
	held.Ack()
	finished(t, "the ack is sent", held.Context().Done())
}

// ended waits for the end of a subscription and fails on any message.
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

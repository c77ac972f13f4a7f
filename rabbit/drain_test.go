package rabbit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/rabbit"
)

func TestCloseDrains(t *testing.T) {
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
	eventually(t, "what no handler has is given back at once", func() bool { return depth(t, uri, queue) == 3 })
	for _, msg := range held {
		if err := msg.Context().Err(); err != nil {
			t.Errorf("%s: %v: it can still be acked", msg.UUID, err)
		}
		select {
		case _, ok := <-messages:
			t.Fatalf("the subscription goes on or has ended (open: %v)", ok)
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

func TestCloseGivesBackWhatIsNotAcked(t *testing.T) {
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
			t.Errorf("the context of %s goes on", msg.UUID)
		}
		msg.Ack() // too late
	}
	eventually(t, "they are in the queue again", func() bool { return depth(t, uri, queue) == 2 })
	if left := drain(t, uri, queue); left["a"] != 1 || left["b"] != 1 {
		t.Errorf("left in the queue: %v", left)
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
		t.Error("a message after the end")
	}
	if n := depth(t, uri, ending); n != 0 {
		t.Errorf("%d messages are left: the ack came before the end", n)
	}
	if _, err := s.Subscribe(ctx, ending); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe with an ended context: %v", err)
	}
}

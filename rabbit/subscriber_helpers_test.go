package rabbit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// brisk is a configuration with short pauses.
var brisk = rabbit.SubscriberConfig{
	NackMin:      10 * time.Millisecond,
	ReadyTimeout: time.Minute,      // the broker may be busy
	DialTimeout:  20 * time.Second, // the broker may be busy
	CloseTimeout: 20 * time.Second,
	ReconnectMin: 10 * time.Millisecond,
	ReconnectMax: 100 * time.Millisecond,
}

func newSubscriber(t testing.TB, config amqp.Config, cfg rabbit.SubscriberConfig) *rabbit.Subscriber {
	t.Helper()
	s, err := rabbit.NewSubscriber(config, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, s.Close) })
	return s
}

func subscribe(t testing.TB, s message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(context.WithoutCancel(t.Context()), topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// receive returns the next message. It fails the test if the payload is empty, because
// no test sends such a message.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the subscription has ended")
		}
		if len(msg.Payload) == 0 {
			t.Fatalf("got a message that was never sent: %+v", msg)
		}
		return msg
	case <-time.After(time.Minute):
		t.Fatal("no message within a minute")
		return nil
	}
}

// nothing fails the test if a message arrives within 200 ms.
func nothing(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		t.Fatalf("got %+v (open: %v)", msg, ok)
	case <-time.After(200 * time.Millisecond):
	}
}

func finished(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
}

// send publishes messages with the given ids to a queue.
func send(t testing.TB, uri, queue string, ids ...string) {
	t.Helper()
	if id := unconfirmed(t, uri, queue, ids...); id != "" {
		t.Fatalf("%s was not confirmed", id)
	}
}

// unconfirmed is like send, but returns the first id that the broker did not confirm. A
// new quorum queue refuses messages until it has a leader, which takes a moment.
func unconfirmed(t testing.TB, uri, queue string, ids ...string) string {
	t.Helper()
	channel := admin(t, uri)
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
			MessageId: id, DeliveryMode: amqp091.Persistent, Body: []byte("payload of " + id),
		})
		if err != nil {
			t.Fatal(err)
		}
		if !confirm.Wait() {
			return id
		}
	}
	return ""
}

// depth returns the number of ready messages in a queue, or -1 if the queue does not
// exist.
func depth(t testing.TB, uri, queue string) int {
	t.Helper()
	conn, err := amqp091.Dial(uri)
	if err != nil {
		return -1
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return -1
	}
	found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return -1
	}
	return found.Messages
}

// handled acks messages and counts them by id.
type handled struct {
	mu    sync.Mutex
	count map[string]int
	ended chan struct{}
}

func handle(messages <-chan *message.Message) *handled {
	h := &handled{count: make(map[string]int), ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		for msg := range messages {
			h.mu.Lock()
			h.count[msg.UUID]++
			h.mu.Unlock()
			msg.Ack()
		}
	}()
	return h
}

func (h *handled) ids() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.count)
}

func (h *handled) of(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count[id]
}

// closesSoon closes a subscriber whose broker or queue does not respond. It fails the
// test if this takes too long.
func closesSoon(t *testing.T, s *rabbit.Subscriber, messages <-chan *message.Message) {
	t.Helper()
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Close took %v", took)
	}
	if _, ok := <-messages; ok {
		t.Error("got a message after Close")
	}
}

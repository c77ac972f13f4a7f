package rabbit_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
)

// suspend makes a queue stuck until resume is called. Callers must defer resume:
// the deletion of a stuck queue waits for ever.
func suspend(t *testing.T, broker *servers.Rabbit, queue string) (resume func()) {
	t.Helper()
	tell := func(what string) {
		eval(t, broker, fmt.Sprintf(
			`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`,
			queue, what))
	}
	tell("suspend")
	return sync.OnceFunc(func() { tell("resume") })
}

// A stuck queue does not stop other queues of the same connection.
func TestTrap76_OneStuckQueueStopsNoOther(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	cfg.ConfirmTimeout, cfg.WriteTimeout = 3*time.Second, 10*time.Second // enough for a busy broker
	cfg.ReadyTimeout = time.Minute
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, stuck)
	resume := suspend(t, broker, stuck)
	defer resume()

	for round, calm := 0, 0; calm < 3; round++ {
		var lost outcomes
		for _, msg := range numbered(fmt.Sprint("stuck", round, "-"), 10) {
			lost.publish(p, stuck, msg)
		}
		// Publish to the other queue until the messages of the stuck queue are overdue.
		var err error
		for err == nil && lost.reported() < 10 {
			err = p.Publish(other, numbered("fine", 10)...)
		}
		switch {
		case err == nil:
			calm++
		case round-calm == 3: // the machine may have stood still, but not every time
			mustBe(t, "confirmed", err)
		}
		for id, err := range lost.wait(t) {
			if got := outcomeOf(err); got != "unknown" {
				t.Errorf("%s is %s (%v), want unknown", id, got, err)
			}
		}
	}
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}

	resume()
	connected(t, p, stuck)
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

// The broker stops reading from a connection that sends too many messages to a
// stuck queue. The Publisher recovers from that.
func TestTrap76_AFloodToAStuckQueueEnds(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	p := newPublisher(t, queueConfig(broker.URL("/")), impatient)
	connected(t, p, stuck)
	defer suspend(t, broker, stuck)()

	var all outcomes
	for _, msg := range numbered("stuck", 4000) {
		all.publish(p, stuck, msg)
	}
	for id, err := range all.wait(t) {
		if got := outcomeOf(err); got != "unknown" && got != "unavailable" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	eventually(t, "a message to the other queue is confirmed", func() bool { return p.Publish(other, newMessage("m")) == nil })
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

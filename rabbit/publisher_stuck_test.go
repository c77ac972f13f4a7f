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

// suspend stops a queue from doing anything until resume is called, which has
// to be deferred: a queue that does not answer cannot be deleted, and who tries
// waits for good.
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

// One queue that does not answer, and others on the same connection that do.
func TestTrap76_OneStuckQueueStopsNoOther(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	cfg.ConfirmTimeout, cfg.WriteTimeout = 3*time.Second, 10*time.Second // more than a broker takes that has other things to do
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
		// Others all the while, until those of the stuck queue are overdue.
		var err error
		for err == nil && lost.reported() < 10 {
			err = p.Publish(other, numbered("fine", 10)...)
		}
		switch {
		case err == nil:
			calm++
		case round-calm == 3: // a machine can stand still, but not each time
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

// A queue that does not answer when a subscription to it begins.
func TestTrap76_AStuckQueueCostsOtherSubscriptionsNothing(t *testing.T) {
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
	goesOn(t, uri, other, others, held)

	resume()
	send(t, uri, stuck, "late")
	receive(t, messages).Ack()
	if n, said := h.said(connectedLine), h.said(interruptedLine); n != 1 || said != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
}

// More than the broker takes for a queue that does not answer: it stops reading
// from the connection, and everybody on it has to wait.
func TestTrap76_AFloodToAStuckQueueIsGotOver(t *testing.T) {
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
	eventually(t, "others get through", func() bool { return p.Publish(other, newMessage("m")) == nil })
}

// A queue that does not answer when its topology is declared.
func TestTrap76_DeclaringAStuckQueueCostsSubscriptionsNothing(t *testing.T) {
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
		t.Error("the queue did not answer, and there is no error")
	}
	if err := held.Context().Err(); err != nil {
		t.Errorf("the context of a message of another queue: %v", err)
	}
	held.Ack()
	finished(t, "it is answered", held.Context().Done())
	resume()
	if err := s.SubscribeInitialize(stuck); err != nil {
		t.Error(err)
	}
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
}

// goesOn fails the test unless messages of another queue come and are acked, the
// one that was held since before among them.
func goesOn(t *testing.T, uri, queue string, messages <-chan *message.Message, held *message.Message) {
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
	finished(t, "it is answered", held.Context().Done())
}

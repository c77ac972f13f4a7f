package rabbit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// Trap 76. A stuck queue does not stop messages to other queues on the same connection.
func TestTrap76_OneStuckQueueStopsNoOther(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	broker := testkit.PrivateRabbitInTurn(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	cfg.ConfirmTimeout, cfg.WriteTimeout = 3*time.Second, 10*time.Second // long enough for a busy broker
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
		// Publish to the other queue until the messages to the stuck queue are overdue.
		var err error
		for err == nil && lost.reported() < 10 {
			err = p.Publish(other, numbered("fine", 10)...)
		}
		switch {
		case err == nil:
			calm++
		case round-calm == 3: // a pause of the machine can happen once, but not every time
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

// Trap 76. The broker stops reading from a connection that sends too many messages to a
// stuck queue. The Publisher recovers from this.
func TestTrap76_AFloodToAStuckQueueEnds(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	broker := testkit.PrivateRabbitInTurn(t)
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

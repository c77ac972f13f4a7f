package observability

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
)

// Each configured topic has its own series. All other topics share one series.
func TestConfiguredTopicsHaveTheirOwnSeries(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box := w.database(), w.outbox()
	pub := &scripted{answer: func(_ string, msg *message.Message) error {
		if msg.UUID == "hopeless" {
			return outcomeError("unacceptable")
		}
		return nil
	}}
	t.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{Topics: []string{"orders", "payments", "orders"}})
	w.awaitValue(0, "once.forwarder.dead", "messaging.destination.name=other once.reason=exhausted") // from the start
	for id, topic := range map[string]string{"1": "orders", "2": "orders", "3": "payments", "4": "a", "hopeless": "b"} {
		w.publish(t.Context(), db, box, topic, message.NewMessage(id, nil))
	}
	w.awaitValue(2, "once.forwarder.published", "messaging.destination.name=orders once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.published", "messaging.destination.name=payments once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.published", "messaging.destination.name=other once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.dead", "messaging.destination.name=other once.reason=unacceptable")
	if n := len(w.instruments()["once.forwarder.published"].series); n != 3*5 {
		t.Errorf("%d series", n)
	}
}

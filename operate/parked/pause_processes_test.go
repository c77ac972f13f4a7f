package parked_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

func bePausable(db *sql.DB) error {
	return beHandling(db, once.ConsumerConfig{Retry: retry.Config{Lease: processLease}}, 2, insertEffect)
}

// Trap 119. Two processes handle the messages of a queue. An operator pauses their consumer. Both
// close their subscriptions, and the messages stay in the queue, although one process is
// killed and another one starts. After the pause, each message takes effect once, and no
// attempt was counted.
func TestPausedConsumerOfTwoProcessesLeavesMessagesInQueue(t *testing.T) {
	t.Parallel()
	b := newFleet(t, "pausable", "")
	conn, err := amqp091.Dial(b.url)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	queue := func() (found amqp091.Queue) { // the passive declaration of a missing queue closes its channel
		channel, err := conn.Channel()
		kit.OK(t, err)
		defer channel.Close()
		found, _ = channel.QueueDeclarePassive(topic, true, false, false, false, nil)
		return found
	}
	published := 0
	publish := func(n int) {
		t.Helper()
		for range n {
			b.publish(fmt.Sprint("m", published), "")
			published++
		}
	}
	_, kill := b.start()
	b.start()
	b.eventually("both subscribe", func() bool { return queue().Consumers == 2 })
	publish(20)
	b.eventually("they handle messages", func() bool { return b.effects() == 20 })
	b.eventually("both are registered", func() bool { return b.Number(`SELECT COUNT(*) FROM once_consumer_instances`) == 2 })

	kit.OK(t, kit.Err(b.messages.PauseConsumer(t.Context(), ann, consumer, "")))
	began := time.Now()
	b.eventually("both close their subscriptions", func() bool { return queue().Consumers == 0 })
	t.Logf("paused within %v", time.Since(began).Round(time.Millisecond))
	publish(30)
	kill()
	b.start()
	b.eventually("the new process is registered", func() bool {
		return b.Number(`SELECT COUNT(*) FROM once_consumer_instances`) == 3
	})
	if q := queue(); q.Messages != 30 || q.Consumers != 0 {
		t.Errorf("the queue has %d messages and %d consumers, want 30 and none", q.Messages, q.Consumers)
	}
	if n := b.effects(); n != 20 {
		t.Errorf("%d effects during the pause, want 20", n)
	}
	b.WantNumber(0, `SELECT COUNT(*) FROM once_parked`)

	if topics, err := b.messages.ResumeConsumer(t.Context(), ann, consumer, topic); err != nil || len(topics) != 1 {
		t.Fatalf("resumed %q: %v", topics, err)
	}
	began = time.Now()
	b.eventually("all are handled", func() bool { return b.effects() == published })
	t.Logf("all handled within %v", time.Since(began).Round(time.Millisecond))
	b.hasEachOnce(published)
	b.WantNumber(0, `SELECT COUNT(*) FROM once_parked WHERE attempts > 0 OR crashes > 0`)
	if c := b.consumers()[0]; c.Pause != nil || c.Quarantined != 0 {
		t.Errorf("consumer %+v", c)
	}
}

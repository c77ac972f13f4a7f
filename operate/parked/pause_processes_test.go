package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

const processURL = "ONCE_TEST_PARKED_URL"

// bePausable handles the messages of a queue of RabbitMQ.
func bePausable(db *sql.DB) error {
	quiet := watermill.NopLogger{}
	c, err1 := once.NewConsumer(db, once.ConsumerConfig{Retry: retry.Config{Lease: processLease, Logger: quiet}})
	sub, err2 := rabbit.NewSubscriber(wamqp.NewDurableQueueConfig(os.Getenv(processURL)), rabbit.SubscriberConfig{InFlight: 2, Logger: quiet})
	router, err3 := message.NewRouter(message.RouterConfig{}, quiet)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c.AddHandler(router, consumer, topic, sub, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
		return nil, err
	})
	return router.Run(context.Background())
}

// Trap 119. Two processes handle the messages of a queue. An operator pauses their consumer. Both
// close their subscriptions, and the messages stay in the queue, although one process is
// killed and another one starts. After the pause, each message takes effect once, and no
// attempt was counted.
func TestPausedConsumerOfTwoProcessesLeavesMessagesInQueue(t *testing.T) {
	t.Parallel()
	b, broker := newBench(t, kit.Postgres(t)), kit.Rabbit(t)
	b.Exec(`CREATE TABLE effects (message_id text NOT NULL)`)
	start := func() (kill func()) {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), processDSN+"="+b.DSN, processRole+"=pausable", processURL+"="+broker.URL)
		command.Stderr = os.Stderr
		ended := kit.StartChild(t, command)
		return func() {
			_ = command.Process.Kill()
			<-ended
		}
	}
	conn, err := amqp091.Dial(broker.URL)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	queue := func() (found amqp091.Queue) { // the passive declaration of a missing queue closes its channel
		channel, err := conn.Channel()
		kit.OK(t, err)
		defer channel.Close()
		found, _ = channel.QueueDeclarePassive(topic, true, false, false, false, nil)
		return found
	}
	publisher, err := rabbit.NewPublisher(wamqp.NewDurableQueueConfig(broker.URL), rabbit.PublisherConfig{})
	kit.OK(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	published := 0
	publish := func(n int) {
		t.Helper()
		for range n {
			kit.OK(t, publisher.Publish(topic, message.NewMessage(fmt.Sprint("m", published), nil)))
			published++
		}
	}
	effects := func() int { return b.Number(`SELECT COUNT(*) FROM effects`) }

	kill := start()
	start()
	kit.Eventually(t, time.Minute, "both subscribe", func() bool { return queue().Consumers == 2 })
	publish(20)
	kit.Eventually(t, time.Minute, "they handle messages", func() bool { return effects() == 20 })

	kit.OK(t, kit.Err(b.messages.PauseConsumer(t.Context(), ann, consumer, "")))
	began := time.Now()
	kit.Eventually(t, time.Minute, "both close their subscriptions", func() bool { return queue().Consumers == 0 })
	t.Logf("paused within %v", time.Since(began).Round(time.Millisecond))
	publish(30)
	kill()
	start()
	kit.Eventually(t, time.Minute, "the new process is registered", func() bool {
		return b.Number(`SELECT COUNT(*) FROM once_consumer_instances`) == 3
	})
	if q := queue(); q.Messages != 30 || q.Consumers != 0 {
		t.Errorf("the queue has %d messages and %d consumers, want 30 and none", q.Messages, q.Consumers)
	}
	if n := effects(); n != 20 {
		t.Errorf("%d effects during the pause, want 20", n)
	}
	b.WantNumber(0, `SELECT COUNT(*) FROM once_parked`)

	if topics, err := b.messages.ResumeConsumer(t.Context(), ann, consumer, topic); err != nil || len(topics) != 1 {
		t.Fatalf("resumed %q: %v", topics, err)
	}
	began = time.Now()
	kit.Eventually(t, time.Minute, "all are handled", func() bool { return effects() == published })
	t.Logf("all handled within %v", time.Since(began).Round(time.Millisecond))
	b.WantNumber(published, `SELECT COUNT(DISTINCT message_id) FROM effects`)
	b.WantNumber(0, `SELECT COUNT(*) FROM once_parked WHERE attempts > 0 OR crashes > 0`)
	if c := b.consumers()[0]; c.Pause != nil || c.Quarantined != 0 {
		t.Errorf("consumer %+v", c)
	}
}

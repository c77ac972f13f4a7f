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

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

const limitPerSecond = 50

// beLimited handles the messages of a queue of RabbitMQ at the pace of a limit.
func beLimited(db *sql.DB) error {
	quiet := watermill.NopLogger{}
	c, err1 := once.NewConsumer(db, once.ConsumerConfig{Retry: retry.Config{
		Lease: 3 * time.Second, Logger: quiet, Limits: retry.Limits{PerSecond: limitPerSecond},
	}})
	sub, err2 := rabbit.NewSubscriber(wamqp.NewDurableQueueConfig(os.Getenv(processURL)), rabbit.SubscriberConfig{InFlight: 10, Logger: quiet})
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

// Trap 121. Three processes keep one limit together, also when one of them is killed, and another
// one starts. Each message takes effect once, and no attempt was counted.
func TestLimitOfThreeProcessesOfWhichOneIsKilled(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b, broker := newBench(t, kit.Postgres(t)), kit.Rabbit(t)
	b.Exec(`CREATE TABLE effects (message_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	start := func() (kill func()) {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), processDSN+"="+b.DSN, processRole+"=limited", processURL+"="+broker.URL)
		command.Stderr = os.Stderr
		ended := kit.StartChild(t, command)
		return func() {
			_ = command.Process.Kill()
			<-ended
		}
	}
	kill := start()
	start()
	start()
	kit.Eventually(t, time.Minute, "three instances run", func() bool { return b.Count(`once_consumer_instances`) == 3 })
	publisher, err := rabbit.NewPublisher(wamqp.NewDurableQueueConfig(broker.URL), rabbit.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.Close() })
	const phase = 12 * limitPerSecond
	for n := range 3*phase + 4*limitPerSecond {
		if err := publisher.Publish(topic, message.NewMessage(fmt.Sprint("m", n), nil)); err != nil {
			t.Fatal(err)
		}
	}
	handled := func(n int) {
		t.Helper()
		kit.Eventually(t, 2*time.Minute, fmt.Sprint(n, " messages have taken effect"), func() bool { return b.Count(`effects`) >= n })
	}
	handled(phase)
	kill()
	handled(2 * phase)
	start()
	handled(3 * phase)

	// From each effect on, except for the last 10 seconds, and the burst at the beginning.
	within := func(seconds int) (least, most int) {
		err := b.DB.QueryRowContext(t.Context(), fmt.Sprintf(`
			SELECT MIN(n), MAX(n)
			FROM (SELECT at, COUNT(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND interval '%d seconds' FOLLOWING) AS n
			      FROM (SELECT * FROM effects ORDER BY at LIMIT %d) AS e) AS w
			WHERE at BETWEEN (SELECT MIN(at) + interval '2 seconds' FROM effects)
			          AND (SELECT at - interval '%[1]d seconds' FROM effects ORDER BY at OFFSET %[2]d - 1 LIMIT 1)`,
			seconds, 3*phase)).Scan(&least, &most)
		if err != nil {
			t.Fatal(err)
		}
		return least, most
	}
	least, most := within(10)
	_, inOne := within(1)
	t.Logf("%d to %d effects in 10 seconds, at most %d in one second", least, most, inOne)
	// Without a stop of this machine they are 10, 10 and 1 times the limit. With three limits instead of
	// one they are three times as many.
	if least < 2*limitPerSecond || most > 14*limitPerSecond || inOne > 3*limitPerSecond {
		t.Errorf("%d to %d effects in 10 seconds, at most %d in one, with a limit and a burst of %d", least, most, inOne, limitPerSecond)
	}
	if first := b.Count(`effects WHERE at < (SELECT MIN(at) + interval '1 second' FROM effects)`); first > 3*limitPerSecond {
		t.Errorf("%d effects in the first second, want at most %d", first, 3*limitPerSecond)
	}
	if n := b.Count(`once_parked WHERE attempts > 0 OR rounds > 0 OR state = 'quarantined'`); n != 0 {
		t.Errorf("%d messages were charged", n)
	}
	if n := b.Number(`SELECT COUNT(*) - COUNT(DISTINCT message_id) FROM effects`); n != 0 {
		t.Errorf("%d messages took effect twice", n)
	}
}

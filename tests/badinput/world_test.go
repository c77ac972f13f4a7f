package badinput

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const (
	topic    = "events"
	consumer = "worker"
)

// world is a service whose consumer records the messages that it handles.
type world struct {
	*testing.T

	db     *sql.DB
	config schema.Config
	broker string // URL of RabbitMQ; if it is empty, messages go through the database
	logs   *kit.Logs

	consumer *once.Consumer
	router   *message.Router
	local    *embedded.Transport
}

// lease is the duration of a claim. On a busy machine SQLite may let a claim wait for the write
// lock for seconds, and a claim that takes longer than its lease fails.
const lease = 10 * time.Second

// eachWorld runs a test with PostgreSQL and RabbitMQ, and with SQLite without a broker.
func eachWorld(t *testing.T, lease time.Duration, test func(w *world)) {
	t.Helper()
	t.Run("servers", func(t *testing.T) {
		test(newWorld(t, kit.Postgres(t), kit.Rabbit(t).URL, lease))
	})
	t.Run("sqlite", func(t *testing.T) {
		test(newWorld(t, kit.SQLite(t), "", lease))
	})
}

// newWorld returns a world whose tables exist. Its consumer and its forwarder are not running yet.
func newWorld(t *testing.T, db kit.Database, broker string, lease time.Duration) *world {
	t.Helper()
	w := &world{
		T: t, db: db.DB, config: schema.Config{Dialect: schema.Dialect(db.Dialect)}, broker: broker, logs: &kit.Logs{},
	}
	kit.OK(t, schema.Up(t.Context(), w.db, w.config))
	binary := "bytea"
	if w.lite() {
		binary = "blob"
	}
	t.Cleanup(w.tell)
	w.exec(`CREATE TABLE effects (payload ` + binary + `)`) // the payload is not unique, so that a repeated effect is visible
	var err error
	if w.consumer, err = once.NewConsumer(w.db, once.ConsumerConfig{
		Schema: w.config,
		Logger: w.logs,
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: -1, Delayed: -1},
			PollInterval: 10 * time.Millisecond,
			Lease:        lease,
		},
	}); err != nil {
		t.Fatal(err)
	}
	w.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, err)
	if w.broker == "" {
		w.local, err = embedded.New(w.db, embedded.Config{Schema: w.config})
		kit.OK(t, err)
	}
	w.consumer.AddHandler(w.router, consumer, topic, w.subscriber(), w.handle)
	return w
}

func (w *world) lite() bool { return w.config.Dialect == schema.SQLite }

// handle records a message. The payload is the name of the case. For some names, handle
// fails or produces a message.
func (w *world) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	if p := string(msg.Payload); strings.HasPrefix(p, "fail: ") && !strings.HasSuffix(p, " before") && !strings.HasSuffix(p, " after") {
		return nil, retry.Permanent(fmt.Errorf("it says %q", msg.Payload))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (payload) VALUES ($1)`, []byte(msg.Payload))
	if p := string(msg.Payload); strings.HasPrefix(p, passOn) && !strings.HasSuffix(p, " before") && !strings.HasSuffix(p, " after") {
		produced := message.NewMessage(p, []byte(p+" produced"))
		produced.Metadata = msg.Metadata
		if produced.Metadata[outbox.Topic] == "" {
			outbox.SetTopic(produced, "produced")
		}
		return []*message.Message{produced}, err
	}
	return nil, err
}

// passOn is the prefix of cases whose handler produces a message with the same
// metadata.
const passOn = "passed on: "

func (w *world) amqp() wamqp.Config {
	config := wamqp.NewDurablePubSubConfig(w.broker, wamqp.GenerateQueueNameTopicNameWithSuffix(consumer))
	config.Marshaler = rabbit.Marshaler{}
	return config
}

// subscriber returns the subscriber of the consumer, and declares the consumer's queue.
func (w *world) subscriber() message.Subscriber {
	w.Helper()
	if w.broker == "" {
		return w.local.Subscriber()
	}
	sub, err := rabbit.NewSubscriber(w.amqp(), rabbit.SubscriberConfig{Logger: w.logs})
	kit.OK(w, err)
	kit.OK(w, sub.SubscribeInitialize(topic))
	return sub
}

// consume runs the consumer until the test ends.
func (w *world) consume() {
	w.Helper()
	ended := kit.Go(func() error { return w.router.Run(context.WithoutCancel(w.Context())) })
	select {
	case <-w.router.Running():
	case err := <-ended:
		w.Fatalf("router: %v", err)
	}
	w.Cleanup(func() {
		if err := w.router.Close(); err != nil {
			w.Errorf("router: %v", err)
		}
		if err := <-ended; err != nil {
			w.Errorf("router: %v", err)
		}
	})
}

// forward runs a forwarder until the test ends.
func (w *world) forward() {
	w.Helper()
	var publisher message.Publisher = w.local
	if w.broker != "" {
		p, err := rabbit.NewPublisher(w.amqp(), rabbit.PublisherConfig{Logger: w.logs})
		kit.OK(w, err)
		w.Cleanup(func() {
			if err := p.Close(); err != nil {
				w.Errorf("publisher: %v", err)
			}
		})
		publisher = p
	}
	f, err := forwarder.New(w.db, publisher, forwarder.Config{
		Schema: w.config, Logger: w.logs, MaxAttempts: 3, StallTimeout: time.Second, PollMax: 20 * time.Millisecond,
		Backoff: func(int) time.Duration { return time.Millisecond },
	})
	kit.OK(w, err)
	ended := kit.Go(func() error { return f.Run(context.WithoutCancel(w.Context())) })
	w.Cleanup(func() {
		if err := f.Close(); err != nil {
			w.Errorf("forwarder: %v", err)
		}
		if err := <-ended; err != nil {
			w.Errorf("forwarder: %v", err)
		}
	})
}

// put commits a message whose payload is its id.
func (w *world) put(id string) {
	w.Helper()
	box, err := outbox.New(outbox.Config{Schema: w.config})
	kit.OK(w, err)
	kit.OK(w, box.InTx(w.Context(), w.db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, message.NewMessage(id, []byte(id)))
	}))
}

// send publishes a message to the broker with amqp091.
func (w *world) send(channel *amqp.Channel, p amqp.Publishing) error {
	return channel.PublishWithContext(w.Context(), topic, "", false, false, p)
}

func (w *world) exec(query string, args ...any) {
	w.Helper()
	if _, err := w.db.ExecContext(w.Context(), query, args...); err != nil {
		w.Fatalf("%s: %v", query, err)
	}
}

func (w *world) count(query string) int {
	w.Helper()
	var n int
	if err := w.db.QueryRowContext(w.Context(), `SELECT COUNT(*) FROM `+query).Scan(&n); err != nil {
		w.Fatalf("%s: %v", query, err)
	}
	return n
}

func (w *world) eventually(what string, cond func() bool) {
	w.Helper()
	kit.Eventually(w.T, 5*time.Minute, what, cond)
}

// tell logs the error lines and the remaining rows if the test has failed.
func (w *world) tell() {
	if !w.Failed() {
		return
	}
	for _, line := range w.logs.Lines() {
		if strings.HasPrefix(line, "ERROR") && !strings.Contains(line, "is dead") && !strings.Contains(line, "quarantined") {
			w.Logf("%.300s", line)
		}
	}
	for _, table := range []string{
		`once_outbox`, `once_outbox_dead`, `effects`, `once_parked WHERE state IN ('waiting', 'held')`, `once_blocked_keys`,
	} {
		var n int
		err := w.db.QueryRowContext(context.WithoutCancel(w.Context()), `SELECT COUNT(*) FROM `+table).Scan(&n)
		w.Logf("%d in %s (%v)", n, table, err)
	}
}

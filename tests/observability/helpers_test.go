package observability

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// database returns a PostgreSQL database with our tables.
func (w *watch) database() *sql.DB {
	w.Helper()
	db := testkit.Postgres(w.T).DB
	if err := schema.Up(w.Context(), db, schema.Config{}); err != nil {
		w.Fatal(err)
	}
	return db
}

func (w *watch) outbox() *outbox.Outbox {
	w.Helper()
	box, err := outbox.New(outbox.Config{MeterProvider: w.meters, TracerProvider: w.traces})
	if err != nil {
		w.Fatal(err)
	}
	return box
}

// publish commits messages to the outbox.
func (w *watch) publish(ctx context.Context, db *sql.DB, box *outbox.Outbox, topic string, msgs ...*message.Message) {
	w.Helper()
	err := box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error { return events.Publish(topic, msgs...) })
	if err != nil {
		w.Fatal(err)
	}
}

// forward runs a forwarder until the test ends, or end is called.
func (w *watch) forward(db *sql.DB, publisher message.Publisher, config forwarder.Config) (end func()) {
	w.Helper()
	config.MeterProvider, config.TracerProvider, config.Logger = w.meters, w.traces, &w.logs
	config.PollMax = 20 * time.Millisecond
	f, err := forwarder.New(db, publisher, config)
	if err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.WithoutCancel(w.Context())) }()
	end = sync.OnceFunc(func() {
		if err := errors.Join(f.Close(), <-ended); err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(end)
	return end
}

// rabbit returns a publisher to RabbitMQ, closed when the test ends.
func (w *watch) rabbit(config wamqp.Config, cfg rabbit.PublisherConfig) *rabbit.Publisher {
	w.Helper()
	cfg.MeterProvider, cfg.Logger = w.meters, &w.logs
	publisher, err := rabbit.NewPublisher(config, cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = publisher.Close() })
	return publisher
}

// queue returns a configuration that publishes to the queue named by the topic.
func queue(url string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler = rabbit.Marshaler{}
	return config
}

// declare declares a queue.
func (w *watch) declare(url, name string, args amqp.Table) *amqp.Channel {
	w.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(name, true, false, false, false, args)
	}
	if err != nil {
		w.Fatal(err)
	}
	return channel
}

func (w *watch) exec(db *sql.DB, query string) {
	w.Helper()
	if _, err := db.ExecContext(w.Context(), query); err != nil {
		w.Fatal(err)
	}
}

// scripted is a publisher whose outcomes are the results of the function answer. It
// reports them from its own goroutines.
type scripted struct {
	answer  func(topic string, msg *message.Message) error
	running sync.WaitGroup
}

func (s *scripted) Publish(topic string, msgs ...*message.Message) error {
	return errors.New("only PublishAsync is used")
}

func (s *scripted) Close() error { return nil }

func (s *scripted) PublishAsync(topic string, msg *message.Message, done func(error)) {
	s.running.Go(func() { done(s.answer(topic, msg)) })
}

// outcomeError is an error that reports its own outcome, like the errors of package
// rabbit.
type outcomeError string

func (e outcomeError) Error() string      { return string(e) }
func (e outcomeError) Refused() bool      { return e == "refused" }
func (e outcomeError) Unacceptable() bool { return e == "unacceptable" }
func (e outcomeError) Unavailable() bool  { return e == "unavailable" }

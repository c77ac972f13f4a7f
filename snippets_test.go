package once_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/lazytx"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// The functions below are the code of README.md and docs/: what stands there
// in a Go block stands here too, and so it compiles.

func serve(ctx context.Context, db *sql.DB, config amqp.Config, router *message.Router) error {
	if err := schema.Up(ctx, db, schema.Config{}); err != nil { // creates the tables
		return err
	}
	config.Marshaler = rabbit.Marshaler{}
	publisher, err1 := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	subscriber, err2 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	consumer, err3 := once.NewConsumer(db, once.ConsumerConfig{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
			return nil, err // an error rolls back; the message is tried again later
		})
	return once.Run(ctx, once.DefaultGrace, router, fwd, publisher) // until ctx ends
}

func placeOrder(ctx context.Context, db *sql.DB, order string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		return events.Publish("orders.placed", outbox.NewMessage([]byte(order)))
	})
}

var _, _ = serve, placeOrder

func _(ctx context.Context, db *sql.DB) error {
	text, err := schema.Roles(schema.Config{}, "orders_")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, text) // as the owner of the tables
	return err
}

func _(db *sql.DB) (*once.Consumer, error) {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Retry: retry.Config{KeyOrder: retry.BlockWhileRetried},
	})
	return consumer, err
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, capture once.HandlerFunc) {
	// The handler stays what it is, and is called for one message after another.
	consumer.AddHandlerInBatches(router, "payments", "orders.placed", subscriber, capture)

	// The handler gets all messages, and writes them with one statement.
	consumer.AddBatchHandler(router, "revenue", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, orders []*message.Message) ([]*message.Message, error) {
			ids := make([]string, len(orders))
			for n, order := range orders {
				ids[n] = order.UUID
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO booked (order_id) SELECT unnest($1::text[])`, pq.Array(ids))
			return nil, err
		})
}

func _(db *sql.DB, amqpConfig amqp.Config, router *message.Router, notify once.HandlerFunc) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		DurableConsumers: []string{"notifications"},
	})
	if err != nil {
		return err
	}
	subscriber, err := rabbit.NewSubscriber(amqpConfig, rabbit.SubscriberConfig{InFlight: 1000}) // twice a batch
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "notifications", "payments.captured", subscriber, notify)
	return nil
}

func _(db *sql.DB) (*once.Consumer, error) {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Sequence: &sequence.Config{},
	})
	return consumer, err
}

func _() *sequence.Config {
	return &sequence.Config{
		Policy:      sequence.HoldForGap,
		First:       sequence.FromZero, // versions begin at 0; the default is 1
		Window:      time.Hour,         // the default is 15 minutes, or longer than retry tries a message
		AfterWindow: sequence.Apply,    // the default is Quarantine; or a function: OnGap
	}
}

func _(db *sql.DB, router *message.Router, inbox *dedup.Inbox) error {
	order, err := sequence.New(sequence.Config{Tx: dedup.TxFromContext})
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware, order.Middleware) // inside of dedup
	return nil
}

func _(ctx context.Context, db *sql.DB) error {
	tables := schema.Config{Inbox: schema.ByDay}
	if err := schema.Up(ctx, db, tables); err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func _(ctx context.Context, db *sql.DB, fwd *forwarder.Forwarder, order string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		return events.Publish("orders.placed", outbox.NewMessage([]byte(order)))
	}, fwd.Hint)
}

func _(ctx context.Context, db *sql.DB, amqpConfig amqp.Config) error {
	amqpConfig.Marshaler = rabbit.Marshaler{}
	publisher, err := rabbit.NewPublisher(amqpConfig, rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return err
	}
	return fwd.Run(ctx) // until ctx ends, or fwd.Close
}

func _(router *message.Router, fwd *forwarder.Forwarder, publisher *rabbit.Publisher, db *sql.DB) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return once.Run(ctx, once.DefaultGrace, router, fwd, publisher, db)
}

func _(router *message.Router, quarantine *poison.Quarantine, retries *retry.Retries, inbox *dedup.Inbox) {
	router.AddPlugin(once.Plugin(quarantine, retries, inbox))
}

func _(dsn string, fwd *forwarder.Forwarder) error {
	listener := pq.NewListener(dsn, time.Second, time.Minute, nil) // directly: LISTEN does not pass a pooler in transaction mode
	defer listener.Close()
	if err := listener.Listen("once_outbox"); err != nil {
		return err
	}
	for range listener.NotificationChannel() { // also after a connection was lost, when some may have been missed
		fwd.Hint()
	}
	return nil
}

func _(db *sql.DB, amqpConfig amqp.Config, meters metric.MeterProvider, traces trace.TracerProvider) error {
	publisher, err := rabbit.NewPublisher(amqpConfig, rabbit.PublisherConfig{MeterProvider: meters})
	if err != nil {
		return err
	}
	defer publisher.Close()
	subscriber, err := rabbit.NewSubscriber(amqpConfig, rabbit.SubscriberConfig{MeterProvider: meters})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		MeterProvider:  meters,
		TracerProvider: traces,
		Topics:         []string{"orders.placed", "payments.captured"}, // told apart by counters
	})
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{MeterProvider: meters, TracerProvider: traces})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{MeterProvider: meters, TracerProvider: traces})
	_, _ = subscriber, fwd
	_, _ = box, consumer
	return err
}

func _(ctx context.Context, db *sql.DB) error {
	return schema.Up(ctx, db, schema.Config{})
}

func _(ctx context.Context, db *sql.DB) error {
	return schema.Check(ctx, db, schema.Config{})
}

func _(db *sql.DB) {
	const most = 24
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
}

func _(db *sql.DB, router *message.Router, subscriber message.Subscriber, logger watermill.LoggerAdapter) error {
	inbox, err := dedup.New(db, dedup.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("payments", "orders.placed", subscriber, func(msg *message.Message) error {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return errors.New("the handler is not behind the inbox")
		}
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
		return err
	})
	return nil
}

func _(
	db *sql.DB, router *message.Router, subscriber message.Subscriber, logger watermill.LoggerAdapter, inbox *dedup.Inbox,
	handle message.NoPublishHandlerFunc,
) error {
	retries, err := retry.New(db, retry.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(retries.Middleware, inbox.Middleware) // in place of inbox.Middleware alone
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", subscriber), handle)

	quarantine, err := poison.New(db, poison.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)
	return nil
}

func _(db *sql.DB, router *message.Router, subscriber message.Subscriber) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
			captured := outbox.NewMessage(msg.Payload)
			return []*message.Message{once.To("payments.captured", captured)}, err
		})
	return nil
}

func _(dsn string) error {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return err
	}
	db := sql.OpenDB(lazytx.Connector(connector))
	_ = db
	return nil
}

func _(amqpConfig amqp.Config, router *message.Router, consumer *once.Consumer, handle once.HandlerFunc) error {
	subscriber, err := rabbit.NewSubscriber(amqpConfig, rabbit.SubscriberConfig{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber, handle)
	return nil
}

func _(ctx context.Context, router *message.Router, handle once.HandlerFunc) error {
	db, err := sql.Open("sqlite", "file:shop.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return err
	}
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(ctx, db, tables); err != nil {
		return err
	}
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(db, transport, forwarder.Config{Schema: tables})
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(), handle)
	_, _ = fwd, box
	return nil
}

func _(ctx context.Context, quarantine *poison.Quarantine) error {
	entries, err := quarantine.List(ctx, poison.Filter{Consumer: "payments"})
	if err != nil || len(entries) == 0 {
		return err
	}
	return quarantine.Replay(ctx, poison.Act{Actor: "ann", Why: "the card gateway is back"}, entries[0].ID)
}

func _(ctx context.Context, db *sql.DB, group string) error {
	m, err := mover.New(db, mover.Config{ConsumerGroup: group}) // as in the stock SubscriberConfig
	if err != nil {
		return err
	}
	return m.Run(ctx) // until ctx ends
}

func _(ctx context.Context, m *mover.Mover) error {
	messages, writers, err := m.Left(ctx)
	if err != nil {
		return err
	}
	finished := messages == 0 && writers == 0
	_ = finished
	return nil
}

func _(ctx context.Context, db *sql.DB) error {
	letters, err := deadletter.New(db, deadletter.Config{})
	if err != nil {
		return err
	}
	groups, err := letters.Groups(ctx, deadletter.Filter{})
	if err != nil {
		return err
	}
	for _, g := range groups {
		log.Printf("%d letters of %v: %s: %s", g.Count, g.Topics, g.Reason, g.Error)
	}
	act := deadletter.Act{Actor: "ann", Why: "the exchange is declared again"}
	report, err := letters.ReplayMatching(ctx, act, deadletter.Filter{Topic: "orders.placed"}, deadletter.Plan{
		Rate:     100, // messages a second
		Progress: func(r deadletter.Report) { log.Printf("%d of %d", r.Replayed, r.Total) },
	})
	if err != nil {
		return err
	}
	log.Printf("%d replayed, %d need Force", report.Replayed, len(report.Skipped))
	return nil
}

func _(ctx context.Context, letters *deadletter.Letters) error {
	return letters.Release(ctx, deadletter.Act{Actor: "ann", Why: "order 7 was cancelled"}, "order-7")
}

func _(ctx context.Context, db *sql.DB, from, to time.Time) error {
	sent, err := deadletter.NewSentLog(db, deadletter.Config{})
	if err != nil {
		return err
	}
	lost := deadletter.Filter{Topic: "orders.placed", SentAfter: from, SentBefore: to}
	_, err = sent.ReplayMatching(ctx, deadletter.Act{Actor: "ann", Why: "a queue was purged"}, lost, deadletter.Plan{Rate: 500})
	return err
}

func _(db *sql.DB) error {
	inbox, err := dedup.New(db, dedup.Config{
		Outbox: outbox.Publisher,
		Key: func(msg *message.Message) string { // what the message asks for, whatever its id
			return "capture/" + msg.Metadata.Get("order_id")
		},
		Content: func(msg *message.Message) []byte { // what must be the same, without the time of sending
			return []byte(msg.Metadata.Get("amount"))
		},
	})
	_ = inbox
	return err
}

func _(db *sql.DB) error {
	inbox, err := dedup.New(db, dedup.Config{
		Outbox:     outbox.Publisher,
		Idempotent: []string{"search-index", "order-projection"}, // names of consumers
	})
	_ = inbox
	return err
}

func _(ctx context.Context, consumer *once.Consumer, logger watermill.LoggerAdapter) {
	go func() {
		if err := consumer.Run(ctx); err != nil { // or inbox.Run(ctx); until ctx ends
			logger.Error("the inbox is not swept any longer", err, nil)
		}
	}()
}

func _(db *sql.DB, errGatewayAway error) error {
	retries, err := retry.New(db, retry.Config{
		Policy: retry.Policy{Immediate: 2, Delayed: 5},
		Classes: []retry.Class{{
			Match:  func(err error) bool { return errors.Is(err, errGatewayAway) },
			Policy: retry.Policy{Immediate: -1, Delayed: 48, Base: time.Minute, Max: 30 * time.Minute},
		}},
	})
	_ = retries
	return err
}

func _(ctx context.Context, quarantine *poison.Quarantine) error {
	groups, err := quarantine.Groups(ctx, poison.Filter{Consumer: "payments"})
	if err != nil {
		return err
	}
	for _, g := range groups {
		log.Printf("%s %6d  %s  since %s: %s\n", g.Fingerprint, g.Count, g.Reason, g.FirstFailedAt, g.Error)
	}

	entry, err := quarantine.Get(ctx, 17)
	if err != nil {
		return err
	}
	log.Println(entry.Message.UUID, entry.Message.Metadata, string(entry.Message.Payload), entry.Error)

	ann := poison.Act{Actor: "ann", Why: "the card gateway is back"}
	gateway := poison.Filter{Consumer: "payments", Fingerprint: groups[0].Fingerprint}
	affected, err := quarantine.DryRun(ctx, gateway)
	if err != nil {
		return err
	}
	replay, err := quarantine.ReplayMatching(ctx, ann, gateway, poison.Plan{
		Canary:        10,
		Rate:          50, // a second
		StopOnFailure: true,
		Progress:      func(r poison.Replay) { log.Println(r.Resolved, "of", r.Total) },
	})
	if errors.Is(err, poison.ErrReplayStopped) {
		log.Println(replay.ID, "was stopped:", replay.StopReason)
	}
	_ = affected
	return err
}

func _(ctx context.Context, quarantine *poison.Quarantine, ann poison.Act, stopped int64) (poison.Replay, error) {
	return quarantine.Resume(ctx, ann, stopped, nil)
}

func _(ctx context.Context, quarantine *poison.Quarantine) error {
	why := poison.Act{Actor: "ann", Why: "negative amount"}
	edited, err := quarantine.Edit(ctx, why, 17, func(msg *message.Message) error {
		msg.Payload = []byte(`{"amount": 5}`)
		return nil
	}, poison.EditOptions{})
	_ = edited
	return err
}

func _(ctx context.Context, quarantine *poison.Quarantine) (int, error) {
	return quarantine.DiscardMatching(ctx, poison.Act{Actor: "ann", Why: "test orders"}, poison.Filter{Tenant: "test"})
}

func _(ctx context.Context, quarantine *poison.Quarantine, w io.Writer) (int, error) {
	return quarantine.Export(ctx, poison.Filter{Consumer: "payments"}, w)
}

func _(ctx context.Context, quarantine *poison.Quarantine, r io.Reader) (poison.Imported, error) {
	return quarantine.Import(ctx, poison.Act{Actor: "ann", Why: "to look at it here"}, r)
}

func _(db *sql.DB) (*poison.Quarantine, error) {
	return poison.New(db, poison.Config{
		OnQuarantine: func(e poison.Entry) { log.Println(e.Consumer, "gave up", e.MessageID, "because", e.Reason) },
		CopyTo:       "quarantine",
		Outbox:       outbox.Publisher,
		Consumers:    []string{"payments", "inventory"},
	})
}

// accounts is a service of a reader.
type accounts struct{ db *sql.DB }

func (accounts) credit(context.Context, string, int) error { return nil }

func (accounts) debit(context.Context, string, int) error { return nil }

func _(t *testing.T, db *sql.DB) {
	oncetest.RunOrder(t, oncetest.OrderConfig{
		DB:     db, // PostgreSQL, with three connections or more
		First:  func(ctx context.Context, db *sql.DB) error { return accounts{db}.credit(ctx, "17", 5) },
		Second: func(ctx context.Context, db *sql.DB) error { return accounts{db}.debit(ctx, "17", 3) },
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE accounts; INSERT INTO accounts (id) VALUES ('17')`)
			return err
		},
	})
}

func _(t *testing.T, db *sql.DB, capturePayment once.HandlerFunc) {
	oncetest.Run(t, oncetest.Config{
		DB:       db, // for tests: PostgreSQL, or SQLite in a file, with your tables and ours
		Handler:  capturePayment,
		Messages: []*message.Message{message.NewMessage("order-17", []byte("17")), message.NewMessage("order-18", []byte("18"))},
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE payments RESTART IDENTITY`)
			return err
		},
		Ignore: []string{"captured_at"},
	})
}

// Command minimal takes orders over HTTP and pays for each order once: see README.md.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

const (
	ordersPlaced = "orders.placed"
	tables       = `
		CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount bigint NOT NULL);
		CREATE TABLE IF NOT EXISTS payments (order_id text NOT NULL, amount bigint NOT NULL)`
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"` // in cents
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// run serves until the process gets a signal. It closes nothing after an error, because the process ends then.
func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	db, err := sql.Open("postgres", cmp.Or(os.Getenv("PG_DSN"), "postgres://postgres:postgres@127.0.0.1/postgres?sslmode=disable"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(30)
	db.SetMaxIdleConns(30) // with the default of 2, most messages would open a new connection
	if err := schema.Up(ctx, db, schema.Config{}); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}

	url := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")
	broker := amqp.NewDurablePubSubConfig(url, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
	broker.Marshaler = rabbit.Marshaler{}
	broker.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum} // survives the loss of a node
	publisher, err := rabbit.NewPublisher(broker, rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	subscriber, err := rabbit.NewSubscriber(broker, rabbit.SubscriberConfig{}) // with watermill-amqp v3, both are in amqpv3: see README.md
	if err != nil {
		return err
	}
	// The broker refuses an event that no queue receives, so declare the queue first.
	if err := subscriber.SubscribeInitialize(ordersPlaced); err != nil {
		return err
	}

	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil))
	if err != nil {
		return err
	}
	// Never change the name "payments", because the inbox stores message ids under it.
	consumer.AddHandler(router, "payments", ordersPlaced, subscriber, capturePayment)
	web := server{&http.Server{Addr: cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8080"), ReadTimeout: 10 * time.Second}}
	web.Handler = placeOrder(db, fwd.Hint)
	// The parts start in this order and stop in this order.
	return once.Run(ctx, 25*time.Second, web, router, fwd, publisher, db)
}

// placeOrder stores the order and its event in one transaction. Then its call of hint wakes the forwarder.
func placeOrder(db *sql.DB, hint func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&o); err != nil || o.Amount <= 0 {
			http.Error(w, `send {"amount": 1290}: an amount over 0`, http.StatusBadRequest)
			return
		}
		o.ID = outbox.NewID()
		event, _ := json.Marshal(o) // encoding a string and a number cannot fail
		err := outbox.InTx(r.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
			if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (id, amount) VALUES ($1, $2)`, o.ID, o.Amount); err != nil {
				return err
			}
			return events.Publish(ordersPlaced, outbox.NewMessage(event))
		}, hint)
		if err != nil {
			log.Printf("Placing an order failed: order %s: %v", o.ID, err)
			http.Error(w, "the order may not have been placed", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(event)
	}
}

// capturePayment writes only through tx, so the payment and the message id in the inbox are committed together.
func capturePayment(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, retry.Permanent(err) // another attempt would fail as well: quarantine the message
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, amount) VALUES ($1, $2)`, o.ID, o.Amount)
	return nil, err // an error rolls back, and the message is handled again later
}

// server is an http.Server with the methods that once.Run calls.
type server struct{ *http.Server }

func (s server) Run(context.Context) error {
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s server) Close() error { return s.Shutdown(context.Background()) }

package dropin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m, kit.StockAMQP) }

const consumer = "payments"

// transport is a Pub/Sub of Watermill.
type transport struct {
	message.Publisher

	subscriber func() message.Subscriber
	topic      string
}

// transports contains functions that create a new transport for each test.
var transports = map[string]func(t *testing.T, db *sql.DB) transport{
	"gochannel": func(t *testing.T, _ *sql.DB) transport {
		g := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		t.Cleanup(func() { _ = g.Close() })
		return transport{g, func() message.Subscriber { return g }, "orders"}
	},
	"sql": func(t *testing.T, db *sql.DB) transport {
		publisher, err := wsql.NewPublisher(db, wsql.PublisherConfig{
			SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
		}, watermill.NopLogger{})
		kit.OK(t, err)
		return transport{publisher, func() message.Subscriber {
			sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
				SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
				InitializeSchema: true, PollInterval: 10 * time.Millisecond, ConsumerGroup: consumer,
			}, watermill.NopLogger{})
			kit.OK(t, err)
			return sub
		}, "orders"}
	},
	"amqp": func(t *testing.T, _ *sql.DB) transport {
		broker := kit.Rabbit(t)
		config := wamqp.NewDurableQueueConfig(broker.URL)
		config.Marshaler = rabbit.Marshaler{}
		publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
		kit.OK(t, err)
		return stockAMQP(t, broker, config, publisher)
	},
	"amqp, its own marshaler": func(t *testing.T, _ *sql.DB) transport {
		broker := kit.Rabbit(t)
		config := wamqp.NewDurableQueueConfig(broker.URL)
		publisher, err := wamqp.NewPublisher(config, watermill.NopLogger{})
		kit.OK(t, err)
		return stockAMQP(t, broker, config, publisher)
	},
}

// stockAMQP returns a transport with the given publisher, and with the subscriber of
// watermill-amqp.
func stockAMQP(t *testing.T, broker kit.Broker, config wamqp.Config, publisher message.Publisher) transport {
	t.Helper()
	t.Cleanup(func() { _ = publisher.Close() })
	topic := broker.Name("orders")
	return transport{publisher, func() message.Subscriber {
		sub, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
		if err == nil {
			err = sub.SubscribeInitialize(topic)
		}
		kit.OK(t, err)
		return sub
	}, topic}
}

// bench is a service with its own router.
type bench struct {
	*testing.T

	db         *sql.DB
	router     *message.Router
	quarantine *poison.Store
	retries    *retry.Retries
	inbox      *dedup.Inbox
}

func newBench(t *testing.T, transport string) *bench {
	t.Helper()
	database := kit.Postgres
	if transport == "sql" {
		database = kit.PostgresAlone
	}
	b := &bench{T: t, db: database(t).DB}
	err := schema.Up(t.Context(), b.db, schema.Config{})
	if err == nil {
		_, err = b.db.ExecContext(t.Context(), `CREATE TABLE effects (message_id text NOT NULL, how text NOT NULL)`)
	}
	if err == nil {
		b.quarantine, err = poison.New(b.db, poison.Config{})
	}
	if err == nil {
		b.retries, err = retry.New(b.db, retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 1, Base: 20 * time.Millisecond},
			PollInterval: 10 * time.Millisecond,
		})
	}
	if err == nil {
		b.inbox, err = dedup.New(b.db, dedup.Config{Outbox: outbox.Publisher})
	}
	if err == nil {
		b.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	}
	kit.OK(t, err)
	return b
}

func (b *bench) start() {
	b.Helper()
	ended := kit.Go(func() error { return b.router.Run(context.WithoutCancel(b.Context())) })
	<-b.router.Running()
	b.Cleanup(func() {
		kit.Check(b, errors.Join(b.router.Close(), <-ended))
	})
}

func (b *bench) count(what string) (n int) {
	b.Helper()
	kit.OK(b, b.db.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n))
	return n
}

func (b *bench) reaches(n int, what string) {
	b.Helper()
	kit.Eventually(b.T, time.Minute, fmt.Sprintf("%d rows are %s", n, what), func() bool { return b.count(what) == n })
}

var errHandler = errors.New("the handler fails")

// handler is a message handler whose behaviour depends on the id of the message.
type handler struct {
	mu    sync.Mutex
	calls map[string]int
}

func (h *handler) do(ctx context.Context, id string) error {
	h.mu.Lock()
	if h.calls == nil {
		h.calls = map[string]int{}
	}
	h.calls[id]++
	call := h.calls[id]
	h.mu.Unlock()
	how := "without a transaction"
	var execer interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
	if tx, ok := dedup.TxFromContext(ctx); ok {
		execer, how = tx, "once"
	}
	switch {
	case id == "hopeless", id == "fails" && call < 4:
		return errHandler
	case id == "panics" && call == 1:
		panic("boom")
	case id == "hangs" && call == 1:
		<-ctx.Done()
		return ctx.Err()
	case execer == nil:
		return nil
	}
	_, err := execer.ExecContext(context.WithoutCancel(ctx), `INSERT INTO effects VALUES ($1, $2)`, id, how)
	return err
}

func (h *handler) handle(msg *message.Message) error { return h.do(msg.Context(), msg.UUID) }

func (h *handler) called(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[id]
}

// addHandler adds a handler with middlewares to the router, and starts the router.
type addHandler = func(h message.NoPublishHandlerFunc, sub message.Subscriber, middlewares ...message.HandlerMiddleware)

// everywhere runs a test twice on each transport: with the middlewares on the router,
// and with the middlewares on the handler. With -short it runs with the middlewares on the
// router, and if all is false, only with RabbitMQ.
func everywhere(t *testing.T, all bool, test func(b *bench, to transport, add addHandler)) {
	for name, open := range transports {
		for _, place := range []string{"router", "handler"} {
			t.Run(name+"/"+place, func(t *testing.T) {
				if place == "handler" || !all && name != "amqp" {
					kit.Long(t)
				}
				t.Parallel()
				b := newBench(t, name)
				transport := open(t, b.db)
				test(b, transport, func(h message.NoPublishHandlerFunc, sub message.Subscriber, middlewares ...message.HandlerMiddleware) {
					if place == "router" {
						b.router.AddMiddleware(middlewares...)
					}
					handler := b.router.AddConsumerHandler(consumer, transport.topic, sub, h)
					if place == "handler" {
						handler.AddMiddleware(middlewares...)
					}
					b.start()
				})
			})
		}
	}
}

func (b *bench) publish(to transport, ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, to.Publish(to.topic, message.NewMessage(id, []byte(`{}`))))
	}
}

func TestDedupAlone(t *testing.T) {
	t.Parallel()
	everywhere(t, false, func(b *bench, to transport, add addHandler) {
		var h handler
		add(h.handle, to.subscriber(), b.inbox.Middleware)
		b.publish(to, "m1", "m1", "m2", "m1", "last")
		b.reaches(3, `effects WHERE how = 'once'`)
		b.reaches(3, `once_inbox WHERE consumer = 'payments'`)
	})
}

func TestRetryAlone(t *testing.T) {
	t.Parallel()
	everywhere(t, false, func(b *bench, to transport, add addHandler) {
		var h handler
		add(h.handle, b.retries.Subscriber(consumer, to.subscriber()), b.retries.Middleware)
		b.publish(to, "fails", "panics", "fine")
		kit.Eventually(b.T, time.Minute, "all messages are handled", func() bool {
			return h.called("fails") == 4 && h.called("panics") == 2 && h.called("fine") == 1
		})
		b.reaches(0, `once_parked`)
	})
}

func TestPoisonAlone(t *testing.T) {
	t.Parallel()
	everywhere(t, false, func(b *bench, to transport, add addHandler) {
		var h handler
		add(h.handle, to.subscriber(), b.quarantine.Middleware)
		b.publish(to, "hopeless", "fine")
		b.reaches(1, `once_parked WHERE state = 'quarantined' AND message_id = 'hopeless' AND consumer = 'payments'`)
		kit.Eventually(b.T, time.Minute, "the other message is handled", func() bool { return h.called("fine") == 1 })
		if n := h.called("hopeless"); n != 1 {
			b.Errorf("the hopeless message was tried %d times", n)
		}
	})
}

// The three middlewares work together with other middlewares: a recoverer around all of them, a
// timeout for each attempt, and correlation ids next to the handler.
func TestThreeMiddlewaresWorkWithOtherMiddlewares(t *testing.T) {
	t.Parallel()
	everywhere(t, true, func(b *bench, to transport, add addHandler) {
		var h handler
		produce := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				middleware.SetCorrelationID("c-"+msg.UUID, msg)
				event := message.NewMessage(msg.UUID+"-captured", nil)
				outbox.SetTopic(event, "payments.captured")
				_, err := next(msg)
				return []*message.Message{event}, err
			}
		}
		add(h.handle, b.retries.Subscriber(consumer, to.subscriber()),
			middleware.Recoverer, b.quarantine.Middleware, b.retries.Middleware, middleware.Timeout(2*time.Second),
			b.inbox.Middleware, middleware.CorrelationID, produce)
		b.publish(to, "fine", "fails", "panics", "hangs", "hopeless", "fine")
		b.reaches(4, `effects WHERE how = 'once'`)
		b.reaches(1, `once_parked`)
		b.reaches(1, `once_parked WHERE state = 'quarantined' AND message_id = 'hopeless'`)
		b.reaches(4, `once_outbox WHERE metadata->>'correlation_id' = 'c-' || (metadata->>'once_causation_id')`)
	})
}

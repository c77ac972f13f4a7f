package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// projection is a consumer that needs every version of its aggregates, with
// sequence.HoldForGap and defaults.
type projection struct {
	*testing.T
	kit.Database

	schema    schema.Config
	publish   func(msgs ...*message.Message) error
	subscribe message.Subscriber
}

// eachProjection runs test in each consumer mode that supports versions: on
// PostgreSQL with RabbitMQ, and on SQLite with the embedded transport.
func eachProjection(t *testing.T, test func(p *projection, add func(h once.HandlerFunc, retries retry.Config))) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, mode := range map[string]struct{ batches, durable bool }{
			"single": {}, "batches": {batches: true}, "durable": {durable: true}, "durable batches": {true, true},
		} {
			t.Run(name, func(t *testing.T) {
				if name != "single" {
					kit.Long(t)
				}
				fresh := kit.SQLite
				if db.Dialect == "postgres" {
					fresh = kit.Postgres
				}
				p := newProjection(t, fresh(t), mode.batches)
				test(p, func(h once.HandlerFunc, retries retry.Config) { p.run(mode.batches, mode.durable, h, retries) })
			})
		}
	})
}

func newProjection(t *testing.T, db kit.Database, batches bool) *projection {
	t.Helper()
	p := &projection{T: t, Database: db, schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	err := schema.Up(t.Context(), db.DB, p.schema)
	if err == nil {
		number := "n INTEGER PRIMARY KEY AUTOINCREMENT"
		if db.Dialect == "postgres" {
			number = "n BIGINT GENERATED ALWAYS AS IDENTITY"
		}
		_, err = db.ExecContext(t.Context(), `CREATE TABLE effects (`+number+`, message_id TEXT NOT NULL)`)
	}
	kit.OK(t, err)
	if db.Dialect == "sqlite" {
		transport, err := embedded.New(db.DB, embedded.Config{Schema: p.schema})
		kit.OK(t, err)
		p.publish = func(msgs ...*message.Message) error { return transport.Publish("accounts", msgs...) }
		p.subscribe = transport.Subscriber()
		return p
	}
	broker := kit.Rabbit(t)
	config := wamqp.NewDurableQueueConfig(broker.URL)
	config.Marshaler = rabbit.Marshaler{}
	queue := broker.Name("accounts")
	config.Queue.GenerateName = func(string) string { return queue }
	inFlight := 8
	if batches {
		inFlight = 0 // the default is enough for a batch
	}
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{InFlight: inFlight, Logger: kit.Logger(t)})
	kit.OK(t, err)
	kit.OK(t, sub.SubscribeInitialize("accounts"))
	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{Logger: kit.Logger(t)})
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, publisher.Close())
	})
	p.publish = func(msgs ...*message.Message) error { return publisher.Publish(queue, msgs...) }
	p.subscribe = sub
	return p
}

// run runs the consumer until the test ends.
func (p *projection) run(batches, durable bool, h once.HandlerFunc, retries retry.Config) {
	p.Helper()
	config := once.ConsumerConfig{
		Schema: p.schema, Retry: retries, Logger: kit.Logger(p.T),
		Sequence: &sequence.Config{Policy: sequence.HoldForGap},
	}
	if durable {
		config.DurableConsumers = []string{"projection"}
	}
	consumer, err := once.NewConsumer(p.DB, config)
	kit.OK(p, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(p, err)
	add := consumer.AddHandler
	if batches {
		add = consumer.AddHandlerInBatches
	}
	add(router, "projection", "accounts", p.subscribe,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if h != nil {
				if _, err := h(ctx, tx, msg); err != nil {
					return nil, err
				}
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
			return nil, err
		})
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(p.Context())) })
	select {
	case <-router.Running():
	case err := <-stopped:
		p.Fatalf("the router has ended: %v", err)
	}
	p.Cleanup(func() {
		kit.Check(p, errors.Join(router.Close(), <-stopped))
	})
}

// account returns the event of a version of an account, with the id
// "account.version".
func account(id string, version int64) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("%s.%d", id, version), nil)
	outbox.SetAggregate(msg, "account", id, version)
	return msg
}

func (p *projection) send(msgs ...*message.Message) {
	p.Helper()
	kit.OK(p, p.publish(msgs...))
}

func (p *projection) count(query string) (n int) {
	p.Helper()
	kit.OK(p, p.QueryRowContext(context.WithoutCancel(p.Context()), query).Scan(&n))
	return n
}

// effects returns the ids of the messages that took effect, in order.
func (p *projection) effects() []string {
	p.Helper()
	return kit.Lines(p, p, `SELECT message_id FROM effects ORDER BY n`)
}

// Trap 79. Versions that are in order in the queue and are handled concurrently all take effect, in
// order. Versions that arrive while the first version waits for its next attempt also take effect
// in order.
func TestVersionsOutOfOrderByConcurrencyOrRetriesTakeEffect(t *testing.T) {
	kit.Long(t)
	eachProjection(t, func(p *projection, run func(h once.HandlerFunc, retries retry.Config)) {
		const versions = 3
		var all []*message.Message
		for a := range kit.Sized(60, 200) {
			for v := range versions {
				all = append(all, account(fmt.Sprintf("a%03d", a), int64(v)+1))
			}
		}
		if p.Dialect == "postgres" { // the embedded transport delivers only to registered consumers
			p.send(all...)
		}
		var calls atomic.Int32
		run(func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "b.1" && calls.Add(1) == 1 {
				return nil, errors.New("not now")
			}
			return nil, nil
		}, retry.Config{Concurrency: 8, Policy: retry.Policy{Immediate: -1, Delayed: 3, Base: time.Second, Jitter: -1}})
		if p.Dialect == "sqlite" {
			p.send(all...)
		}
		handled := func(n int) {
			p.Helper()
			kit.Eventually(p.T, 2*time.Minute, fmt.Sprintf("%d ids are in the inbox", n), func() bool {
				return p.count(`SELECT COUNT(*) FROM once_inbox`) == n
			})
		}
		handled(len(all))
		p.send(account("b", 1))
		kit.Eventually(p.T, time.Minute, "the first of b has failed", func() bool { return calls.Load() == 1 })
		p.send(account("b", 2), account("b", 3))
		handled(len(all) + versions)

		got := p.effects()
		if len(got) != len(all)+versions {
			p.Errorf("%d of %d took effect", len(got), len(all)+versions)
		}
		last := map[string]string{}
		for _, id := range got {
			name, _, _ := strings.Cut(id, ".")
			if id < last[name] {
				p.Errorf("%s took effect after %s", id, last[name])
			}
			last[name] = id
		}
		kit.Eventually(p.T, time.Minute, "no message is left in quarantine, or waits", func() bool {
			return p.count(`SELECT COUNT(*) FROM once_parked`) == 0
		})
	})
}

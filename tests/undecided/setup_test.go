package undecided

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const (
	consumer = "payments"
	topic    = "orders.placed"
)

// maxOpen is the maximum number of connections of each test. It is low, because many
// tests run at the same time.
const maxOpen = 4

// eachDriver runs a test with each driver for PostgreSQL, and with SQLite.
func eachDriver(t *testing.T, test func(t *testing.T, db kit.Database)) {
	t.Helper()
	eachNumberedDriver(t, func(t *testing.T, _ int, db kit.Database) { test(t, db) })
}

// eachNumberedDriver is like eachDriver. Each driver has the same number in all runs.
func eachNumberedDriver(t *testing.T, test func(t *testing.T, n int, db kit.Database)) {
	t.Helper()
	for n, name := range slices.Sorted(maps.Keys(kit.Drivers)) {
		open := kit.Drivers[name]
		t.Run(name, func(t *testing.T) {
			if name != "libpq" {
				kit.Long(t)
			}
			database := kit.Postgres(t)
			db, err := open(database.DSN)
			kit.OK(t, err)
			t.Cleanup(func() { _ = db.Close() })
			db.SetMaxOpenConns(maxOpen)
			db.SetMaxIdleConns(maxOpen)
			database.DB = db
			test(t, n, database)
		})
	}
	t.Run("sqlite", func(t *testing.T) { test(t, len(kit.Drivers), kit.SQLite(t)) })
}

// handle is a handler of one message.
type handle = func(ctx context.Context, tx *sql.Tx, msg *message.Message) error

// modes contains the ways in which messages are handled.
var modes = map[string]func(
	c *once.Consumer, router *message.Router, sub message.Subscriber, h handle,
) *message.Handler{
	"single":  addSingle,
	"durable": addSingle, // the configuration makes the consumer durable
	"batch": func(c *once.Consumer, router *message.Router, sub message.Subscriber, h handle) *message.Handler {
		return c.AddHandlerInBatches(router, consumer, topic, sub, handler(h))
	},
	"together": func(c *once.Consumer, router *message.Router, sub message.Subscriber, h handle) *message.Handler {
		return c.AddBatchHandler(router, consumer, topic, sub,
			func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
				for _, msg := range msgs {
					if err := h(ctx, tx, msg); err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
	},
}

func addSingle(c *once.Consumer, router *message.Router, sub message.Subscriber, h handle) *message.Handler {
	return c.AddHandler(router, consumer, topic, sub, handler(h))
}

func handler(h handle) once.HandlerFunc {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		return nil, h(ctx, tx, msg)
	}
}

// policy allows two attempts: one when the transport delivers the message, and a second
// one after the message was parked.
var policy = retry.Policy{Immediate: -1, Delayed: 1, Base: 10 * time.Millisecond, Jitter: -1}

const attempts = 2

// world is a consumer with all middlewares and its own tables.
type world struct {
	*testing.T
	kit.Database

	consumer  *once.Consumer
	transport *kit.Subscriber

	mu    sync.Mutex
	calls map[string]int // number of calls of the handler for each message
}

// newWorld starts a router. Its handler counts the call, and calls h. If h returns no
// error, it writes the effect. outer are middlewares of the router.
func newWorld(
	t *testing.T, db kit.Database, mode string, h handle, change func(*once.ConsumerConfig), outer ...message.HandlerMiddleware,
) *world {
	t.Helper()
	w := &world{
		T: t, Database: db, calls: map[string]int{},
		transport: kit.NewSubscriber(),
	}
	config := once.ConsumerConfig{
		Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)},
		Retry:  retry.Config{Policy: policy, PollInterval: 20 * time.Millisecond},
		Logger: kit.Logger(t),
	}
	if mode == "durable" {
		config.DurableConsumers = []string{consumer}
	}
	if change != nil {
		change(&config)
	}
	kit.OK(t, schema.Up(t.Context(), db.DB, config.Schema))
	w.exec(`CREATE TABLE effects (message_id text NOT NULL)`)
	var err error
	w.consumer, err = once.NewConsumer(db.DB, config)
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, err)
	router.AddMiddleware(outer...)
	modes[mode](w.consumer, router, w.transport, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		w.mu.Lock()
		w.calls[msg.UUID]++
		w.mu.Unlock()
		if err := h(ctx, tx, msg); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ('`+strings.ReplaceAll(msg.UUID, "'", "")+`')`)
		return err
	})
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
	<-router.Running()
	t.Cleanup(func() {
		kit.Check(t, errors.Join(router.Close(), <-stopped))
	})
	return w
}

func (w *world) exec(query string, args ...any) {
	w.Helper()
	kit.Exec(w, w, query, args...)
}

func (w *world) count(what string) (n int) {
	w.Helper()
	w.look(func() error {
		return w.QueryRowContext(w.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n)
	})
	return n
}

// look repeats a query until it gets a working connection, because a handler may have ended the
// session of a connection in the pool.
func (w *world) look(query func() error) {
	w.Helper()
	kit.Eventually(w.T, time.Minute, "a working connection", func() bool {
		err := query()
		if err != nil && !errors.Is(err, driver.ErrBadConn) {
			w.Fatal(err)
		}
		return err == nil
	})
}

func (w *world) callsOf(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[id]
}

// deliver delivers messages, at most inFlight at a time, until each is acked. It
// delivers a nacked message again, as a broker does.
func (w *world) deliver(inFlight int, ids ...string) (all *sync.WaitGroup) {
	all = &sync.WaitGroup{}
	slots := make(chan struct{}, inFlight)
	ctx := w.Context()
	all.Go(func() {
		for _, id := range ids {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			all.Go(func() {
				w.untilAcked(ctx, id)
				<-slots
			})
		}
	})
	return all
}

func (w *world) untilAcked(ctx context.Context, id string) {
	for {
		msg := message.NewMessage(id, []byte("body"))
		select {
		case w.transport.Messages <- msg:
		case <-ctx.Done():
			return
		}
		select {
		case <-msg.Acked():
			return
		case <-msg.Nacked():
		case <-ctx.Done():
			return
		}
	}
}

func numbered(name string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s: %d", name, i)
	}
	return ids
}

// set returns a function that changes the configuration of dedup.
func set(change func(*dedup.Config)) func(*once.ConsumerConfig) {
	return func(c *once.ConsumerConfig) { change(&c.Dedup) }
}

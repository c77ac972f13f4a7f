package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// If a name in the configuration is misspelt, its handler runs in another mode than
// configured. So a name without a handler must be logged.
func TestConfiguredNameWithoutAHandlerIsLogged(t *testing.T) {
	t.Parallel()
	db, logs := kit.SQLite(t).DB, &kit.Logs{}
	tables := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db, tables))
	config := once.ConsumerConfig{
		Schema:           tables,
		DurableConsumers: []string{"mail", "payment"},
		Dedup:            dedup.Config{Idempotent: []string{"serach", "payments", "later"}},
		Logger:           logs,
	}
	consumer, err := once.NewConsumer(db, config)
	kit.OK(t, err)
	config.Logger = nil
	another, err := once.NewConsumer(db, config) // shares the configuration and has some of the handlers
	kit.OK(t, err)
	handle := func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil }
	start := func(names ...string) (end func()) {
		t.Helper()
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		kit.OK(t, err)
		transport := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		for _, name := range names {
			of := consumer
			if name == "mail" {
				of = another
			}
			of.AddHandler(router, name, "orders.placed", transport, handle)
		}
		ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
		<-router.Running()
		return func() {
			kit.Check(t, errors.Join(router.Close(), <-ended))
		}
	}
	defer start("payments", "mail", "search")()

	for name, field := range map[string]string{"payment": "DurableConsumers", "serach": "Dedup.Idempotent", "later": "Dedup.Idempotent"} {
		line := `ERROR A configured consumer has no handler: check the spelling of its name consumer=` + name + ` field=` + field +
			` err=ConsumerConfig.` + field + ` has "` + name + `", the handlers are ["mail" "payments" "search"]`
		if logs.CountLine(line) != 1 {
			t.Errorf("%q is not logged once: %q", line, logs.Lines())
		}
	}
	if n := logs.Count("A configured consumer has no handler"); n != 3 {
		t.Errorf("%d names are logged, want 3: %q", n, logs.Lines())
	}

	// Another router of the same Consumer logs when it starts.
	defer start("later")()
	if n := logs.Count("A configured consumer has no handler"); n != 3+2 {
		t.Errorf("%d names are logged, want 2 more: %q", n, logs.Lines())
	}
}

// MySQLError has the form of the errors of MySQL's driver.
type MySQLError struct{ Number uint16 }

func (e *MySQLError) Error() string { return fmt.Sprintf("Error %d", e.Number) }

type busy struct{}

func (busy) Error() string { return "database is locked" }
func (busy) Code() int     { return 5 | 2<<8 } // SQLITE_BUSY_SNAPSHOT

// conflicts are the ways in which other transactions make the handler of the message
// with this id fail.
var conflicts = map[string]func(ctx context.Context, db *sql.DB, tx *sql.Tx) error{ //nolint:gochecknoglobals // a constant
	"statement": func(ctx context.Context, db *sql.DB, tx *sql.Tx) error {
		if _, err := db.ExecContext(ctx, `UPDATE hot SET n = n + 1 WHERE id = 1`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE hot SET n = n + 1 WHERE id = 1`)
		return fmt.Errorf("update: %w", err)
	},
	"commit": func(ctx context.Context, db *sql.DB, tx *sql.Tx) error { // write skew
		if _, err := tx.ExecContext(ctx, `UPDATE hot SET n = (SELECT n FROM hot WHERE id = 3) WHERE id = 2`); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, `UPDATE hot SET n = (SELECT n FROM hot WHERE id = 2) WHERE id = 3`)
		return err
	},
	"deadlock": func(ctx context.Context, _ *sql.DB, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`)
		return err
	},
	"panic": func(context.Context, *sql.DB, *sql.Tx) error { panic(&pq.Error{Code: "40001"}) },
	"mysql": func(context.Context, *sql.DB, *sql.Tx) error { return fmt.Errorf("x: %w", &MySQLError{1213}) },
	"busy":  func(context.Context, *sql.DB, *sql.Tx) error { return busy{} },
}

// Trap 111. Serialization failures and deadlocks say nothing about the message. No
// attempt is counted for them, whether they come from a statement or from COMMIT, for a
// message alone or in a batch.
func TestTrap111_SerializationFailuresAreNoAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range chains {
		if name == "in order" || name == "versioned" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.Postgres(t)
			for _, query := range []string{
				`CREATE TABLE hot (id int PRIMARY KEY, n int NOT NULL)`, `INSERT INTO hot VALUES (1, 0), (2, 0), (3, 0)`,
				`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`,
			} {
				kit.Exec(t, db, query)
			}
			db.SetMaxIdleConns(0) // ends the sessions that do not have the new default
			db.SetMaxIdleConns(8)
			var mu sync.Mutex
			calls := map[string]int{}
			config := c.config
			config.Poison.OnQuarantine = func(e poison.Entry) { t.Errorf("%s is quarantined: %s", e.MessageID, e.Error) }
			logs := &kit.Logs{}
			config.Logger = logs
			const failing = 6 // more than the policy allows
			in := c.start(t, db, config, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
				mu.Lock()
				calls[msg.UUID]++
				fails := calls[msg.UUID] <= failing
				mu.Unlock()
				if conflict := conflicts[msg.UUID]; fails && conflict != nil {
					return conflict(ctx, db.DB, tx)
				}
				return nil
			})
			ids := append(slices.Collect(maps.Keys(conflicts)), "good 1", "good 2")
			sendAll(t, in, ids...)
			kit.Eventually(t, time.Minute, "all messages are handled", func() bool { return count(t, db, `effects`) == len(ids) })
			for id := range conflicts {
				if calls[id] <= failing {
					t.Errorf("%s was called %d times", id, calls[id])
				}
			}
			if n := count(t, db, `once_parked WHERE attempts > 0`); n > 0 || logs.Has("message is parked") {
				t.Errorf("attempts are counted: %q", logs.Lines())
			}
			if !logs.Has("ERROR Message is held: other transactions") ||
				!logs.Has("dedup: commit: pq: could not serialize") && name == "one by one" {
				t.Errorf("nothing is logged: %q", logs.Lines())
			}
		})
	}
}

// Trap 111. A handler that fails with such an error each time must not be tried forever.
func TestTrap111_SerializationFailuresEndAfterUnackedWait(t *testing.T) {
	t.Parallel()
	db, logs := kit.Postgres(t), &kit.Logs{}
	config := once.ConsumerConfig{Logger: logs, Retry: retry.Config{UnackedWait: 300 * time.Millisecond}}
	in := chains["one by one"].start(t, db, config, func(context.Context, *sql.Tx, *message.Message) error {
		return &pq.Error{Code: "40001", Message: "never"}
	})
	sendAll(t, in, "m1")
	kit.Eventually(t, time.Minute, "the message is in quarantine", func() bool {
		return count(t, db, `once_parked WHERE state = 'quarantined' AND attempts = 2
			AND error LIKE '%other transactions made % handler calls%never%'`) == 1
	})
}

// hostile is an error with one method that panics.
type hostile struct{ method string }

func (h *hostile) in(method string) {
	switch h.method {
	case method:
		panic(h) // the value of the panic panics, too, when it is printed
	case method + " exits":
		runtime.Goexit()
	}
}

func (h *hostile) Error() string { h.in("Error"); return "hostile" }
func (h *hostile) Is(error) bool { h.in("Is"); return false }
func (h *hostile) As(any) bool   { h.in("As"); return false }
func (h *hostile) Unwrap() error { h.in("Unwrap"); return nil }

// failures are the ways in which a handler fails for the message with this id.
var failures = map[string]func() error{ //nolint:gochecknoglobals // a constant
	"Error panics":     func() error { return &hostile{"Error"} },
	"Is panics":        func() error { return &hostile{"Is"} },
	"As panics":        func() error { return &hostile{"As"} },
	"Unwrap panics":    func() error { return fmt.Errorf("wrapped: %w", &hostile{"Unwrap"}) },
	"Error exits":      func() error { return &hostile{"Error exits"} },
	"Is exits":         func() error { return &hostile{"Is exits"} },
	"joined":           func() error { return errors.Join(errors.New("fine"), &hostile{"Is"}) },
	"permanent":        func() error { return retry.Permanent(&hostile{"Is"}) },
	"permanent, Error": func() error { return retry.Permanent(&hostile{"Error"}) },
	"later":            func() error { return retry.After(&hostile{"As"}, time.Millisecond) },
	"nil pointer":      func() error { var none *pq.Error; return none },
	"panic":            func() error { panic(&hostile{"Error"}) },
	"exit":             func() error { runtime.Goexit(); return nil },
}

// chain is a way to add a handler to a router.
type chain struct {
	config once.ConsumerConfig
	add    func(c *once.Consumer, router *message.Router, sub message.Subscriber, h once.HandlerFunc)
}

var chains = map[string]chain{ //nolint:gochecknoglobals // a constant
	"one by one": {add: oneByOne},
	"in batches": {add: func(c *once.Consumer, router *message.Router, sub message.Subscriber, h once.HandlerFunc) {
		c.AddHandlerInBatches(router, "payments", "orders", sub, h)
	}},
	"batch handler": {add: func(c *once.Consumer, router *message.Router, sub message.Subscriber, h once.HandlerFunc) {
		c.AddBatchHandler(router, "payments", "orders", sub, func(
			ctx context.Context, tx *sql.Tx, msgs []*message.Message,
		) ([]*message.Message, error) {
			for _, msg := range msgs {
				if _, err := h(ctx, tx, msg); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
	}},
	"durable":   {config: once.ConsumerConfig{DurableConsumers: []string{"payments"}}, add: oneByOne},
	"in order":  {config: once.ConsumerConfig{Retry: retry.Config{KeyOrder: retry.BlockWhileRetried}}, add: oneByOne},
	"versioned": {config: once.ConsumerConfig{Sequence: &sequence.Config{}}, add: oneByOne},
}

func oneByOne(c *once.Consumer, router *message.Router, sub message.Subscriber, h once.HandlerFunc) {
	c.AddHandler(router, "payments", "orders", sub, h)
}

// Traps 108 and 109. A panic in a method of the handler's error, and a handler that ends
// its goroutine, are failed attempts. The other messages are handled.
func TestTrap108_PanicsInMethodsOfErrorsAreFailedAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range chains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) { failInEachWay(t, db, c) })
		})
	}
}

func failInEachWay(t *testing.T, db kit.Database, c chain) {
	t.Helper()
	calls := map[string]int{}
	var mu sync.Mutex
	config := c.config
	config.Retry.Classes = []retry.Class{{Match: func(error) bool { panic(&hostile{"Error"}) }}}
	config.Poison.OnQuarantine = func(poison.Entry) { runtime.Goexit() }
	in := c.start(t, db, config, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		mu.Lock()
		calls[msg.UUID]++
		mu.Unlock()
		if fail := failures[msg.UUID]; fail != nil {
			return fail()
		}
		return dedup.AfterCommit(ctx, runtime.Goexit)
	})
	const good = 5
	var ids []string
	for n := range good {
		ids = append(ids, fmt.Sprintf("good %d", n))
	}
	sendAll(t, in, append(ids, slices.Collect(maps.Keys(failures))...)...)
	kit.Eventually(t, time.Minute, "every failing message is in quarantine", func() bool {
		return count(t, db, `once_parked WHERE state = 'quarantined'`) == len(failures) && count(t, db, `effects`) == good
	})
	for id := range failures {
		want := 4 // two rounds of two attempts
		switch id {
		case "permanent", "permanent, Error":
			want = 1
		case "later": // the delay of the error ends each round
			want = 2
		}
		if count(t, db, `once_parked WHERE error <> '' AND error_type <> '' AND message_id = '`+id+`' AND attempts = `+strconv.Itoa(want)) != 1 {
			t.Errorf("%q has no row with %d attempts; it was handled %d times", id, want, calls[id])
		}
	}
}

// start starts a consumer whose handler writes a row for each message before it calls
// handle, and returns its subscriber.
func (c chain) start(
	t *testing.T, db kit.Database, config once.ConsumerConfig, handle func(context.Context, *sql.Tx, *message.Message) error,
) *kit.Subscriber {
	t.Helper()
	config.Schema = schema.Config{Dialect: schema.Dialect(db.Dialect)}
	kit.OK(t, schema.Up(t.Context(), db.DB, config.Schema))
	kit.Exec(t, db, `CREATE TABLE effects (id text NOT NULL)`)
	if config.Logger == nil {
		config.Logger = kit.Logger(t)
	}
	config.Retry.PollInterval = 20 * time.Millisecond
	config.Retry.Policy = retry.Policy{Immediate: 1, Delayed: 1, Base: 10 * time.Millisecond}
	consumer, err := once.NewConsumer(db.DB, config)
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, err)
	in := kit.NewSubscriber()
	c.add(consumer, router, in, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES ('`+msg.UUID+`')`); err != nil {
			return nil, err
		}
		return nil, handle(ctx, tx, msg)
	})
	run(t, router)
	return in
}

// sendAll sends messages and waits until each of them is acked.
func sendAll(t *testing.T, in *kit.Subscriber, ids ...string) {
	t.Helper()
	var all []*message.Message
	for _, id := range ids {
		all = append(all, message.NewMessage(id, nil))
		in.Messages <- all[len(all)-1]
	}
	for _, msg := range all {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			t.Errorf("%q is nacked", msg.UUID)
		case <-time.After(time.Minute):
			t.Fatalf("%q is neither acked nor nacked", msg.UUID)
		}
	}
}

func count(t *testing.T, db kit.Database, from string) (n int) {
	t.Helper()
	kit.OK(t, db.DB.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+from).Scan(&n))
	return n
}

func run(t *testing.T, router *message.Router) {
	t.Helper()
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
	select {
	case <-router.Running():
	case err := <-stopped:
		t.Fatalf("run: %v", err)
	}
	t.Cleanup(func() {
		kit.Check(t, errors.Join(router.Close(), <-stopped))
	})
}

// Trap 109. Without the whole chain, too, a handler that ends its goroutine must not
// leave its message without an ack or a nack, or its transaction open.
func TestTrap109_HandlerThatEndsItsGoroutineIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order string // first letters of the packages, from the outside in; m is a middleware
		acked bool   // the message is in quarantine
		calls int
	}{
		"poison, retry": {"pr", true, 3},
		"retry":         {"r", false, 3},
		"poison":        {"p", true, 1},
		"poison, dedup": {"pd", true, 1},
		"dedup":         {"d", false, 1},
		"a middleware":  {"pmrd", true, 0},
		"retry, dedup":  {"rd", false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.SQLite(t)
			tables := schema.Config{Dialect: schema.SQLite}
			inbox, err1 := dedup.New(db.DB, dedup.Config{Schema: tables, Logger: kit.Logger(t)})
			retries, err2 := retry.New(db.DB, retry.Config{Schema: tables, Logger: kit.Logger(t)})
			quarantine, err3 := poison.New(db.DB, poison.Config{Schema: tables, Logger: kit.Logger(t)})
			router, err4 := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
			kit.OK(t, errors.Join(err1, err2, err3, err4, schema.Up(t.Context(), db.DB, tables)))
			for _, letter := range c.order {
				router.AddMiddleware(map[rune]message.HandlerMiddleware{
					'd': inbox.Middleware, 'r': retries.Middleware, 'p': quarantine.Middleware,
					'm': func(message.HandlerFunc) message.HandlerFunc {
						return func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }
					},
				}[letter])
			}
			calls := 0
			in := kit.NewSubscriber()
			router.AddConsumerHandler("payments", "orders", in, func(*message.Message) error {
				calls++
				runtime.Goexit()
				return nil
			})
			run(t, router)
			msg := message.NewMessage("m1", nil)
			in.Messages <- msg
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
				if c.acked {
					t.Error("the message is nacked")
				}
			case <-time.After(time.Minute):
				t.Fatal("the message is neither acked nor nacked")
			}
			rows := 0
			if c.acked {
				rows = 1
			}
			if got := count(t, db, `once_parked WHERE state = 'quarantined'`); got != rows || calls != c.calls {
				t.Errorf("%d calls, want %d, %d rows in quarantine, want %d", calls, c.calls, got, rows)
			}
			if n := count(t, db, `once_inbox`); n != 0 || db.DB.Stats().InUse != 0 {
				t.Errorf("%d rows in the inbox, %d connections in use", n, db.DB.Stats().InUse)
			}
		})
	}
}

package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// startBench starts routers whose handlers have different middlewares.
type startBench struct {
	*testing.T

	db     *sql.DB
	tables schema.Config
	logs   *testkit.Logs
	in     message.Subscriber

	router     *message.Router
	inbox      *dedup.Inbox
	retries    *retry.Retries
	quarantine *poison.Quarantine
}

func newStartBench(t *testing.T, db testkit.Database) *startBench {
	t.Helper()
	b := &startBench{
		T: t, db: db.DB, tables: schema.Config{Dialect: schema.Dialect(db.Dialect)}, logs: &testkit.Logs{},
		in: gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
	}
	b.parts(dedup.Config{}, retry.Config{})
	return b
}

func (b *startBench) up() *startBench {
	b.Helper()
	b.must(schema.Up(b.Context(), b.db, b.tables))
	return b
}

func (b *startBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// parts creates the single middlewares and a new router.
func (b *startBench) parts(inbox dedup.Config, retries retry.Config) {
	b.Helper()
	var errs [4]error
	inbox.Schema, retries.Schema, inbox.Logger = b.tables, b.tables, b.logs
	b.inbox, errs[0] = dedup.New(b.db, inbox)
	b.retries, errs[1] = retry.New(b.db, retries)
	b.quarantine, errs[2] = poison.New(b.db, poison.Config{Schema: b.tables})
	b.router, errs[3] = message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, nil)
	b.must(errors.Join(errs[:]...))
}

func (b *startBench) plugin() *startBench {
	b.router.AddPlugin(once.Plugin(b.inbox, b.retries, b.quarantine))
	return b
}

// address matches the memory address by which the error of Run identifies the plugin.
var address = regexp.MustCompile(`0x[0-9a-f]+`)

// run returns the error of Router.Run. If the router starts, run closes it.
func (b *startBench) run() string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- b.router.Run(ctx) }()
	select {
	case <-b.router.Running():
		b.must(b.router.Close())
		b.must(<-ended)
		return ""
	case err := <-ended:
		if err == nil {
			b.Fatal("Run ended without an error before it ran")
		}
		return address.ReplaceAllString(err.Error(), "PLUGIN")
	}
}

func (b *startBench) says(want ...string) {
	b.Helper()
	text := ""
	if len(want) > 0 {
		text = "cannot initialize plugin PLUGIN: once: " + strings.Join(want, "\nonce: ")
	}
	if said := b.run(); said != text {
		b.Errorf("Run says\n%s\nwant\n%s", said, text)
	}
}

func nothing(*message.Message) error { return nil }

func pass(msg *message.Message) ([]*message.Message, error) { return nil, nil }

func inTransaction(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
	return nil, nil
}

// consumer adds a handler of a Consumer.
func (b *startBench) consumer(config once.ConsumerConfig, name string) {
	b.Helper()
	config.Schema, config.Logger = b.tables, b.logs
	consumer, err := once.NewConsumer(b.db, config)
	b.must(err)
	consumer.AddHandler(b.router, name, "orders.placed", b.in, inTransaction)
}

func TestStartChecksTheTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tables func(b *startBench)
		says   string
	}{
		{
			"missing", func(*startBench) {},
			`schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`,
		},
		{
			"newer", func(b *startBench) {
				b.up()
				_, err := b.db.ExecContext(b.Context(), `UPDATE once_migrations SET version = 999, compatible_from = 999 WHERE version = 1`)
				b.must(err)
			},
			fmt.Sprintf(`schema: the tables are newer than this code: they have version 999, which needs code of version 999 or later, `+
				`but this code has version %d: deploy the newer code, or restore a backup from before the migration`, schema.Version()),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				b := newStartBench(t, db)
				c.tables(b)
				b.consumer(once.ConsumerConfig{}, "payments")
				b.says(c.says)

				b.parts(dedup.Config{}, retry.Config{})
				b.plugin().says(c.says)
			})
		})
	}
}

func TestStartChecksTheLayout(t *testing.T) {
	t.Parallel()
	b := newStartBench(t, testkit.Postgres(t)).up()
	b.tables.Inbox = schema.ByDay
	b.consumer(once.ConsumerConfig{}, "payments")
	b.says(`schema: the table has another layout: "once_inbox" has no partitions by day: run schema.Up, or apply the end of schema.SQL`)
}

// pinged is a transport whose method Ping returns err.
type pinged struct {
	message.Subscriber
	err error
}

func (p pinged) Ping(context.Context) error { return p.err }

type unavailable struct{ error }

func (unavailable) Unavailable() bool { return true }

func TestStartChecksTheBrokers(t *testing.T) {
	t.Parallel()
	refused := errors.New(`rabbit: 403 (ACCESS_REFUSED) "username or password not allowed"`)
	for _, c := range []struct {
		name string
		says error
		want []string
	}{
		{"lets us in", nil, nil},
		{"cannot be reached", &net.OpError{Op: "dial", Err: errors.New("connection refused")}, nil},
		{"is not available", unavailable{errors.New("blocked")}, nil},
		{"takes too long", context.DeadlineExceeded, nil},
		{"refuses", refused, []string{`the broker refuses the subscriber of handler "mail": ` + refused.Error()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStartBench(t, testkit.SQLite(t)).up()
			b.in = pinged{b.in, c.says}
			b.consumer(once.ConsumerConfig{DurableConsumers: []string{"mail"}}, "mail")
			b.consumer(once.ConsumerConfig{}, "payments")
			b.says(c.want...)
		})
	}
}

// The inbox is swept as long as a router with its handlers runs, however the
// handlers were added.
func TestRetentionRunsWithTheRouter(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := dedup.Config{SweepInterval: 10 * time.Millisecond}
		for name, add := range map[string]func(b *startBench){
			"Consumer": func(b *startBench) { b.consumer(once.ConsumerConfig{Dedup: config}, "payments") },
			"Plugin": func(b *startBench) {
				b.parts(config, retry.Config{})
				b.plugin().router.AddConsumerHandler("payments", "t", b.in, nothing).AddMiddleware(b.inbox.Middleware)
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := newStartBench(t, db).up()
				add(b)
				ended := make(chan error, 1)
				go func() { ended <- b.router.Run(context.WithoutCancel(t.Context())) }()
				<-b.router.Running()
				for range 2 {
					b.old()
					testkit.Eventually(t, time.Minute, "it is removed", func() bool { return b.remembered() == 0 })
				}
				b.must(b.router.Close())
				b.must(<-ended)
			})
		}
	})
}

// old inserts an inbox row of a message that was handled long ago.
func (b *startBench) old() {
	b.Helper()
	long := `now() - interval '60 days'`
	if b.tables.Dialect == schema.SQLite {
		long = `0`
	}
	_, err := b.db.ExecContext(b.Context(),
		`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('m', 'c', '', `+long+`)`)
	b.must(err)
}

func (b *startBench) remembered() (n int) {
	b.Helper()
	b.must(b.db.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n))
	return n
}

// When a handler that was added to a running router subscribes, it is checked, and the
// removal of expired inbox rows begins.
func TestHandlerAddedToARunningRouterIsChecked(t *testing.T) {
	t.Parallel()
	b := newStartBench(t, testkit.SQLite(t))
	b.router.AddConsumerHandler("other", "t", b.in, nothing)
	ended := make(chan error, 1)
	go func() { ended <- b.router.Run(context.WithoutCancel(t.Context())) }()
	<-b.router.Running()
	b.consumer(once.ConsumerConfig{}, "payments")
	err := b.router.RunHandlers(context.WithoutCancel(t.Context()))
	want := `cannot subscribe topic orders.placed: once: schema: the tables are missing: ` +
		`no table "once_migrations": run schema.Up, or apply schema.SQL`
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	b.up()
	b.old()
	b.must(b.router.RunHandlers(context.WithoutCancel(t.Context())))
	testkit.Eventually(t, time.Minute, "it is removed", func() bool { return b.remembered() == 0 })
	b.must(b.router.Close())
	b.must(<-ended)
}

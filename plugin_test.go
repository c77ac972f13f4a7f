package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// startBench starts routers whose handlers are put together in many ways.
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

// parts makes the single middlewares and a new router.
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

// address is what Run's error has of the plugin.
var address = regexp.MustCompile(`0x[0-9a-f]+`)

// run returns what Run says: the error of a start that failed, or that of one
// that did not and was ended.
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
				`this code has version %d: deploy the newer code, or restore a backup from before the migration`, schema.Version()),
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
	b := newStartBench(t, testkit.Postgres(t)).up()
	b.tables.Inbox = schema.ByDay
	b.consumer(once.ConsumerConfig{}, "payments")
	b.says(`schema: the inbox has another layout: "once_inbox" has no partitions by day: run schema.Up, or apply the end of schema.SQL`)
}

// All that is wrong is said at once, in the order of the handlers.
func TestStartChecksTheHandlers(t *testing.T) {
	long := strings.Repeat("n", 256)
	const order = `: the order is AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)`
	for _, c := range []struct {
		name  string
		build func(b *startBench)
		says  []string
	}{
		{"the right way", func(b *startBench) {
			b.router.AddMiddleware(b.quarantine.Middleware, b.retries.Middleware, b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, nil},
		{"the right way around a handler", func(b *startBench) {
			b.router.AddHandler("a", "t", b.retries.Subscriber("payments", b.in), "", nil,
				b.quarantine.Middleware(b.retries.Middleware(b.inbox.Middleware(pass))))
		}, nil},
		{"a subscriber around retry's", func(b *startBench) {
			sub, err := message.MessageTransformSubscriberDecorator(func(*message.Message) {})(b.retries.Subscriber("payments", b.in))
			b.must(err)
			b.router.AddConsumerHandler("a", "t", sub, nothing).AddMiddleware(b.retries.Middleware, b.inbox.BatchMiddleware)
		}, nil},
		{"dedup alone", func(b *startBench) {
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("b", "t", b.in, nothing)
		}, nil},
		{"dedup outside of retry", func(b *startBench) {
			b.router.AddMiddleware(b.quarantine.Middleware, b.inbox.Middleware, b.retries.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
		}, []string{`handler "a" has the middleware of retry inside of dedup's` + order}},
		{"poison inside of retry, around the handler", func(b *startBench) {
			b.router.AddHandler("a", "t", b.retries.Subscriber("payments", b.in), "", nil, b.quarantine.Middleware(pass)).
				AddMiddleware(b.retries.Middleware)
		}, []string{`handler "a" has the middleware of poison inside of retry's` + order}},
		{"the batches of dedup outside of poison", func(b *startBench) {
			b.router.AddHandler("a", "t", b.in, "", nil, b.inbox.BatchMiddleware(pass))
			b.router.AddConsumerHandler("b", "t", b.in, nothing).AddMiddleware(b.inbox.BatchMiddleware, b.quarantine.Middleware)
		}, []string{`handler "b" has the middleware of poison inside of dedup's` + order}},
		{"a sequence outside of dedup", func(b *startBench) {
			versions, err := sequence.New(sequence.Config{Schema: b.tables, Tx: dedup.TxFromContext})
			b.must(err)
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(versions.Middleware, b.inbox.Middleware)
		}, []string{`handler "a" has the middleware of dedup inside of sequence's` + order}},
		{"twice", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(b.inbox.Middleware)
		}, []string{`handler "a" has the middleware of dedup twice: add it once`}},
		{"a Consumer's router with the single ones", func(b *startBench) {
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.consumer(once.ConsumerConfig{}, "payments")
		}, []string{`handler "payments" was added by Consumer.AddHandler, which has the whole chain: ` +
			`do not add the middleware of retry, dedup to its router as well`}},
		{"retry without its Subscriber", func(b *startBench) {
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.router.AddConsumerHandler("mail", "t", b.in, nothing)
		}, []string{`handler "mail" has the middleware of retry, and its subscriber is not retry's: a failed message would be tried at once ` +
			`and never later; add the handler with retries.Subscriber("mail", subscriber)`}},
		{"names", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("", b.in), nothing)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
			wrapped, err := message.MessageTransformSubscriberDecorator(func(*message.Message) {})(b.retries.Subscriber("mail", b.in))
			b.must(err)
			b.router.AddConsumerHandler("c", "t", wrapped, nothing)
			b.router.AddConsumerHandler("d", "u", b.retries.Subscriber("mail\x00", b.in), nothing)
			b.router.AddConsumerHandler(long, "t", b.in, nothing)
		}, []string{
			`handler "a" has no consumer name: retries.Subscriber has an empty one, and messages are remembered under it; ` +
				`choose a name that stays the same for good`,
			`handler "d" cannot have the consumer name that retries.Subscriber gives: "mail\x00" is longer than 255 bytes, or no text`,
			`handler "` + long + `" cannot have the consumer name that the router gives: "` + long[:40] + `" is longer than 255 bytes, or no text`,
			`consumer "mail" is used by the handlers "b" and "c" on topic "t": each would skip what the other has done; ` +
				`give each handler its own consumer name; to add one handler more than once, set retry.Config.ShareConsumer`,
		}},
		{"one name on purpose", func(b *startBench) {
			b.parts(dedup.Config{}, retry.Config{ShareConsumer: true})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
			b.router.AddConsumerHandler("c", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, nil},
		{"one inbox with a name for several", func(b *startBench) {
			b.parts(dedup.Config{Consumer: "payments"}, retry.Config{})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.in, nothing)
			b.router.AddConsumerHandler("b", "t", b.in, nothing)
			b.router.AddConsumerHandler("c", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, []string{
			`handler "c" has the consumer name "mail" from retries.Subscriber, and "payments" from dedup.Config.Consumer: ` +
				`leave dedup.Config.Consumer empty`,
			`consumer "payments" is used by the handlers "a" and "b" on topic "t": each would skip what the other has done; ` +
				`give each handler its own consumer name`,
		}},
		{"no outbox", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, []string{`handler "a" publishes to topic "payments.captured", and dedup has no outbox: messages published after the commit ` +
			`could be lost; set dedup.Config.Outbox to outbox.Publisher`}},
		{"an outbox", func(b *startBench) {
			b.parts(dedup.Config{Outbox: outbox.Publisher}, retry.Config{})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, nil},
		{"retries that outlast the inbox", func(b *startBench) {
			b.parts(dedup.Config{}, retry.Config{Policy: retry.Policy{Delayed: 40, Base: 24 * time.Hour, Max: 24 * time.Hour}})
			b.plugin()
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
		}, []string{`dedup.Config.Retention is 720h0m0s, and retry tries for up to 960h0m0s: a late copy would be handled again; ` +
			`raise Retention, or lower Policy.Delayed or Policy.Max`}},
		{"tables of their own", func(b *startBench) {
			other, err := dedup.New(b.db, dedup.Config{Schema: b.tables, Retention: 31 * 24 * time.Hour})
			b.must(err)
			tables := b.tables
			b.tables.Prefix = "mine_"
			b.parts(dedup.Config{}, retry.Config{})
			b.tables = tables
			b.router.AddPlugin(once.Plugin(other, b.retries))
			b.router.AddConsumerHandler("a", "t", b.in, nothing)
		}, []string{`dedup.Config.Schema is {Dialect:sqlite Schema: Prefix:once_ Inbox:plain} and ` +
			`retry.Config.Schema {Dialect:sqlite Schema: Prefix:mine_ Inbox:plain}: the parts share their tables, give all the same`}},
		{"no parts", func(b *startBench) { b.router.AddPlugin(once.Plugin()) }, []string{
			`Plugin was given no parts: give it what the handlers use, as Plugin(quarantine, retries, inbox)`,
		}},
		{"several at once, with the tables", func(b *startBench) {
			_, err := b.db.ExecContext(b.Context(), `DROP TABLE once_migrations`)
			b.must(err)
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, []string{
			`handler "a" has the middleware of retry, and its subscriber is not retry's: a failed message would be tried at once ` +
				`and never later; add the handler with retries.Subscriber("a", subscriber)`,
			`handler "a" publishes to topic "payments.captured", and dedup has no outbox: messages published after the commit ` +
				`could be lost; set dedup.Config.Outbox to outbox.Publisher`,
			`schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStartBench(t, testkit.SQLite(t)).up()
			b.plugin()
			c.build(b)
			if len(b.router.Handlers()) == 0 { // it would wait for one
				b.router.AddConsumerHandler("a", "t", b.in, nothing)
			}
			b.says(c.says...)
		})
	}
}

// A transport whose broker says what it is told to.
type pinged struct {
	message.Subscriber
	says error
}

func (p pinged) Ping(context.Context) error { return p.says }

type unavailable struct{ error }

func (unavailable) Unavailable() bool { return true }

func TestStartAsksTheBrokers(t *testing.T) {
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

// One role is given less than it needs, and then what it needs.
func TestStartChecksTheRights(t *testing.T) {
	db := testkit.Postgres(t)
	b := newStartBench(t, db).up()
	var role string
	b.must(db.QueryRowContext(t.Context(), `SELECT current_database() || '_user'`).Scan(&role))
	exec := func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), strings.ReplaceAll(query, "WHO", role)); err != nil {
				t.Fatal(err)
			}
		}
	}
	exec(`CREATE ROLE "WHO" LOGIN PASSWORD 'x'`)
	t.Cleanup(func() { exec(`DROP OWNED BY "WHO"`, `DROP ROLE "WHO"`) })
	dsn, err := url.Parse(db.DSN)
	b.must(err)
	dsn.User = url.UserPassword(role, "x")
	b.db, err = sql.Open("postgres", dsn.String())
	b.must(err)
	defer b.db.Close()
	start := func(says ...string) {
		t.Helper()
		b.parts(dedup.Config{}, retry.Config{})
		b.consumer(once.ConsumerConfig{}, "payments")
		b.says(says...)
	}

	start(`schema: check: read "once_migrations": pq: permission denied for table once_migrations (42501)`)
	exec(`GRANT SELECT ON once_migrations, once_parked TO "WHO"`, `GRANT SELECT, INSERT ON once_inbox TO "WHO"`)
	start(fmt.Sprintf(`schema: the database user lacks rights: %q needs DELETE on once_inbox, UPDATE on once_inbox, INSERT on once_parked, `+
		`DELETE on once_parked, UPDATE on once_parked, SELECT on once_replays, SELECT on once_consumers, INSERT on once_consumers, `+
		`DELETE on once_consumers, UPDATE on once_consumers: grant it the role of a consumer, see schema.Roles and docs/roles.md`, role))
	exec(`GRANT ALL ON once_inbox, once_parked, once_replays, once_consumers TO "WHO"`)
	start()
	if !b.logs.Has("INFO Messages of handlers that return messages would be held: the outbox cannot be written",
		fmt.Sprintf(`err=schema: the database user lacks rights: %q needs INSERT on once_outbox, USAGE on once_outbox_position: `+
			`grant it the role of a producer, see schema.Roles and docs/roles.md`, role)) {
		t.Errorf("%q", b.logs.Lines())
	}

	b.parts(dedup.Config{Outbox: outbox.Publisher}, retry.Config{})
	b.plugin().router.AddHandler("a", "t", b.in, "payments.captured", nil, pass).AddMiddleware(b.inbox.Middleware)
	b.says(fmt.Sprintf(`schema: the database user lacks rights: %q needs INSERT on once_outbox, USAGE on once_outbox_position: `+
		`grant it the role of a producer, see schema.Roles and docs/roles.md`, role))
}

// A user or a database that is not there is final, and said within seconds.
func TestStartWithADatabaseThatRefuses(t *testing.T) {
	db := testkit.Postgres(t)
	for name, c := range map[string]struct {
		change func(dsn *url.URL)
		says   string
	}{
		"user": {
			func(dsn *url.URL) { dsn.User = url.UserPassword("nobody_here", "secret") },
			`schema: check: pq: role "nobody_here" does not exist (28000)`,
		},
		"database": {
			func(dsn *url.URL) { dsn.Path = "/none_here" },
			`schema: check: pq: database "none_here" does not exist (3D000)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newStartBench(t, db)
			dsn, err := url.Parse(db.DSN)
			b.must(err)
			c.change(dsn)
			b.db, err = sql.Open("postgres", dsn.String())
			b.must(err)
			defer b.db.Close()
			b.consumer(once.ConsumerConfig{}, "payments")
			b.says(c.says)
		})
	}
}

// doors is a way to a server, which can be opened later.
type doors struct {
	net.Listener
	to string

	mu   sync.Mutex
	open bool
	all  sync.WaitGroup
}

func (d *doors) serve() {
	for {
		conn, err := d.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		open := d.open
		d.mu.Unlock()
		server, err := net.Dial("tcp", d.to)
		if err != nil || !open {
			_ = conn.Close()
			continue
		}
		d.all.Go(func() {
			defer conn.Close()
			_, _ = io.Copy(server, conn)
			_ = server.Close()
		})
		d.all.Go(func() { _, _ = io.Copy(conn, server) })
	}
}

// A database that comes later is waited for, and checked when it comes.
func TestStartWithADatabaseThatComesLater(t *testing.T) {
	db := testkit.Postgres(t)
	b := newStartBench(t, db)
	dsn, err := url.Parse(db.DSN)
	b.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	door := &doors{Listener: listener, to: dsn.Host}
	door.all.Go(door.serve)
	dsn.Host = listener.Addr().String()
	connector, err := pq.NewConnector(dsn.String())
	b.must(err)
	b.db = sql.OpenDB(connector)
	defer func() { b.must(errors.Join(b.db.Close(), listener.Close())); door.all.Wait() }()

	b.consumer(once.ConsumerConfig{}, "payments")
	ended := make(chan error, 1)
	go func() { ended <- b.router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-b.router.Running():
	case err := <-ended:
		t.Fatal(err)
	}
	if !b.logs.Has("ERROR The database cannot be reached: the router starts, and the tables are checked later", "err=schema: check: ") {
		t.Errorf("%q", b.logs.Lines())
	}
	door.mu.Lock()
	door.open = true
	door.mu.Unlock()
	testkit.Eventually(t, time.Minute, "missing tables are said", func() bool {
		return b.logs.Has("ERROR The database is not as it should be",
			`err=once: schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`)
	})
	b.must(schema.Up(t.Context(), db.DB, b.tables))
	testkit.Eventually(t, time.Minute, "all is well", func() bool {
		return b.logs.Has("INFO The database is checked: it is as it should be")
	})
	b.must(b.router.Close())
	b.must(<-ended)
}

// What a pool is too small for is said at start, and what is right is not.
func TestStartLooksAtThePool(t *testing.T) {
	for _, c := range []struct {
		name       string
		open, idle int
		says       []string
	}{
		{"as sql.Open makes it", 0, 2, []string{
			`it keeps fewer than 3 idle connections, 2 by default, and the handlers need 9: most transactions would wait ` +
				`for a new connection; set SetMaxIdleConns as high as SetMaxOpenConns`,
		}},
		{"too small", 8, 8, []string{
			`SetMaxOpenConns is 8, and 1 handlers with retry.Config.Concurrency need 9, and one more for each message of the broker ` +
				`that is handled at the same time: raise SetMaxOpenConns or lower Concurrency`,
		}},
		{"large enough", 9, 9, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStartBench(t, testkit.Postgres(t)).up()
			b.db.SetMaxOpenConns(c.open)
			b.db.SetMaxIdleConns(c.idle)
			b.consumer(once.ConsumerConfig{Retry: retry.Config{Concurrency: 8}}, "payments")
			b.says()
			for _, text := range c.says {
				if !b.logs.Has("ERROR The connection pool ", text) {
					t.Errorf("%q", b.logs.Lines())
				}
			}
			if n := b.logs.Count("The connection pool "); n != len(c.says) {
				t.Errorf("%d lines: %q", n, b.logs.Lines())
			}
		})
	}
}

// The inbox is swept for as long as a router with its handlers runs, however
// they were added.
func TestRetentionRunsWithTheRouter(t *testing.T) {
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

// old has a message that was done long ago remembered.
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

// A handler that is added while the router runs has the checks of its Consumer
// and its retention.
func TestAHandlerThatIsAddedLaterIsChecked(t *testing.T) {
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

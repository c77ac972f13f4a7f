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
	"slices"
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
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// startBench starts routers whose handlers have different middlewares.
type startBench struct {
	*testing.T

	db     *sql.DB
	tables schema.Config
	logs   *kit.Logs
	in     message.Subscriber

	router     *message.Router
	inbox      *dedup.Inbox
	retries    *retry.Retries
	quarantine *poison.Store
}

func newStartBench(t *testing.T, db kit.Database) *startBench {
	t.Helper()
	b := &startBench{
		T: t, db: db.DB, tables: schema.Config{Dialect: schema.Dialect(db.Dialect)}, logs: &kit.Logs{},
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
	kit.OK(b, err)
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
	ended := kit.Go(func() error { return b.router.Run(ctx) })
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
			kit.EachEmptyDatabase(t, func(t *testing.T, db kit.Database) {
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
	b := newStartBench(t, kit.Postgres(t)).up()
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
			b := newStartBench(t, kit.SQLite(t)).up()
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
				ended := kit.Go(func() error { return b.router.Run(context.WithoutCancel(t.Context())) })
				<-b.router.Running()
				for range 2 {
					b.old()
					kit.Eventually(t, time.Minute, "it is removed", func() bool { return b.remembered() == 0 })
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
	b := newStartBench(t, kit.SQLite(t))
	b.router.AddConsumerHandler("other", "t", b.in, nothing)
	ended := kit.Go(func() error { return b.router.Run(context.WithoutCancel(t.Context())) })
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
	kit.Eventually(t, time.Minute, "it is removed", func() bool { return b.remembered() == 0 })
	b.must(b.router.Close())
	b.must(<-ended)
}

// The start fails as long as the database user lacks rights, and the error names each
// missing right. When the user has all rights, the start succeeds.
func TestStartChecksTheRights(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	b := newStartBench(t, db).up()
	var role string
	b.must(db.QueryRowContext(t.Context(), `SELECT current_database() || '_user'`).Scan(&role))
	exec := func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			kit.OK(t, kit.Err(db.ExecContext(context.WithoutCancel(t.Context()), strings.ReplaceAll(query, "WHO", role))))
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
		`DELETE on once_consumers, UPDATE on once_consumers, SELECT on once_consumer_instances, INSERT on once_consumer_instances, `+
		`DELETE on once_consumer_instances, UPDATE on once_consumer_instances, SELECT on once_consumer_pauses, INSERT on once_consumer_pauses, `+
		`DELETE on once_consumer_pauses, UPDATE on once_consumer_pauses, SELECT on once_consumer_limits, INSERT on once_consumer_limits, `+
		`UPDATE on once_consumer_limits: grant it the role of a consumer, `+
		`see schema.Roles and docs/roles.md`, role))
	exec(`GRANT ALL ON once_inbox, once_parked, once_replays, once_consumers, once_consumer_instances, once_consumer_pauses,
		once_consumer_limits TO "WHO"`)
	start()
	if b.logs.CountLine(fmt.Sprintf(`INFO The outbox cannot be written: deliveries to handlers that return messages would stay unacked `+
		`err=schema: the database user lacks rights: %q needs INSERT on once_outbox, USAGE on once_outbox_position: `+
		`grant it the role of a producer, see schema.Roles and docs/roles.md`, role)) == 0 {
		t.Errorf("%q", b.logs.Lines())
	}

	b.parts(dedup.Config{Outbox: outbox.Publisher}, retry.Config{})
	b.plugin().router.AddHandler("a", "t", b.in, "payments.captured", nil, pass).AddMiddleware(b.inbox.Middleware)
	b.says(fmt.Sprintf(`schema: the database user lacks rights: %q needs INSERT on once_outbox, USAGE on once_outbox_position: `+
		`grant it the role of a producer, see schema.Roles and docs/roles.md`, role))
}

// If the database or its user does not exist, the start must fail within seconds,
// because waiting cannot help.
func TestStartFailsIfTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
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

// doors is a proxy for a server. It refuses connections until the test opens it.
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
		if !open {
			_ = conn.Close()
			continue
		}
		server, err := net.Dial("tcp", d.to)
		if err != nil {
			_ = conn.Close()
			continue
		}
		// When one side closes, the other one must see it: lib/pq waits for the server to close
		// the connection of a cancel request.
		pipe := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}
		d.all.Go(func() { pipe(server, conn) })
		d.all.Go(func() { pipe(conn, server) })
	}
}

// unreached matches the log line about a database whose proxy closes all connections. How
// the driver sees this depends on the time.
var unreached = regexp.MustCompile(`^ERROR The database cannot be reached: the router starts, and the tables are checked later ` +
	`err=schema: check: (EOF|driver: bad connection|\w+ tcp [0-9.:>-]+: (\w+: )?(connection reset by peer|broken pipe|i/o timeout))$`)

// If the database becomes reachable later, the start waits for it, and then checks it.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	db := kit.EmptyPostgres(t)
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
	ended := kit.Go(func() error { return b.router.Run(context.WithoutCancel(t.Context())) })
	select {
	case <-b.router.Running():
	case err := <-ended:
		t.Fatal(err)
	}
	if !slices.ContainsFunc(b.logs.Lines(), unreached.MatchString) {
		t.Errorf("no line matches %s: %q", unreached, b.logs.Lines())
	}
	door.mu.Lock()
	door.open = true
	door.mu.Unlock()
	kit.Eventually(t, time.Minute, "missing tables are said", func() bool {
		return b.logs.CountLine(`ERROR The database has not passed the check `+
			`err=once: schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`) == 1
	})
	b.must(schema.Up(t.Context(), db.DB, b.tables))
	kit.Eventually(t, time.Minute, "all is well", func() bool {
		return b.logs.CountLine("INFO The database can be reached and has passed the check") == 1
	})
	b.must(b.router.Close())
	b.must(<-ended)
}

// At the start, a connection pool that is too small must be logged, and a pool that is
// large enough must not.
func TestStartLogsASmallPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		open, idle int
		says       []string
	}{
		{"as sql.Open makes it", 0, 2, []string{
			`keeps too few idle connections max_open=0 needed=9 err=it keeps fewer than 3 idle connections, the default is 2, ` +
				`and the handlers need 9: most transactions would wait for a new connection; set SetMaxIdleConns as high as SetMaxOpenConns`,
		}},
		{"too small", 8, 8, []string{
			`is too small: handlers, claims and leases wait for each other's connections max_open=8 needed=9 ` +
				`err=SetMaxOpenConns is 8, but 1 handlers with retry.Config.Concurrency need 9, plus one for each message of the broker ` +
				`that is handled at the same time: raise SetMaxOpenConns or lower Concurrency`,
		}},
		{"large enough", 9, 9, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStartBench(t, kit.Postgres(t)).up()
			b.db.SetMaxOpenConns(c.open)
			b.db.SetMaxIdleConns(c.idle)
			b.consumer(once.ConsumerConfig{Retry: retry.Config{Concurrency: 8}}, "payments")
			b.says()
			for _, text := range c.says {
				if b.logs.CountLine("ERROR The connection pool "+text) != 1 {
					t.Errorf("%q", b.logs.Lines())
				}
			}
			if n := b.logs.Count("The connection pool "); n != len(c.says) {
				t.Errorf("%d lines: %q", n, b.logs.Lines())
			}
		})
	}
}

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

	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// The start fails as long as the database user lacks rights, and the error names each
// missing right. When the user has all rights, the start succeeds.
func TestStartChecksTheRights(t *testing.T) {
	t.Parallel()
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
		`DELETE on once_consumers, UPDATE on once_consumers, SELECT on once_consumer_instances, INSERT on once_consumer_instances, `+
		`DELETE on once_consumer_instances, UPDATE on once_consumer_instances: grant it the role of a consumer, `+
		`see schema.Roles and docs/roles.md`, role))
	exec(`GRANT ALL ON once_inbox, once_parked, once_replays, once_consumers, once_consumer_instances TO "WHO"`)
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
		d.all.Go(func() {
			defer conn.Close()
			_, _ = io.Copy(server, conn)
			_ = server.Close()
		})
		d.all.Go(func() { _, _ = io.Copy(conn, server) })
	}
}

// unreached matches the log line about a database whose proxy closes all connections. How
// the driver sees this depends on the time.
var unreached = regexp.MustCompile(`^ERROR The database cannot be reached: the router starts, and the tables are checked later ` +
	`err=schema: check: (EOF|driver: bad connection|\w+ tcp [0-9.:>-]+: (\w+: )?(connection reset by peer|broken pipe|i/o timeout))$`)

// If the database becomes reachable later, the start waits for it, and then checks it.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
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
	if !slices.ContainsFunc(b.logs.Lines(), unreached.MatchString) {
		t.Errorf("no line matches %s: %q", unreached, b.logs.Lines())
	}
	door.mu.Lock()
	door.open = true
	door.mu.Unlock()
	testkit.Eventually(t, time.Minute, "missing tables are said", func() bool {
		return b.logs.CountLine(`ERROR The database has not passed the check `+
			`err=once: schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`) == 1
	})
	b.must(schema.Up(t.Context(), db.DB, b.tables))
	testkit.Eventually(t, time.Minute, "all is well", func() bool {
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
			b := newStartBench(t, testkit.Postgres(t)).up()
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

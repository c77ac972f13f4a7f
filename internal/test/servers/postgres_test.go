package servers_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestKilledPostgresKeepsCommits(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t)
	address := server.Address()
	db := open(t, server.DSN("postgres"))
	exec(t, db, "CREATE TABLE kept (id int)")
	exec(t, db, "INSERT INTO kept VALUES (1)")

	// Kill must also end a session that runs a query. Such a session would not notice that
	// the server has ended.
	busy, err := db.Conn(t.Context())
	kit.OK(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := busy.ExecContext(context.WithoutCancel(t.Context()), "SELECT count(*) FROM generate_series(1, 1e12::bigint)")
		ended <- err
	}()
	kit.Eventually(t, 10*time.Second, "the session executes its query", func() bool {
		var n int
		err := db.QueryRowContext(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1e12%' AND pid <> pg_backend_pid()").Scan(&n)
		return err == nil && n == 1
	})

	processes := server.Processes()
	server.Kill()
	if left := servers.Left(processes); len(left) > 0 {
		t.Fatalf("processes are left: %v", left)
	}
	if err := <-ended; err == nil {
		t.Error("the session's query succeeded")
	}
	_ = busy.Close()
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	server.Kill() // a second Kill does nothing

	kit.OK(t, server.Restart(t.Context()))
	if server.Address() != address {
		t.Errorf("the server restarted at %s, was at %s", server.Address(), address)
	}
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows were kept (%v), want 1", n, err)
	}
}

func TestPostgresFreezesWithItsSessions(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t, "max_connections=17")
	db := open(t, server.DSN("postgres"))
	session, err := db.Conn(t.Context())
	kit.OK(t, err)
	var setting string
	if err := session.QueryRowContext(t.Context(), "SHOW max_connections").Scan(&setting); err != nil || setting != "17" {
		t.Fatalf("max_connections is %q (%v), want 17", setting, err)
	}

	server.Freeze()
	answered := make(chan error, 1)
	go func() {
		_, err := session.ExecContext(context.WithoutCancel(t.Context()), "SELECT 1")
		answered <- err
	}()
	// connect_timeout is needed, because a context does not end lib/pq's handshake.
	if err := open(t, server.DSN("postgres")+"&connect_timeout=1").PingContext(t.Context()); err == nil {
		t.Error("a frozen server accepted a connection")
	}
	select {
	case err := <-answered:
		t.Errorf("a frozen server answered: %v", err)
	default:
	}

	server.Thaw()
	if err := <-answered; err != nil {
		t.Errorf("the session did not survive: %v", err)
	}
	_ = session.Close()
}

func TestClosedPostgresLeavesNothing(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for name, end := range map[string]func(*servers.Postgres){
		"running": func(*servers.Postgres) {},
		"frozen":  (*servers.Postgres).Freeze,
		"killed":  (*servers.Postgres).Kill,
		"stopped": (*servers.Postgres).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "running" && name != "frozen" {
				kit.Long(t)
			}
			server := kit.PrivatePostgres(t)
			processes, memory := server.Processes(), server.SharedMemoryID()
			if !server.SharedMemory(memory) {
				t.Fatalf("there is no shared memory %d", memory)
			}
			end(server)
			for range 2 {
				kit.OK(t, server.Close())
			}
			mustBeGone(t, servers.Left(processes), server.Dir())
			if server.SharedMemory(memory) {
				t.Errorf("the shared memory %d is left", memory)
			}
		})
	}
}

// A killed primary comes back as the standby of its own standby, and is promoted in turn. It has what
// both have committed.
func TestAPrimaryAndItsStandbyTakeTurns(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	primary := kit.PrivatePostgres(t)
	standby := kit.Standby(t, primary, true)
	exec(t, open(t, primary.DSN("postgres")), "CREATE TABLE kept (id int)")
	address := primary.Address()
	for range 2 {
		primary.Kill()
		kit.OK(t, standby.Promote(t.Context()))
		kit.OK(t, primary.Follow(t.Context(), standby))
		primary, standby = standby, primary
		exec(t, open(t, primary.DSN("postgres")), "INSERT INTO kept VALUES (1)")
	}
	if primary.Address() != address {
		t.Errorf("the server is at %s, was at %s", primary.Address(), address)
	}
	var n int
	if err := open(t, standby.DSN("postgres")).QueryRowContext(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil || n != 2 {
		t.Errorf("the standby has %d rows (%v), want 2", n, err)
	}
}

func TestPostgresStartErrorHasLog(t *testing.T) {
	t.Parallel()
	_, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: []string{"shared_buffers=nonsense"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers"`) {
		t.Errorf("got %v, want the end of the log", err)
	}
}

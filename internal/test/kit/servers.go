package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/watermill-once/once/internal/test/servers"
)

// PrivatePostgres returns a private PostgreSQL server that the test may kill, freeze
// and fill. Each of the settings is a line of postgresql.conf. The start of the server
// takes about half a second.
func PrivatePostgres(t testing.TB, settings ...string) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: settings})
	return private(t, server, err)
}

// Backup returns a base backup of a server. It is not started, see [servers.Postgres.Recover].
func Backup(t testing.TB, server *servers.Postgres) *servers.Postgres {
	t.Helper()
	backup, err := server.Backup(t.Context())
	return private(t, backup, err)
}

// Upgraded stops a server, and returns one of the first of the versions to which it can
// be upgraded, with its data. If this machine has none of them, or only releases that are
// too old for the server, the test is skipped and counted, even with REQUIRE_BACKENDS=1.
func Upgraded(t testing.TB, server *servers.Postgres, versions ...string) *servers.Postgres {
	t.Helper()
	var errs []error
	for _, version := range versions {
		upgraded, err := server.Upgrade(t.Context(), version)
		if !errors.Is(err, servers.ErrNotInstalled) {
			return private(t, upgraded, err)
		}
		errs = append(errs, err)
	}
	leaveOut(t, "scripts/newer-servers.sh", errors.Join(errs...))
	return nil
}

// Standby returns a standby of a server. If synchronous is set, each COMMIT of the server waits for it.
func Standby(t testing.TB, primary *servers.Postgres, synchronous bool) *servers.Postgres {
	t.Helper()
	standby, err := primary.StartStandby(t.Context(), synchronous)
	return private(t, standby, err)
}

// PostgresAlone is like [Postgres], but on a private server. Use it for code that waits
// until all older transactions of the server have ended, such as watermill-sql's
// subscriber and package mover. On a private server, the transactions of other tests
// cannot delay such code.
func PostgresAlone(t testing.TB) Database {
	t.Helper()
	server, err := postgresAlone()
	return newDatabase(t, server, err, withTables)
}

// PrivateRabbit returns a private RabbitMQ broker that the test may kill, freeze and
// block. Each of the settings is a line of rabbitmq.conf. The start of the broker takes
// about five seconds.
func PrivateRabbit(t testing.TB, settings ...string) *servers.Rabbit {
	t.Helper()
	server, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Settings: settings})
	return private(t, server, err)
}

// PrivateRabbitOf is like [PrivateRabbit] for a version, for example "4.3". If this
// machine does not have the version, the test is skipped and counted, even with
// REQUIRE_BACKENDS=1.
func PrivateRabbitOf(t testing.TB, version string, settings ...string) *servers.Rabbit {
	t.Helper()
	server, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Version: version, Settings: settings})
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv(servers.RabbitVariable) != version {
		leaveOut(t, "scripts/newer-servers.sh", err)
	}
	return private(t, server, err)
}

// inTurn is the broker of PrivateRabbitInTurn.
var inTurn struct {
	sync.Mutex
	broker *servers.Rabbit // nil at first, and after a test that failed
	closes bool            // Main will close the broker
}

// PrivateRabbitInTurn returns a private broker that the test may freeze, block and
// restart. The tests of a package use this broker one after another, because the start
// of a broker takes five seconds of CPU time. So a test must leave the broker running
// and unchanged, apart from queues with unique names. If a test fails, it may leave the
// broker in any state, and the next test gets a new broker.
func PrivateRabbitInTurn(t testing.TB) *servers.Rabbit {
	t.Helper()
	inTurn.Lock()
	t.Cleanup(func() {
		if t.Failed() && inTurn.broker != nil {
			if err := inTurn.broker.Close(); err != nil {
				t.Error(err)
			}
			inTurn.broker = nil
		}
		inTurn.Unlock()
	})
	if inTurn.broker == nil {
		server, err := servers.StartRabbit(context.WithoutCancel(t.Context()), servers.RabbitConfig{})
		if errors.Is(err, servers.ErrNotInstalled) {
			Without(t, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		inTurn.broker = server
	}
	if !inTurn.closes {
		inTurn.closes = true
		AtEnd(func() error {
			if inTurn.broker == nil {
				return nil
			}
			return inTurn.broker.Close()
		})
	}
	return inTurn.broker
}

// PrivateRabbitCluster returns a private cluster with the given number of brokers. The
// start takes about five seconds for each broker.
func PrivateRabbitCluster(t testing.TB, nodes int) []*servers.Rabbit {
	t.Helper()
	all := []*servers.Rabbit{PrivateRabbit(t)}
	for len(all) < nodes {
		node, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Peer: all[0]})
		all = append(all, private(t, node, err))
	}
	return all
}

// PrivatePgbouncer returns a private connection pooler in front of a server. Unless the
// settings change its mode, it gives a client a connection to the server for one
// transaction at a time. Each of the settings is a line of pgbouncer.ini.
func PrivatePgbouncer(t testing.TB, server *servers.Postgres, settings ...string) *servers.Pgbouncer {
	t.Helper()
	pooler, err := servers.StartPgbouncer(t.Context(), servers.PgbouncerConfig{Server: server.Address(), Settings: settings})
	return private(t, pooler, err)
}

func private[Server interface{ Close() error }](t testing.TB, server Server, err error) Server {
	t.Helper()
	switch {
	case errors.Is(err, servers.ErrNotInstalled):
		Without(t, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Each of these functions returns a server that all tests of this process share. The
// first call finds or starts the server.
var (
	postgresServer = sync.OnceValues(func() (*postgres, error) {
		server, err := servers.ResolvePostgres(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		return sharedPostgres(server.URL)
	})

	// postgresAlone is the server of PostgresAlone.
	postgresAlone = sync.OnceValues(func() (*postgres, error) {
		server, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		return sharedPostgres(server.DSN("postgres"))
	})

	rabbitServer = sync.OnceValues(func() (*rabbit, error) {
		server, err := servers.ResolveRabbit(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		r, err := newRabbit(context.Background(), server)
		if err != nil {
			return nil, err
		}
		AtEnd(r.close)
		return r, nil
	})
)

func sharedPostgres(dsn string) (*postgres, error) {
	p, err := newPostgres(context.Background(), dsn)
	if err != nil {
		return nil, err
	}
	AtEnd(p.close)
	return p, nil
}

// closers are the functions that [Main] calls at its end.
var closers struct {
	sync.Mutex
	list []func() error
}

// AtEnd makes [Main] call the function closer after the tests. The function that was
// added last is called first.
func AtEnd(closer func() error) {
	closers.Lock()
	defer closers.Unlock()
	closers.list = append(closers.list, closer)
}

func closeShared() error {
	closers.Lock()
	defer closers.Unlock()
	var errs []error
	for _, closer := range slices.Backward(closers.list) {
		errs = append(errs, closer())
	}
	closers.list = nil
	return errors.Join(errs...)
}

// StartChild starts a process, which is killed when the test ends. If this process ends
// earlier, for example by the timeout of go test, the child is killed then, even if
// SIGSTOP has stopped the child. Otherwise its open transactions would block other
// tests. The returned channel is closed when the child has ended. StartChild itself
// calls command.Wait, so do not call it.
func StartChild(t testing.TB, command *exec.Cmd) (ended <-chan struct{}) {
	t.Helper()
	ended, err := servers.StartChild(command, syscall.SIGKILL)
	if err != nil {
		t.Fatalf("kit: %v", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended already
		<-ended
	})
	return ended
}

// programs contains the paths of the programs that Program has built in this process,
// by build tags.
var programs struct {
	sync.Mutex
	built map[string]string
}

// Program builds the tests of the current package as a program, with the given build
// tags, and returns its path. It builds the program only once for all tests of the
// package. Use it in tests that start many processes: the program is built without the
// race detector, so it starts faster than os.Args[0].
func Program(t testing.TB, tags string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path, ok := programs.built[tags]; ok {
		return path
	}
	path, err := buildProgram(tags)
	if err != nil {
		t.Fatalf("kit: %v", err)
	}
	if programs.built == nil {
		programs.built = map[string]string{}
	}
	programs.built[tags] = path
	return path
}

func buildProgram(tags string) (string, error) {
	dir, err := os.MkdirTemp("", "once-test")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "life.test")
	// make check vets the code, and nobody debugs this program.
	output, err := exec.Command("go", "test", "-c", "-vet", "off", "-ldflags", "-s -w", "-tags", tags, "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("build the tests as a program: %w: %s", err, output), os.RemoveAll(dir))
	}
	AtEnd(func() error { return os.RemoveAll(dir) })
	return path, nil
}

package servers_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

// elsewhere returns a configuration with which Resolve finds no running server, and no
// binaries to start one.
func elsewhere(t *testing.T) servers.ResolveConfig {
	t.Helper()
	t.Setenv("PG_DSN", "")
	t.Setenv("AMQP_URL", "")
	t.Setenv("RABBITMQCTL", "")
	nowhere := t.TempDir()
	return servers.ResolveConfig{
		PostgresAddress: closedPort(t),
		RabbitAddress:   closedPort(t),
		Postgres:        servers.PostgresConfig{BinDir: nowhere},
		Rabbit:          servers.RabbitConfig{BinDir: nowhere},
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// fakeDocker sets PATH to a directory that contains only a fake docker command. The
// returned function returns the arguments of all calls of this command.
func fakeDocker(t *testing.T, script string) (calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	content := "#!/bin/sh\necho \"$@\" >> '" + log + "'\n" + script + "\n"
	kit.OK(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(content), 0o700))
	t.Setenv("PATH", dir)
	return func() string {
		lines, _ := os.ReadFile(log)
		return string(lines)
	}
}

func TestResolveUsesServersOfTheEnvironment(t *testing.T) {
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	config := elsewhere(t)
	var said bytes.Buffer
	config.Output = &said
	t.Setenv("PG_DSN", db.DSN)
	t.Setenv("AMQP_URL", broker.URL)
	t.Setenv("RABBITMQCTL", "/some/ctl -q")

	set, err := servers.Resolve(t.Context(), config)
	kit.OK(t, err)
	if set.PGDSN != db.DSN || set.AMQPURL != broker.URL {
		t.Errorf("got %q, %q", set.PGDSN, set.AMQPURL)
	}
	want := []string{"PG_DSN=" + db.DSN, "AMQP_URL=" + broker.URL, "RABBITMQCTL=/some/ctl -q"}
	if got := set.Environment(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the environment is %q, want %q", got, want)
	}
	for _, line := range []string{"PostgreSQL: that of PG_DSN\n", "RabbitMQ: that of AMQP_URL\n"} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("the output is %q, want %q", said.String(), line)
		}
	}
	kit.OK(t, set.Close())
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("Close stopped a server that Resolve had not started: %v", err)
	}
}

func TestTrap60_ResolveFailsForUnusableVariablesWithoutShowingPasswords(t *testing.T) {
	for name, address := range map[string]string{
		"nobody answers": "127.0.0.1:1",
		"bad port":       "127.0.0.1:nonsense",
		"bad host":       "%zz",
	} {
		t.Run(name, func(t *testing.T) {
			config := elsewhere(t)
			t.Setenv("PG_DSN", "postgres://me:secret@"+address+"/db?sslmode=disable")
			t.Setenv("AMQP_URL", "amqp://me:secret@"+address+"/")
			_, err := servers.Resolve(t.Context(), config)
			if err == nil {
				t.Fatal("no error")
			}
			for _, word := range []string{"PG_DSN", "AMQP_URL"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not name %s", err, word)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the password is in %v", err)
			}
		})
	}
}

func TestResolveUsesServersOnTheDefaultPorts(t *testing.T) {
	kit.Long(t)
	private := kit.PrivatePostgres(t)
	config := elsewhere(t)
	config.PostgresAddress = private.Address()
	server, err := servers.ResolvePostgres(t.Context(), config)
	kit.OK(t, err)
	if want := "@" + private.Address() + "/"; !strings.Contains(server.URL, want) {
		t.Errorf("got %q, want %q", server.URL, want)
	}
	kit.OK(t, server.Close())
	if err := open(t, server.URL).PingContext(t.Context()); err != nil {
		t.Errorf("Close stopped a server that Resolve had not started: %v", err)
	}

	// An open port is not sufficient: Resolve must not choose a frozen server.
	private.Freeze()
	config.Postgres.BinDir = ""
	server, err = servers.ResolvePostgres(t.Context(), config)
	kit.OK(t, err)
	defer func() { _ = server.Close() }()
	if strings.Contains(server.URL, private.Address()) {
		t.Error("Resolve found a server that does not answer")
	}
}

func TestResolveStartsPrivateServers(t *testing.T) {
	kit.Long(t)
	for name, private := range map[string]bool{"nobody answers": false, "asked for": true} {
		t.Run(name, func(t *testing.T) {
			config := elsewhere(t)
			var said bytes.Buffer
			config.Output, config.Private = &said, private
			config.Postgres.BinDir = ""
			if private {
				t.Setenv("PG_DSN", "postgres://127.0.0.1:1/")
			}
			server, err := servers.ResolvePostgres(t.Context(), config)
			if errors.Is(err, servers.ErrNotInstalled) {
				kit.Without(t, err)
			}
			kit.OK(t, err)
			db, err := sql.Open("postgres", server.URL)
			kit.OK(t, err)
			t.Cleanup(func() { _ = db.Close() })
			exec(t, db, "SELECT 1")
			if !strings.HasPrefix(said.String(), "PostgreSQL: a private one, 127.0.0.1:") ||
				!private && !strings.Contains(said.String(), config.PostgresAddress+": dial tcp") {
				t.Errorf("the output is %q", said.String())
			}
			for range 2 {
				kit.OK(t, server.Close())
			}
			if err := db.PingContext(t.Context()); err == nil {
				t.Error("Close did not stop a server that Resolve had started")
			}
		})
	}
}

func TestResolveUsesComposeLast(t *testing.T) {
	kit.Long(t)
	// A frozen server simulates the container. The fake docker command lets it
	// continue.
	container := kit.PrivatePostgres(t)
	config := elsewhere(t)
	config.PostgresAddress = container.Address()
	var said bytes.Buffer
	config.Output = &said
	start := `[ "$1" = compose ] && kill -CONT`
	for _, pid := range container.Processes() {
		start += fmt.Sprintf(" %d", pid)
	}
	calls := fakeDocker(t, start+"; exit 0")
	container.Freeze()

	server, err := servers.ResolvePostgres(t.Context(), config)
	kit.OK(t, err)
	defer func() { _ = server.Close() }()
	if !strings.Contains(server.URL, container.Address()) {
		t.Errorf("got %q, want %s", server.URL, container.Address())
	}
	file, err := filepath.Abs("../../../deploy/compose.yaml")
	kit.OK(t, err)
	if want := "compose --file " + file + " up --detach --wait postgres\n"; !strings.HasSuffix(calls(), want) {
		t.Errorf("called docker with %q, want %q", calls(), want)
	}
	if !strings.Contains(said.String(), "compose.yaml") {
		t.Errorf("the output is %q", said.String())
	}
}

func TestResolveErrorSaysWhatIsMissing(t *testing.T) {
	config := elsewhere(t)
	calls := fakeDocker(t, "exit 1") // simulate docker without its daemon
	_, err := servers.Resolve(t.Context(), config)
	if !errors.Is(err, servers.ErrNotInstalled) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{
		"no PostgreSQL", "no RabbitMQ", "PG_DSN is not set", "AMQP_URL is not set",
		config.PostgresAddress, config.RabbitAddress, "scripts/deps.sh", "no docker daemon answers",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\ndoes not say %q", err, part)
		}
	}
	if strings.Contains(calls(), "compose") {
		t.Errorf("called docker with %q", calls())
	}
}

func TestResolveStartsServersOfTheChosenVersions(t *testing.T) {
	kit.Long(t)
	config := elsewhere(t)
	config.Postgres.BinDir, config.Rabbit.BinDir = "", ""
	kit.PrivateRabbitOf(t, "4.3").Kill() // skips the test if this machine does not have the version
	t.Setenv("ONCE_TEST_PG", "18")
	t.Setenv("ONCE_TEST_RABBIT", "4.3")
	set, err := servers.Resolve(t.Context(), config)
	kit.OK(t, err)
	defer func() { _ = set.Close() }()
	var version string
	if err := open(t, set.PGDSN).QueryRow("SHOW server_version").Scan(&version); err != nil || !strings.HasPrefix(version, "18.") {
		t.Errorf("the version of PostgreSQL is %q (%v), want 18", version, err)
	}
	conn, err := amqp.Dial(set.AMQPURL)
	kit.OK(t, err)
	defer func() { _ = conn.Close() }()
	if version, _ = conn.Properties["version"].(string); !strings.HasPrefix(version, "4.3.") {
		t.Errorf("the version of RabbitMQ is %q, want 4.3", version)
	}
}

// The newest unpacked directory with both servers is chosen, unless the user has chosen.
func TestChooseNewest(t *testing.T) {
	cache := t.TempDir()
	for _, file := range []string{
		"sid/.done", "sid/usr/lib/postgresql/18/bin", "sid/usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6",
		"old/.done", "old/usr/lib/postgresql/17/bin", "old/usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5",
		"half/.done", "half/usr/lib/postgresql/20/bin",
		"unfinished/usr/lib/postgresql/19/bin", "unfinished/usr/lib/rabbitmq/lib/rabbitmq_server-4.4.0",
	} {
		kit.OK(t, os.MkdirAll(filepath.Join(cache, "watermill-once/servers", file), 0o700))
	}
	for _, c := range []struct{ name, dir, set, value, postgres, rabbit string }{
		{"newest", cache, "", "", "18", "4.3"},
		{"nothing unpacked", t.TempDir(), "", "", "", ""},
		{"a version", cache, "ONCE_TEST_RABBIT", "4.0", "", "4.0"},
		{"a server", cache, "PG_DSN", "postgres://127.0.0.1/", "", ""},
		{"a broker", cache, "AMQP_URL", "amqp://127.0.0.1/", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", c.dir)
			for _, name := range []string{"PG_DSN", "AMQP_URL", "ONCE_TEST_PG", "ONCE_TEST_RABBIT"} {
				t.Setenv(name, "")
			}
			if c.set != "" {
				t.Setenv(c.set, c.value)
			}
			kit.OK(t, servers.ChooseNewest())
			if pg, rabbit := os.Getenv("ONCE_TEST_PG"), os.Getenv("ONCE_TEST_RABBIT"); pg != c.postgres || rabbit != c.rabbit {
				t.Errorf("PostgreSQL %q and RabbitMQ %q, want %q and %q", pg, rabbit, c.postgres, c.rabbit)
			}
		})
	}
}

func TestResolveRefusesServersOfAnotherVersion(t *testing.T) {
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	config := elsewhere(t)
	t.Setenv("PG_DSN", db.DSN)
	t.Setenv("AMQP_URL", broker.URL)
	t.Setenv("ONCE_TEST_PG", "1")
	t.Setenv("ONCE_TEST_RABBIT", "0.9")
	_, err := servers.Resolve(t.Context(), config)
	for _, part := range []string{"ONCE_TEST_PG is 1", "ONCE_TEST_RABBIT is 0.9"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v, want %q", err, part)
		}
	}
}

func TestAMissingVersionIsNotInstalled(t *testing.T) {
	t.Parallel()
	_, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Version: "1"})
	_, rabbitErr := servers.StartRabbit(t.Context(), servers.RabbitConfig{Version: "0.9"})
	for want, err := range map[string]error{"PostgreSQL 1 ": err, "RabbitMQ 0.9 ": rabbitErr} {
		if !errors.Is(err, servers.ErrNotInstalled) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

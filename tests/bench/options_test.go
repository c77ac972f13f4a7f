package main

import (
	"bytes"
	"errors"
	"flag"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func setServers(t *testing.T) {
	t.Helper()
	t.Setenv("PG_DSN", "postgres://localhost/postgres")
	t.Setenv("AMQP_URL", "amqp://localhost")
}

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args)
	kit.OK(t, err)
	return o
}

func TestDefaults(t *testing.T) {
	setServers(t)
	o := parsed(t)
	if got := names(o.groups); got != names(groups()) {
		t.Errorf("groups: %s", got)
	}
	if o.runs != 3 || o.messages != 40_000 || o.slow != 4_000 || o.hold != time.Minute || o.backlog != 1_000_000 {
		t.Errorf("%+v", o.sizes)
	}
	if strings.Join(o.kinds, " ") != "quorum classic" {
		t.Errorf("kinds: %v", o.kinds)
	}
}

func TestFlags(t *testing.T) {
	setServers(t)
	o := parsed(t, "-quick", "-only", "memory,drain", "-queues", "classic", "-runs", "5", "-messages", "70", "-out", "file")
	if got := names(o.groups); got != "drain, memory" {
		t.Errorf("groups: %s", got)
	}
	if o.runs != 5 || o.messages != 70 || o.slow != 7 || o.out != "file" || strings.Join(o.kinds, " ") != "classic" {
		t.Errorf("%+v", o)
	}
	if o.backlog >= 1_000_000 || o.hold >= time.Minute {
		t.Errorf("not quick: %+v", o.sizes)
	}
	if o := parsed(t, "-messages", "3"); o.slow != 1 {
		t.Errorf("slow: %d", o.slow)
	}
}

func TestEveryInvalidOptionIsNamed(t *testing.T) {
	t.Setenv("PG_DSN", "")
	t.Setenv("AMQP_URL", "")
	_, err := parse([]string{"-only", "drain,nonsense", "-queues", "fast", "-runs", "0", "-messages", "-1", "more"})
	if !errors.Is(err, errUsage) {
		t.Fatal(err)
	}
	for _, part := range []string{
		`no group "nonsense", only drain, `, `-queues is "fast"`, "-runs is 0", "-messages is -1", `argument "more"`, "PG_DSN", "AMQP_URL",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if _, err := parse([]string{"-unknown"}); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "-unknown") {
		t.Error(err)
	}
}

// Trap 60. An error names a variable that cannot be parsed, but does not show its
// value, which may contain a password.
func TestPasswordsOfTheServersAreNotPrinted(t *testing.T) {
	for name, values := range map[string][]string{
		"PG_DSN": {
			"postgres://u:canary%zz@h/d", "postgres://u:canary@h:port/d", "postgres://u:canary#1@h/d", "user=u password='canary",
			"postgres://u:canary@h/d?connect_timeout=canary", "postgres://u:canary\n@h/d",
		},
		"AMQP_URL": {"amqp://u:canary%zz@h/", "amqp://u:canary@h:port/", "amqp://u:canary#1@h/", "u:canary@h", "amqp://u:canary @h/"},
	} {
		for _, value := range values {
			t.Setenv("PG_DSN", "postgres://localhost/postgres")
			t.Setenv("AMQP_URL", "amqp://localhost")
			t.Setenv(name, value)
			_, err := parse(nil)
			if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
	// The error about a server that does not answer must not show its URL either.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	closed := listener.Addr().String()
	kit.OK(t, listener.Close())
	dsn := kit.Postgres(t).DSN
	for _, o := range []options{
		{pgDSN: "postgres://u:canary@" + closed + "/d?sslmode=disable", amqpURL: "amqp://u:canary@" + closed},
		{pgDSN: dsn, amqpURL: "amqp://u:canary@" + closed},
	} {
		if _, err := facts(t.Context(), o); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v", err)
		}
	}
	_, err = newDatabase(t.Context(), "postgres://u:canary@"+closed+"/d?sslmode=disable")
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("%v", err)
	}
	_, err = newQueue("amqp://u:canary@"+closed, "classic")
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("%v", err)
	}
}

func TestHelpExplainsGroupsAndFlags(t *testing.T) {
	for _, arg := range []string{"-h", "-help", "--help"} {
		if _, err := parse([]string{arg}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	var out bytes.Buffer
	help(&out)
	for _, g := range groups() {
		if !strings.Contains(out.String(), g.name) || !strings.Contains(out.String(), g.about) {
			t.Errorf("%s is not explained", g.name)
		}
	}
	flags, _ := newFlags()
	flags.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(out.String(), "-"+f.Name) {
			t.Errorf("-%s is not explained", f.Name)
		}
	})
}

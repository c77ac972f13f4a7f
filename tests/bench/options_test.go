package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"
)

func servers(t *testing.T) {
	t.Helper()
	t.Setenv("PG_DSN", "postgres://localhost/postgres")
	t.Setenv("AMQP_URL", "amqp://localhost")
}

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDefaults(t *testing.T) {
	servers(t)
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
	servers(t)
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

func TestEverythingWrongIsNamed(t *testing.T) {
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

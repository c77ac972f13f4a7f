package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/status"
)

func TestStatus(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		commit(s, db, "orders", "m1", "m2")
		s.says(s.once(exitDone, "status"), "outbox      2 messages wait, one has been due for",
			"0 instances run; nobody sends the messages of 64 slots",
			"dead        0 dead letters", "parked      0 messages are tried again later", "quarantine  0 messages")
		out := object[statusJSON](s, exitDone, "status")
		if out.Outbox.Pending != (atMostJSON{N: 2}) || out.FreeSlots != 64 || out.Tables != 1 {
			t.Errorf("status %+v", out)
		}
		s.says(s.once(exitUsage, "status", "--every", "1s"), "--every needs --watch")
	})
}

// "once status --watch" writes one state after the other, and Ctrl-C ends it with exit
// code 0.
func TestStatusWatch(t *testing.T) {
	s := newShell(t, testkit.SQLite(t))
	for _, c := range []struct {
		width int
		json  bool
		mark  string // at the beginning of each state
	}{{0, false, " UTC\noutbox "}, {80, false, "\x1b[H\x1b[2J"}, {0, true, `"tables":1`}} {
		ctx, interrupt := context.WithCancel(t.Context())
		var stdout, stderr buffer
		a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, width: c.width}
		a.env = func(name string) string { return s.env[name] }
		args := []string{"status", "--watch", "--every", "10ms"}
		if c.json {
			args = append(args, "--json")
		}
		ended := make(chan int, 1)
		go func() { ended <- a.run(ctx, args) }()
		testkit.Eventually(t, time.Minute, "three states", func() bool { return strings.Count(stdout.String(), c.mark) >= 3 })
		interrupt()
		if code := <-ended; code != exitDone || stderr.String() != "" {
			t.Errorf("exit code %d\n%s", code, stderr.String())
		}
		for line := range strings.Lines(stdout.String()) {
			if c.json && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
	}
}

func TestCountsAboveTheBound(t *testing.T) {
	for want, c := range map[string]status.Count{
		"1 row":                {N: 1},
		"10000 rows":           {N: 10_000},
		"more than 10000 rows": {N: 10_000, More: true},
		"about 9900000 rows":   {N: 10_000, More: true, About: 9_900_000},
	} {
		if got := atMost(c, "row", "rows"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/internal/test/kit"
)

// After a usage mistake, the command prints an error to standard error and ends with
// exit code 2, before it connects to anything.
func TestUsageMistakes(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, c := range []struct {
		env  string
		args string
	}{
		{"", "bogus"},
		{"", "statsu"},
		{"", "--bogus"},
		{"", "dead"},
		{"", "dead bogus"},
		{"", "dead list"},
		{"", "dead list extra"},
		{"", "dead list --bogus"},
		{"", "dead list --limit 0"},
		{"", "dead list --limit many"},
		{"", "dead list --reason bogus"},
		{"", "dead list --failed-after yesterday"},
		{"", "dead list --topic="},
		{"", "dead show"},
		{"", "dead show x"},
		{"", "dead show 1 2"},
		{"", "dead replay"},
		{"", "dead replay 0"},
		{"", "dead replay 1 --topic t"},
		{"", "dead replay --all --topic t"},
		{"", "dead replay --all --rate 0"},
		{"", "dead replay --all --inbox-retention 7"},
		{"", "dead discard 1"},
		{"", "dead discard --all --yes"},
		{"", "dead discard 1 2 --why w --limit 1"},
		{"", "dead replay 1 2 --limit 1"},
		{"", "sent replay 1 2 --limit 1"},
		{"", "dead release"},
		{"", "sent replay"},
		{"", "parked"},
		{"", "parked list --state bogus"},
		{"", "parked show"},
		{"", "parked run"},
		{"", "parked run 1 --topic t"},
		{"", "parked cancel 1"},
		{"", "parked cancel --all --yes"},
		{"", "parked discard --all --rate 0"},
		{"", "parked run 1 2 --limit 1"},
		{"", "parked cancel 1 2 --why w --rate 1"},
		{"", "parked discard 1 2 --why w --rate 1"},
		{"", "consumers"},
		{"", "consumers list extra"},
		{"", "consumers remove payments"},
		{"", "consumers remove payments orders.placed"},
		{"", "outbox"},
		{"", "outbox lits"},
		{"", "outbox list --state waiting"},
		{"", "outbox show"},
		{"", "outbox retry"},
		{"", "outbox retry 1 --topic t"},
		{"", "outbox retry --all --rate 0"},
		{"", "outbox retry 1 2 --rate 1"},
		{"", "outbox cancel 1"},
		{"", "outbox cancel 1 2 --why w --limit 1"},
		{"", "outbox pause --why w"},
		{"", "outbox pause --topic t --tenant t --why w"},
		{"", "outbox pause --topic t"},
		{"", "outbox cancel --all --yes"},
		{"", "versions waiting --aggregate-id 7"},
		{"", "audit --actor ann"},
		{"", "audit --since yesterday"},
		{"", "archive"},
		{"", "archive sent"},
		{"", "archive handled"},
		{"", "archive handled dir --rows 0"},
		{"", "sweep --keep-sent 0"},
		{"", "migrate up --sent weekly"},
		{"", "status --every 5s"},
		{"", "status --watch --every 0s"},
		{"", "replays stop"},
		{"", "trace"},
		{"", "trace a b"},
		{"", "trace a --tenant t"},
		{"", "trace --tenant t --aggregate order/1"},
		{"", "trace --aggregate order"},
		{"", "trace a --limit 0"},
		{"", "quarantine list --reason bogus"},
		{"", "quarantine replay"},
		{"", "quarantine replay --all --canary 0"},
		{"", "quarantine replay 1 2 --limit 1"},
		{"", "quarantine discard 1"},
		{"", "quarantine discard 1 2 --why w --limit 1"},
		{"", "quarantine edit 1 --payload f"},
		{"", "quarantine edit 1 --why w"},
		{"", "quarantine edit 1 --why w --set name"},
		{"", "quarantine edit 1 --why w --payload testdata/no-such-file"},
		{"", "quarantine import"},
		{"", "quarantine import testdata/no-such-file"},
		{"", "replays resume"},
		{"", "sweep --retention 0s"},
		{"", "mover --json"},
		{"", "reconcile"},
		{"", "reconcile run"},
		{"", "reconcile run --topic t --consumer c --recent 5"},
		{"", "reconcile ask"},
		{"", "reconcile answer"},
		{"", "reconcile answer question.json"},
		{"", "reconcile read answer.json"},
		{"", "reconcile ledger --by month"},
		{"", "forward"},
		{"", "forward --json"},
		{"", "forward --amqp-url http://h/"},
		{"", "forward --topology fanout"},
		{"", "forward --connections 1"},
		{"", "console --json"},
		{"", "console --listen :9465"},
		{"", "console --listen 10.0.0.1:9465"},
		{"", "console --color pink"},
		{"", "migrate sql --dialect mysql"},
		{"", "migrate sql --from 99"},
		{"", "migrate sql --schema a;b"},
		{"", "migrate roles --role-prefix a-b"},
		{"", "man"},
		{"ONCE_DSN=mysql://ann:pa55word@h/d", "status"},
		{"ONCE_DSN=postgres://ann:pa55word%zz@h/d", "status"},
		{"ONCE_INBOX=weekly", "status"},
		{"ONCE_AMQP_URL=amqp://ann:pa55word%zz@h/", "forward"},
	} {
		s := &shell{T: t, env: map[string]string{}}
		if name, value, ok := strings.Cut(c.env, "="); ok {
			s.env[name] = value
			fmt.Fprintf(&b, "$ %s once %s\n", c.env, c.args)
		} else {
			fmt.Fprintf(&b, "$ once %s\n", c.args)
		}
		got := s.run(t.Context(), strings.Fields(c.args)...)
		if got.code != exitUsage || got.stdout != "" || strings.Contains(got.stderr, "pa55word") {
			t.Errorf("once %s: exit code %d\n%s%s", c.args, got.code, got.stdout, got.stderr)
		}
		b.WriteString(got.stderr + "\n")
	}
	golden(t, "usage.txt", b.String())
}

// The help of every command is in testdata.
func TestHelp(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		s := &shell{T: t, env: map[string]string{}}
		got := s.run(t.Context(), append(path, "--help")...)
		if got.code != exitDone || got.stderr != "" {
			t.Errorf("once %v --help: exit code %d, stderr %q", path, got.code, got.stderr)
		}
		fmt.Fprintf(&b, "$ %s --help\n%s\n", cmd.CommandPath(), got.stdout)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).rootCommand())
	golden(t, "help.txt", b.String())
}

func TestVersionAndCompletion(t *testing.T) {
	s := &shell{T: t}
	s.says(s.once(exitDone, "--version"), "once ", "(tables of version 3)")
	for _, name := range []string{"bash", "zsh", "fish"} {
		s.says(s.once(exitDone, "completion", name), "once")
	}
}

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	s := &shell{T: t}
	s.once(exitDone, "man", dir)
	page, err := (&app{}).read(dir + "/once-quarantine-replay.1")
	kit.OK(t, err)
	s.says(string(page), "stop-on-failure", "SYNOPSIS")
}

// Columns are cut to the width of the terminal, times and ids last. Characters that
// control a terminal are replaced, and blanks at the ends are shown.
func TestTable(t *testing.T) {
	for _, test := range []struct {
		width int
		head  []string
		rows  [][]string
		want  string
	}{
		{
			20,
			[]string{"ID", "ERROR"},
			[][]string{{"17", "no queue for orders.placed"}, {"4", "a\x1b[2Jb\nc"}},
			"ID  ERROR\n17  no queue for or…\n4   a·[2Jb·c\n",
		},
		{
			40,
			[]string{"ID", "MESSAGE", "TOPIC", "STATE"},
			[][]string{{"1", "0198c3a4-1111-7abc-8def-0123456789ab", "orders.placed", "waiting"}},
			"ID  MESSAGE                 TOPIC  STATE\n1   0198c3a4-1111-7abc-8d…  orde…  wait…\n",
		},
		{
			0,
			[]string{"ID", "MESSAGE"},
			[][]string{{"1", strings.Repeat("long", 20)}},
			"ID  MESSAGE\n1   " + strings.Repeat("long", 20) + "\n",
		},
		{10, []string{"A", "LONG HEAD", "B"}, [][]string{{"1", "2", "3"}}, "A  LONG… …\n1  2     …\n"},
		{
			80,
			[]string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "FAILED (UTC)", "TRIES", "REASON", "ERROR"},
			[][]string{{
				"1234567", "payments-of-orders", "orders.placed", strings.Repeat("m", 36), "2026-05-01 12:00:00", "3", "exhausted", "no card",
			}},
			"ID       CONS…  TOPIC  MESSAGE          FAILED (UTC)         TRIES  REAS…  ERROR\n" +
				"1234567  paym…  orde…  mmmmmmmmmmmmmm…  2026-05-01 12:00:00  3      exha…  no c…\n",
		},
		{0, []string{"ID", "TOPIC"}, [][]string{{"1", " A1  "}, {"2", "A\n1"}}, "ID  TOPIC\n1   ␣A1␣␣\n2   A·1\n"},
	} {
		if got := table(test.width, test.head, test.rows); got != test.want {
			t.Errorf("width %d: got\n%s", test.width, got)
		}
	}
}

// No output contains a password, whatever form the address has and whatever fails.
func TestPasswordsAreNotShown(t *testing.T) {
	t.Parallel()
	kit.Postgres(t)
	const secret = "c4nary/pass word"
	for _, dsn := range []string{
		"postgres://ann:c4nary%2Fpass%20word@127.0.0.1:1/shop?sslmode=disable",
		"postgres://ann:c4nary%zz@127.0.0.1:1/shop",
		"postgres://ann@127.0.0.1:1/shop?password=c4nary&sslmode=bogus",
		"host=127.0.0.1 port=1 user=ann password='c4nary/pass word' sslmode=disable",
		"host=127.0.0.1 port=x user=ann password=c4nary",
		"host=127.0.0.1 user=ann password=c4nary more words",
		"mysql://ann:c4nary@h/d",
		"c4nary",
		"file:///no/such/dir/x.db?password=c4nary",
	} {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": dsn, "ONCE_AMQP_URL": "amqp://ann:c4nary@127.0.0.1:1/"}}
		for _, command := range [][]string{{"status"}, {"migrate", "up"}, {"doctor"}, {"forward", "--listen", "127.0.0.1:0"}} {
			got := s.run(t.Context(), command...)
			if got.code != exitFailed && got.code != exitUsage {
				t.Errorf("%s: once %v: exit code %d", dsn, command, got.code)
			}
			for _, part := range []string{secret, "c4nary"} {
				if text := got.stdout + got.stderr; strings.Contains(text, part) {
					t.Errorf("%s: once %v shows the password:\n%s", dsn, command, text)
				}
			}
		}
	}
}

func TestHide(t *testing.T) {
	a := &app{settings: settings{dsn: "host=h password='two words'", amqpURL: "amqp://ann:pa%2Fss@h/"}}
	for text, want := range map[string]string{
		"login with two words":           "login with ***",
		"pa/ss and pa%2Fss":              "*** and ***",
		"dial amqp://bob:x@h/: refused":  "dial amqp://***@h/: refused",
		"set it to amqp://user@host/ or": "set it to amqp://user@host/ or",
	} {
		if got := a.hide(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestIDsAreDistinct(t *testing.T) {
	if ids, err := parseIDs([]string{"18", "17", "018", "17"}); err != nil || !slices.Equal(ids, []int64{18, 17}) {
		t.Errorf("IDs %v, %v", ids, err)
	}
}

// Errors name the value and the remedy.
func TestErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	for command, says := range map[string]string{
		"outbox show 99":                      "99: not found (once outbox list shows the IDs)",
		"outbox retry 99":                     "99: not found (once outbox list shows the IDs)",
		"dead discard 99 --why w":             "99: not found (once dead list shows the IDs)",
		"sent replay 99":                      "99: not found (once sent list shows the IDs)",
		"parked cancel 99 --why w":            "99: not found (once parked list shows the IDs)",
		"quarantine show 99":                  "message 99: not found (once quarantine list shows the IDs)",
		"quarantine edit 99 --why w --set a=": "message 99: not found (once quarantine list shows the IDs)",
		"outbox cancel 99 --why w --force":    "1 of 1 message: not found (once outbox list shows the IDs)",
		"outbox cancel 99 --why w --rate 1":   "1 of 1 message: not found (once outbox list shows the IDs)",
		"dead replay 98 99 --rate 1":          "2 of 2 messages: not found (once dead list shows the IDs)",
		"sent replay 99 --force":              "1 of 1 message: not found (once sent list shows the IDs)",
		"quarantine replay 98 99 --canary 1":  "2 of 2 messages: not found (once quarantine list shows the IDs)",
		"replays stop 99":                     "no such replay: 99 (once replays list shows the IDs)",
		"dead release order-7":                `"order-7" (once outbox blocked shows the blocked keys)`,
		"consumers remove payments t --why w": `consumer "payments" of topic "t": no such consumer (once consumers list`,
		"reconcile ask --topic t":             "set forwarder.Config.KeepSent in all forwarders (once forward has the flag --keep-sent)",
		"mover --once":                        `"watermill_forwarder_topic" (check --forwarder-topic, or name the table with --messages-table)`,
		"status --inbox by_day":               "(leave out --inbox and ONCE_INBOX, or convert the inbox with once migrate up --inbox by_day)",
		"status --dsn sqlite:/no/such/x.db":   "(check the file in ONCE_DSN or --dsn; once migrate up creates a new one)",
	} {
		got := s.run(t.Context(), strings.Fields(command)...)
		if got.code != exitFailed || !strings.Contains(got.stderr, says) {
			t.Errorf("once %s: exit code %d, %s\nwant %s", command, got.code, got.stderr, says)
		}
	}

	address, err := url.Parse(db.DSN)
	kit.OK(t, err)
	address.Path = "/no_such_database"
	s.says(s.once(exitFailed, "status", "--dsn", address.String()),
		"no_such_database", "(check the address and the user in ONCE_DSN or --dsn)")

	s.once(exitDone, "migrate", "up", "--inbox", "by_day")
	s.says(s.once(exitFailed, "status"), "(add --inbox by_day, or set ONCE_INBOX=by_day)")
	s.once(exitDone, "status", "--inbox", "by_day")
}

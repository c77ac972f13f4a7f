package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
		{"", "outbox cancel 1"},
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
		{"", "quarantine discard 1"},
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
	s.says(s.once(exitDone, "--version"), "once ", "(tables of version 1)")
	for _, name := range []string{"bash", "zsh", "fish"} {
		s.says(s.once(exitDone, "completion", name), "once")
	}
}

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	s := &shell{T: t}
	s.once(exitDone, "man", dir)
	page, err := (&app{}).read(dir + "/once-quarantine-replay.1")
	if err != nil {
		t.Fatal(err)
	}
	s.says(string(page), "stop-on-failure", "SYNOPSIS")
}

// The widest columns are cut to the width of the terminal, and characters that control a
// terminal are replaced.
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
			"ID  MESSAGE        TOPIC         STATE\n1   0198c3a4-111…  orders.plac…  waiting\n",
		},
		{
			0,
			[]string{"ID", "MESSAGE"},
			[][]string{{"1", strings.Repeat("long", 20)}},
			"ID  MESSAGE\n1   " + strings.Repeat("long", 20) + "\n",
		},
		{10, []string{"A", "LONG HEAD", "B"}, [][]string{{"1", "2", "3"}}, "A  LONG H…\n1  2     …\n"},
	} {
		if got := table(test.width, test.head, test.rows); got != test.want {
			t.Errorf("width %d: got\n%s", test.width, got)
		}
	}
}

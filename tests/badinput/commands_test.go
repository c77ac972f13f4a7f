package badinput

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// commands maps the commands of the repository to their directories.
var commands = map[string]string{
	"orders":       "examples/orders",
	"bench":        "tests/bench",
	"chaos":        "tests/chaos",
	"guards":       "tests/guards",
	"with-servers": "internal/test/servers/cmd/with-servers",
}

// line is a command line for a shell. $dir is an empty directory, $file is a file, and
// $gone is a path in a directory that does not exist. No server listens at PG_DSN and
// AMQP_URL.
type line struct {
	typed string
	says  string // parts of the error, separated by "...": the flag or variable, and the allowed values
}

// mistyped contains command lines that are refused before the command begins its work.
var mistyped = []line{
	{`orders -bogus`, `not defined: -bogus`},
	{`orders -orders`, `needs an argument: -orders`},
	{`orders -orders=`, `-orders: must be a whole number`},
	{`orders -orders many`, `-orders: must be a whole number`},
	{`orders -orders 1.5`, `-orders: must be a whole number`},
	{`orders -orders 99999999999999999999`, `-orders: must be a whole number`},
	{`orders -orders 9223372036854775807`, `-orders 9223372036854775807: must be in 0..10000000`},
	{`orders -orders -1`, `-orders -1: must be in 0..10000000`},
	{`orders -exit=maybe`, `-exit: must be true or false`},
	{`orders -exit maybe`, `"maybe" is no flag`},
	{`orders -- -exit`, `"-exit" is no flag`},
	{`orders -timeout 5`, `-timeout: must be a duration with its unit`},
	{`orders -timeout -5s`, `-timeout -5s: must be positive`},
	{`orders -timeout 0`, `-timeout 0s: must be positive`},
	{`orders -timeout 99999999h`, `-timeout: must be a duration`},
	{`orders -lease 1ms`, `-lease 1ms: must be at least 500ms`},
	{`orders -addr ''`, `-addr "": must be host:port`},
	{`orders -addr 8080`, `-addr "8080": must be host:port`},
	{`orders -addr localhost:99999`, `-addr "localhost:99999": must be host:port, with a port in 0..65535`},
	{`orders -addr localhost:-1`, `-addr "localhost:-1": must be host:port, with a port in 0..65535`},
	{`orders -addr 'localhost:no port'`, `-addr "localhost:no port": must be host:port`},
	{`orders -addr ::1:80`, `-addr "::1:80": must be host:port`},
	{`orders -faults`, `-faults needs -orders`},
	{`orders -json`, `-json needs -orders or -exit`},
	{`orders -data ''`, `-data is empty: give it a value, or leave it out`},
	{`orders -data "$file"`, `-data ...: must be a directory`},
	{`orders -data "$file/below"`, `-data ...: must be a directory`},
	{`orders -data "$dir" -db "$PG_DSN"`, `-data is for SQLite`},
	{`orders -db "$UNSET"`, `-db is empty: give it a value, or leave it out`},
	{`orders -db mysql://u:canary@h/d`, `-db: must be postgres://user:password@host/database, or key=value pairs`},
	{`orders -db 'postgres://u:can ary@h/d'`, `-db: must be postgres://`},
	{`orders -db postgres://u:canary@h:port/d`, `-db: must be postgres://`},
	{`orders -db postgres://u:canary%zz@h/d`, `-db: must be postgres://`},
	{`orders -db 'host=h password=canary port=x'`, `-db: must be postgres://`},
	{`orders -amqp "$UNSET"`, `-amqp is empty: give it a value, or leave it out`},
	{`orders -amqp "$AMQP_URL"`, `-amqp needs -db`},
	{`orders -db "$PG_DSN" -amqp http://u:canary@h/`, `-amqp: must be amqp://user:password@host/`},
	{`orders -db "$PG_DSN" -amqp amqp://u:canary@h:port/`, `-amqp: must be amqp://user:password@host/`},
	{`orders -schema ''`, `-schema "": must be letters, digits and underscores`},
	{`orders -schema 'a"; DROP TABLE b'`, `-schema ...: must be letters, digits and underscores`},
	{`orders -namespace ''`, `-namespace "": must be letters, digits, dots, hyphens and underscores`},
	{`orders -namespace a/b`, `-namespace "a/b": must be letters`},
	{`orders -v ''`, `-v is empty`},
	{`orders -v LOUD`, `-v LOUD: must be one of debug, error, info, off, trace, warn`},
	{`orders -orders -1 -lease 1ms -schema ''`, `-orders -1...-lease 1ms...-schema ""`},

	{`bench -bogus`, `not defined: -bogus`},
	{`bench -only`, `needs an argument: -only`},
	{`bench -only ''`, `-only is empty`},
	{`bench -only drain,,memory`, `-only: there is no group "", only drain, `},
	{`bench -only 'drain, memory'`, `-only: there is no group " memory", only drain, `},
	{`bench -only Drain,x`, `-only: there is no group "Drain", only drain, `},
	{`bench drain`, `unexpected argument "drain"`},
	{`bench -- -only drain`, `unexpected argument "-only"`},
	{`bench -quick=perhaps`, `-quick: must be true or false`},
	{`bench -runs x`, `-runs: must be a whole number`},
	{`bench -runs 0`, `-runs is 0: must be in 1..1000`},
	{`bench -runs 9000000000000000000`, `-runs is 9000000000000000000: must be in 1..1000`},
	{`bench -messages 0`, `-messages is 0: must be in 1..10000000`},
	{`bench -messages -1`, `-messages is -1: must be in 1..10000000`},
	{`bench -messages 9000000000000000000`, `-messages is 9000000000000000000: must be in 1..10000000`},
	{`bench -messages 1e3`, `-messages: must be a whole number`},
	{`bench -queues ''`, `-queues is "", none of quorum, classic, both`},
	{`bench -queues quorum,classic`, `-queues is "quorum,classic", none of quorum, classic, both`},
	{`bench -out ''`, `-out is empty`},
	{`bench -out "$dir"`, `-out: must be a file that can be written`},
	{`bench -out "$gone"`, `-out: must be a file that can be written`},
	{`bench -out "$file/below"`, `-out: must be a file that can be written`},
	{`bench -out "$dir/new" -only x`, `-only: there is no group "x"`},
	{`PG_DSN= AMQP_URL= bench`, `PG_DSN is not set: run make bench...AMQP_URL is not set: run make bench`},
	{`PG_DSN=x bench`, `PG_DSN must be a URL, postgres://user:password@host/database`},
	{`PG_DSN='host=h password=canary' bench`, `PG_DSN must be a URL, postgres://user:password@host/database`},
	{`PG_DSN=mysql://u:canary@h/d bench`, `PG_DSN must be a URL, postgres://`},
	{`PG_DSN=postgres://u:canary@h:port/d AMQP_URL=http://u:canary@h bench`, `PG_DSN: ...postgres://...AMQP_URL: ...amqp://`},
	{`ONCE_BENCH_DRAINER=canary bench`, `ONCE_BENCH_DRAINER is for the process that this command starts`},

	{`chaos -bogus`, `not defined: -bogus`},
	{`chaos 8h`, `unexpected argument "8h"`},
	{`chaos -seed -1`, `-seed: must be a whole number from 0`},
	{`chaos -messages many`, `-messages: must be a whole number`},
	{`chaos -messages 0`, `-messages is 0: must be in 1..1000000000`},
	{`chaos -messages 9000000000000000000`, `-messages is 9000000000000000000: must be in 1..1000000000`},
	{`chaos -bites 0`, `-bites is 0: must be in 1..1000000`},
	{`chaos -bites 9223372036854775807`, `-bites is 9223372036854775807: must be in 1..1000000`},
	{`chaos -duration 8`, `-duration: must be a duration with its unit`},
	{`chaos -duration -8h`, `-duration is -8h0m0s: must not be negative`},
	{`chaos -only ''`, `-only is empty`},
	{`chaos -only ,`, `-only: there is no kind ""; see -help`},
	{`chaos -only 'writer-kill, duplicates'`, `-only: there is no kind " duplicates"; see -help`},
	{`chaos -plant ''`, `-plant is empty`},
	{`chaos -plant inbox,Order`, `-plant: there is no "Order", only inbox, delete, order, outbox`},
	{`chaos -old ''`, `-old is empty`},
	{`chaos -old "$dir"`, `-old: must be this command as an earlier release built it`},
	{`chaos -old "$file"`, `-old: must be this command as an earlier release built it`},
	{`chaos -old "$gone"`, `-old: must be this command as an earlier release built it`},
	{`chaos -old "$bin/with-servers"`, `-old: must be this command as an earlier release built it`},
	{`chaos -old "$bin/bench"`, `-old: must be this command as an earlier release built it`},
	{`chaos -old "$bin/chaos" -only x`, `-only: there is no kind "x"`},
	{`chaos -json ''`, `-json is empty`},
	{`chaos -json "$dir"`, `-json: must be a file that can be written`},
	{`chaos -json "$gone"`, `-json: must be a file that can be written`},
	{`chaos -messages 0 -bites 0 -duration -1s -only x`, `-messages is 0...-bites is 0...-duration is -1s...-only: there is no kind "x"`},
	{`ONCE_CHAOS_ROLE=canary chaos`, `ONCE_CHAOS_ROLE is for the processes that this command starts`},

	{`guards -bogus`, `not defined: -bogus`},
	{`guards 42`, `unexpected argument "42"`},
	{`guards -only ''`, `-only is empty`},
	{`cd "$root" && guards -only 42,`, `-only: there is no guard of trap ""; see -help`},
	{`cd "$root" && guards -only '42, 3'`, `-only: there is no guard of trap " 3"; see -help`},
	{`cd "$root" && guards -only 99999`, `-only: there is no guard of trap "99999"; see -help`},
	{`cd "$root" && guards -only -1`, `-only: there is no guard of trap "-1"`},
	{`guards -timeout 3`, `-timeout: must be a duration with its unit`},
	{`guards -timeout 0`, `-timeout is 0s: must be at least 10s`}, // with 0, go test would have no time limit
	{`guards -timeout 1ns`, `-timeout is 1ns: must be at least 10s`},
	{`cd "$root" && guards -timeout -1m -only x more`, `argument "more"...-timeout is -1m0s...-only: there is no guard of trap "x"`},
	{`PG_DSN=mysql://u:canary@h AMQP_URL=u:canary@h guards`, `PG_DSN: ...postgres://...AMQP_URL: ...amqp://`},

	{`with-servers`, `no command`},
	{`with-servers --`, `no command`},
	{`with-servers -private`, `no command`},
	{`with-servers -privat true`, `not defined: -privat`},
	{`with-servers -private=perhaps true`, `-private: must be true or false`},
	{`PG_DSN=x with-servers true`, `PG_DSN: ...it must be postgres://user:password@host/database`},
	{`AMQP_URL=http://u:canary@h with-servers true`, `AMQP_URL: ...it must be amqp://user:password@host/`},
	{`PG_DSN=postgres://u:can%zzary@h/d AMQP_URL=amqp://u:canary@h:port with-servers true`, `PG_DSN: ...postgres://...AMQP_URL: ...amqp://`},
}

// notStarted contains, for each exit status, command lines that fail when the command begins its
// work.
var notStarted = map[int][]line{
	1: {
		{`orders -addr 127.0.0.1:0 -db "$PG_DSN"`, `-db: ...connection refused`},
		{`bench -only drain -out "$dir/out"`, `PostgreSQL: ...connection refused`},
		{`cd "$dir" && guards -only 42`, `not in the repository`},
		{`PATH="$bin" && guards -only 42`, `"go"`},
	},
	125: {
		{`with-servers true`, `PG_DSN: ...connection refused...AMQP_URL: ...connection refused`},
	},
	126: {
		{`with-servers ''`, `no such command: ...""`},
		{`with-servers no-such-command`, `no such command: ...no-such-command`},
		{`with-servers "$dir"`, `no such command`},
		{`with-servers "$file"`, `no such command`},
		{`with-servers -private no-such-command`, `no such command`},
	},
}

// An invalid command line is refused immediately, with an error that names the argument
// and the allowed values. The command starts nothing, leaves no files behind, and shows
// no password.
//
// The packages of the commands test their flags, too.
func TestInvalidCommandLinesAreRefused(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	bin := build(t)
	t.Run("help", func(t *testing.T) {
		spellings := []string{"-h", "-help", "--help"}
		for name, dir := range commands {
			for _, flag := range spellings {
				helps(t, newShell(t, bin).run(t, name+" "+flag), flagsOf(t, dir))
			}
		}
	})
	for _, l := range mistyped {
		t.Run(l.typed, func(t *testing.T) {
			t.Parallel()
			newShell(t, bin).refuses(t, l, 2)
		})
	}
	for status, lines := range notStarted {
		for _, l := range lines {
			t.Run(l.typed, func(t *testing.T) { t.Parallel(); newShell(t, bin).refuses(t, l, status) })
		}
	}
}

// The variables of the Makefile are passed to the commands, and the commands report
// invalid values.
func TestVariablesOfTheMakefile(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		kit.Without(t, err)
	}
	database, broker := kit.Postgres(t), kit.Rabbit(t) // the servers must exist, but the commands do not use them
	bin := build(t)                                    // built only once, so that each case is fast
	for _, l := range []line{
		{`make demo BACKEND=kafka`, `BACKEND is 'kafka': embedded ...or servers`},
		{`make demo ARGS='-orders many'`, `-orders: must be a whole number`},
		{`make demo BACKEND=servers ARGS="-v 'very loud'"`, `-v very loud: must be one of`},
		{`make demo BACKEND=servers PG_DSN=mysql://u:canary@h/d`, `PG_DSN: ...postgres://`},
		{`make test PKG=./schema TIMEOUT=5`, `"5" for flag -timeout`},
		{`make test PKG=./schema TIMEOUT=`, `"" for flag -timeout`},
		{`make test PKG=./schema COUNT='1 -v'`, `"1 -v" for flag -count`},
		{`make test-all PKG=./schema TIMEOUT=5`, `"5" for flag -timeout`},
		{`make test PKG=./no-such-package`, `no-such-package: directory not found`},
		{`make bench OUT="$dir" ARGS='-runs 0'`, `-runs is 0...-out: must be a file that can be written`},
		{`make bench AMQP_URL=http://u:canary@h`, `AMQP_URL: ...amqp://`},
		{`make chaos OLD=no-such-commit`, `commit no-such-commit does not exist in this repository`},
		{`make chaos OLD= ARGS='-only x'`, `-only: there is no kind "x"`},
		{`make soak OLD= FOR=8`, `"8" for flag -duration: must be a duration with its unit`},
		{`make soak OLD= FOR=`, `"" for flag -duration: must be a duration with its unit`},
		{`make guards ARGS='-only 99999'`, `-only: there is no guard of trap "99999"`},
	} {
		t.Run(l.typed, func(t *testing.T) {
			t.Parallel()
			s := newShell(t, bin)
			s.set("PG_DSN", database.DSN)
			s.set("AMQP_URL", broker.URL)
			// DEPS=: makes sure that the test installs nothing.
			r := s.run(t, strings.Replace(l.typed, "make ", `make -C "$root" DEPS=: `, 1))
			if r.status != 2 || !says(r.stderr, l.says) || strings.Contains(r.stderr, "panic") {
				t.Errorf("status %d, want 2 and %q\n%s%s", r.status, l.says, r.stdout, r.stderr)
			}
			if strings.Contains(r.stderr, "canary") {
				t.Errorf("the password is shown:\n%s", r.stderr)
			}
		})
	}
}

// root is the path of the repository's root, relative to this package.
const root = "../.."

func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	args := []string{"build", "-ldflags", "-s -w", "-o", bin + string(filepath.Separator)}
	for _, dir := range commands {
		args = append(args, "./"+dir)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return bin
}

// flagsOf returns the names of the flags that the source code of a command defines.
func flagsOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	kit.OK(t, err)
	defined := regexp.MustCompile(`flags\.(?:String|Bool|Int|Uint64|Duration)(?:Var\([\w.&]+, |\()"(\w+)"`)
	var names []string
	for _, file := range files {
		content := kit.ReadFile(t, file)
		for _, match := range defined.FindAllStringSubmatch(string(content), -1) {
			names = append(names, match[1])
		}
	}
	if len(names) == 0 {
		t.Fatalf("no flags are found in %s", dir)
	}
	return names
}

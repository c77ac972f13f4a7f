// Command matrix runs the tests of the promises with one version of PostgreSQL and one
// of RabbitMQ, and then a short chaos run with each kind of queue. It prints a row for
// the table of versions in docs/contributing/proof.md. ONCE_TEST_PG and ONCE_TEST_RABBIT choose the versions.
// `make test-matrix` sets them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/watermill-once/once/internal/test/cmdline"
	"github.com/watermill-once/once/internal/test/servers"
)

const statusUsage = 2

// packages are the packages on which the promises rest.
var packages = []string{
	"./rabbit/...", "./rabbit/amqpv3", "./tests/amqpv3", "./forwarder/...",
	"./outbox/...", "./outbox/pgxoutbox", "./outbox/sqlv4", "./tests/pgxoutbox", "./tests/stock", "./schema/...", "./dedup/...", "./retry/...",
	"./poison/...", "./durable/...", "./sequence/...", "./embedded/...", "./operate/mover/...",
	"./tests/conformance", "./tests/forwarding", "./tests/failpoints",
}

// smoke are the packages of -smoke.
var smoke = []string{"./rabbit", "./forwarder", "./tests/conformance"}

// options are the flags of the command.
type options struct {
	smoke  bool
	short  bool
	record bool
	newest bool
}

func main() { os.Exit(command(os.Args[1:], os.Stdout)) }

func command(args []string, out io.Writer) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flags := flag.NewFlagSet("matrix", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, without the usage text
	flags.BoolVar(&o.smoke, "smoke", false, "only the most important packages, with -short and without chaos")
	flags.BoolVar(&o.short, "short", false, "leave out the slow tests, as make test does")
	flags.BoolVar(&o.record, "record", false, "write the result into docs/contributing/proof.md and README.md")
	flags.BoolVar(&o.newest, "newest", false, "use the newest versions of amqp091-go, pgx, lib/pq, OpenTelemetry and Watermill")
	err := cmdline.Parse(flags, args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, "matrix runs the tests of the promises with the versions that ONCE_TEST_PG and ONCE_TEST_RABBIT name.\n\nFlags:")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return 0
	}
	if err == nil {
		err = cmdline.Check(flags)
	}
	if err == nil && o.record && (o.smoke || o.newest) {
		err = errors.New("-record: a run with -smoke or -newest is not recorded")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "matrix: %v; see -help\n", err)
		return statusUsage
	}
	if err := run(ctx, o, out); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, o options, out io.Writer) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	if o.newest {
		dir, err := os.MkdirTemp("", "newest")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		versions, err := useNewest(ctx, root, dir)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "with", versions)
	}
	set, err := servers.Resolve(ctx, servers.ResolveConfig{Output: os.Stderr})
	if err != nil {
		return err
	}
	defer set.Close()
	r := row{date: time.Now().UTC().Format(time.DateOnly)}
	if r.postgres, r.rabbit, err = versions(ctx, set); err != nil {
		return err
	}
	if r.tests, err = runTests(ctx, root, o, set.Environment(), out); err != nil {
		return err
	}
	r.slow = !o.short && !o.smoke
	if !o.smoke {
		if r.classic, err = runChaos(ctx, root); err != nil {
			return err
		}
		if r.quorum, err = runChaos(ctx, root, "-quorum"); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, header+r.String())
	if o.record {
		return r.record(root)
	}
	return nil
}

// row is the result for one pair of versions.
type row struct {
	date, postgres, rabbit string
	slow                   bool // the slow tests ran too
	tests                  tally
	classic, quorum        string // results of the chaos runs with these queues
}

const header = "| PostgreSQL | RabbitMQ | date | tests | passed | skipped | chaos run, classic queues | chaos run, quorum queues |\n" +
	"|---|---|---|---|---|---|---|---|\n"

func (r row) String() string {
	tests := "without the slow ones"
	if r.slow {
		tests = "all"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %d | %d | %s | %s |",
		r.postgres, r.rabbit, r.date, tests, r.tests.passed, r.tests.skipped, r.classic, r.quorum)
}

// record writes the row into the table in docs/contributing/proof.md, in place of an earlier row for
// the same versions, and lists the pairs of versions in README.md.
func (r row) record(root string) error {
	var pairs []string
	err := rewrite(filepath.Join(root, "docs", "contributing", "proof.md"), func(table string) string {
		rows := merge(table, r)
		for _, row := range rows {
			cells := strings.Split(row, "|")
			pairs = append(pairs, strings.TrimSpace(cells[1])+" with "+strings.TrimSpace(cells[2]))
		}
		return "\n\n" + header + strings.Join(rows, "\n") + "\n\n"
	})
	if err != nil {
		return err
	}
	return rewrite(filepath.Join(root, "README.md"), func(string) string { return strings.Join(pairs, ", ") })
}

// merge returns the rows of a table, with the new row in place of the row for the same
// versions. Bug-fix releases count as the same version.
func merge(table string, r row) []string {
	var rows []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], ".") { // the header, or no row
			continue
		}
		if pair(strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])) != pair(r.postgres, r.rabbit) {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	rows = append(rows, r.String())
	slices.Sort(rows) // all versions of PostgreSQL have two digits
	return rows
}

// pair returns the versions without their bug-fix release: 18.6 and 4.3.6 become "18 4.3".
func pair(postgres, rabbit string) string {
	major, _, _ := strings.Cut(postgres, ".")
	return major + " " + rabbit[:max(0, strings.LastIndex(rabbit, "."))]
}

// Marks around the text that the command writes.
const (
	begin = "<!-- make test-matrix ARGS=-record writes this -->"
	end   = "<!-- end -->"
)

func rewrite(file string, change func(text string) string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), begin)
	text, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s does not contain the lines %s and %s", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+change(text)+end+after), 0o600)
}

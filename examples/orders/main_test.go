package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker returns a broker, and deletes the queues of the service after the test.
func broker(t *testing.T) testenv.Broker {
	t.Helper()
	b := testenv.RabbitMQ(t)
	for _, to := range service.Subscriptions() {
		exchange := b.Namespace + "." + to.Topic
		b.DeleteAfter(t, exchange, exchange+"."+to.Consumer)
	}
	return b
}

// command runs the command as a shell would, and returns its exit status and output.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// buffer collects output. Several goroutines may write to it, because Watermill's
// router may log after it has returned.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A flag with an invalid value is refused, and the error names the flag.
func TestFlags(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"-bogus":                      "-bogus",
		"-orders -1":                  "-orders -1: must be in 0..",
		"-orders many":                "-orders",
		"-faults":                     "-faults needs -orders",
		"-outage -exit":               "-outage cannot be combined",
		"-provider-outage -outage":    "-provider-outage cannot be combined",
		"-json":                       "-json needs -orders or -exit",
		"-timeout 0s":                 "-timeout 0s",
		"-lease 1ms":                  "-lease 1ms",
		"-schema a;b":                 `-schema "a;b"`,
		"-namespace a/b":              `-namespace "a/b"`,
		"-v loud":                     "-v loud: must be one of",
		"-addr nowhere":               `-addr "nowhere"`,
		"-amqp amqp://localhost/":     "-amqp needs -db",
		"-data x -db postgres://h/d":  "-data is for SQLite",
		"-services 3":                 "-services 3: must be 1 or 2",
		"-services 2":                 "-services 2 needs -db and -amqp",
		"-payments-db postgres://h/d": "-payments-db needs -services 2",
		"-only mails":                 `-only "mails": must be orders or payments`,
		"-only orders":                "-only needs -db and -amqp",
		"-db postgres://h/d -amqp amqp://h/ -services 2 -payments-db postgres://u:secret%zz@h/d": "-payments-db: must be postgres://",
		"-db mysql":                      "-db: must be postgres://",
		"-db postgres://u:secret%zz@h/d": "-db: must be postgres://",
		"-db postgres://h/d -amqp amqp://u:secret%zz@h/": "-amqp: must be amqp://",
		"serve": `"serve" is no flag`,
	} {
		status, stdout, stderr := command(t, strings.Fields(args)...)
		if status != statusUsage || !strings.Contains(stderr, says) || stdout != "" {
			t.Errorf("%s: status %d, stderr %q, stdout %q; want status 2 and %q", args, status, stderr, stdout, says)
		}
		if strings.Contains(stderr, "secret") || strings.Count(stderr, "\n") > 2 {
			t.Errorf("%s: stderr %q", args, stderr)
		}
	}
}

func TestFlagsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, _, stderr := command(t, "-orders", "-1", "-lease", "1ms", "-schema", "")
	for _, flag := range []string{"-orders", "-lease", "-schema"} {
		if !strings.Contains(stderr, flag) {
			t.Errorf("%s is not in %q", flag, stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	status, _, stderr := command(t, "-help")
	if status != statusOK || !strings.Contains(stderr, "go run ./examples/orders -orders 200 -faults -exit") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

// A start that fails writes the reason in one line, without credentials.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	taken := listener.Addr().String()
	t.Run("port", func(t *testing.T) {
		cannotStart(t, "-addr: ", "-addr", taken)
	})
	t.Run("database", func(t *testing.T) {
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		cannotStart(t, "-db: ", "-db", "postgres://u:secret@"+taken+"/d?sslmode=disable")
	})
	t.Run("broker", func(t *testing.T) {
		uri, err := amqp.ParseURI(testenv.RabbitMQ(t).URL)
		if err != nil {
			t.Fatal(err)
		}
		uri.Password = "secret"
		cannotStart(t, "-amqp: ", "-db", testenv.Postgres(t), "-amqp", uri.String())
	})
}

func cannotStart(t *testing.T, says string, args ...string) {
	t.Helper()
	status, _, stderr := command(t, args...)
	if status != statusFailed || !strings.HasPrefix(stderr, "orders: cannot start: "+says) ||
		strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "secret") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

var lastLine = regexp.MustCompile(`(?m)^orders=40 lost=0 duplicated=0 quarantined=([1-9]\d*) replayed=(\d+)\n\z`)

// With every kind of fault, nothing is lost or done twice.
func TestFaults(t *testing.T) {
	t.Parallel()
	broker := broker(t)
	status, stdout, stderr := command(t, "-db", testenv.Postgres(t), "-amqp", broker.URL, "-namespace", broker.Namespace,
		"-addr", "127.0.0.1:0", "-orders", "40", "-faults", "-exit", "-timeout", "10m")
	found := lastLine.FindStringSubmatch(stdout)
	if status != statusOK || found == nil || found[1] != found[2] {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	if !strings.Contains(stdout, "discarded=63") {
		t.Errorf("the malformed messages are not reported:\n%s", stdout)
	}
}

// With two services, two databases, one broker and every kind of fault, nothing is lost
// or done twice.
func TestFaultsOfTwoServices(t *testing.T) { // not parallel, because it needs many connections
	if testing.Short() {
		t.Skip("takes as long as TestFaults: runs without -short, in make test-all")
	}
	broker := broker(t)
	status, stdout, stderr := command(t, "-db", testenv.Postgres(t), "-payments-db", testenv.Postgres(t), "-services", "2",
		"-amqp", broker.URL, "-namespace", broker.Namespace,
		"-addr", "127.0.0.1:0", "-orders", "40", "-faults", "-exit", "-timeout", "10m")
	found := lastLine.FindStringSubmatch(stdout)
	if status != statusOK || found == nil || found[1] != found[2] {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, line := range []string{
		"orders.placed: orders sent 40, payments handled 40", "payments.captured: payments sent 40, inventory handled 40",
		"stock.refused: orders sent 2, refunds handled 2", "payments.refunded: payments sent 2, cancellations handled 2",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is not in\n%s", line, stdout)
		}
	}
}

// The second database is created if it does not exist, even if the DSN is a list of
// key=value pairs.
func TestDatabaseIsCreatedBesideTheFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("runs without -short, in make test-all")
	}
	t.Parallel()
	dsn := testenv.Postgres(t)
	pairs, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(pairs.Path, "/") + "_payments"
	password, _ := pairs.User.Password()
	for _, dsn := range []string{dsn, fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s sslmode=disable",
		pairs.Hostname(), pairs.Port(), pairs.User.Username(), password, strings.TrimPrefix(pairs.Path, "/"))} {
		second, err := createBeside(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		database, err := service.Postgres(second, "payments")
		if err != nil {
			t.Fatal(err)
		}
		var current string
		db := database.Pool(1)
		err = db.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&current)
		if err != nil || current != name {
			t.Errorf("database %q, error %v", current, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	first, err := service.Postgres(dsn, "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool(t, first).ExecContext(t.Context(), `DROP DATABASE `+name); err != nil {
		t.Error(err)
	}
}

// Without servers and with every kind of fault, nothing is lost or done twice. -json
// writes one object to standard output, with a count for each kind of fault.
func TestFaultsJSON(t *testing.T) {
	if testing.Short() {
		t.Skip("runs without -short, in make test-all")
	}
	t.Parallel()
	status, stdout, stderr := command(t, "-addr", "127.0.0.1:0", "-orders", "20", "-faults", "-exit", "-json", "-timeout", "10m")
	var report demo.Report
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || decoder.More() {
		t.Fatalf("%v: %s", err, stdout)
	}
	if status != statusOK || !report.OK || report.Orders != 20 || report.Replayed != 1 || report.Discarded != 63 || report.Cancelled != 1 {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	if report.Backend != "embedded" || !strings.Contains(stdout, `"missing":[]`) {
		t.Errorf("not embedded, or no list of what is missing: %s", stdout)
	}
	for kind, count := range report.Injected {
		if count == 0 {
			t.Errorf("no %s were injected", kind)
		}
	}
}

// If effects are missing, happened twice, or belong to no order, the report names them,
// and the command fails.
func TestReportFindsWhatIsWrong(t *testing.T) {
	if testing.Short() {
		t.Skip("runs without -short, in make test-all")
	}
	t.Parallel()
	dir := t.TempDir()
	args := []string{"-addr", "127.0.0.1:0", "-data", dir, "-exit"}
	if status, stdout, stderr := command(t, append(args, "-orders", "10")...); status != statusOK {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	db := pool(t, sqliteFile(t, dir, "orders.db"))
	var victim string
	if err := db.QueryRowContext(t.Context(), `SELECT MAX(id) FROM orders`).Scan(&victim); err != nil {
		t.Fatal(err)
	}
	for _, harm := range []string{
		`DELETE FROM payments WHERE order_id = '` + victim + `'`,
		`INSERT INTO shipments (order_id, message_id) VALUES ('` + victim + `', 'again')`,
		`INSERT INTO reservations (order_id, message_id, outcome) VALUES ('nobody''s', 'where from', 'reserved')`,
	} {
		if _, err := db.ExecContext(t.Context(), harm); err != nil {
			t.Fatal(err)
		}
	}
	status, stdout, _ := command(t, append(args, "-timeout", "500ms")...)
	if status != statusFailed {
		t.Errorf("status %d", status)
	}
	for _, says := range []string{
		"lost: order " + victim + " has no entry in payments\n",
		"phantom=1: ",
		"-timeout 500ms has passed",
		"\norders=0 lost=1 duplicated=1 quarantined=0 replayed=0\n",
	} {
		if !strings.Contains(stdout, says) {
			t.Errorf("%q is not in\n%s", says, stdout)
		}
	}
}

// A service continues with the data that an earlier process has left.
func TestDataIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("runs without -short, in make test-all")
	}
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "place")
	for range 2 {
		status, stdout, stderr := command(t, "-addr", "127.0.0.1:0", "-data", dir, "-orders", "5", "-exit")
		if status != statusOK || !strings.HasSuffix(stdout, "\norders=5 lost=0 duplicated=0 quarantined=0 replayed=0\n") {
			t.Fatalf("status %d\n%s%s", status, stdout, stderr)
		}
	}
	var orders int
	if err := pool(t, sqliteFile(t, dir, "orders.db")).QueryRowContext(t.Context(), `SELECT COUNT(*) FROM orders`).Scan(&orders); err != nil {
		t.Fatal(err)
	}
	if orders != 10 {
		t.Errorf("%d orders", orders)
	}
}

// After an interrupt, the command does not report unfinished orders as lost.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	out := writer(func(text []byte) (int, error) {
		if bytes.Contains(text, []byte("http://")) { // the service is ready
			cancel()
		}
		return stdout.Write(text)
	})
	status := run(ctx, []string{"-addr", "127.0.0.1:0", "-orders", "1000", "-exit"}, out, &stderr)
	if status != statusFailed || !strings.Contains(stderr.String(), "orders: interrupted") || strings.Contains(stdout.String(), "lost") {
		t.Errorf("status %d\n%s%s", status, stdout.String(), stderr.String())
	}
}

type writer func(text []byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

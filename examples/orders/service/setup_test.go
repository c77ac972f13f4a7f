package service_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachDatabase runs a test with each kind of database. With -short it uses only SQLite,
// because the other tests use PostgreSQL.
func eachDatabase(t *testing.T, test func(t *testing.T, database service.Database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		if testing.Short() {
			t.Skip("runs without -short, in make test-all")
		}
		test(t, postgres(t, testenv.Postgres(t)))
	})
	t.Run("sqlite", func(t *testing.T) {
		test(t, sqlite(t))
	})
}

func sqlite(t *testing.T) service.Database {
	t.Helper()
	database, err := service.SQLite(filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	return database
}

func postgres(t *testing.T, dsn string) service.Database {
	t.Helper()
	database, err := service.Postgres(dsn, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// world records the calls of the bank and of the mail provider.
type world struct {
	mu    sync.Mutex
	moved map[string]int64          // by idempotency key; a refund is negative
	sent  map[string][]service.Mail // by reference

	// afterSend is called after a mail was sent. If it returns an error, the handler gets
	// this error from Send.
	afterSend func() error
}

func newWorld() *world { return &world{moved: map[string]int64{}, sent: map[string][]service.Mail{}} }

func (w *world) companies() service.Outside { return service.Outside{Bank: w, Mailer: w} }

func (w *world) Charge(_ context.Context, key, _ string, amount int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved[key] = amount
	return nil
}

func (w *world) Refund(ctx context.Context, key, order string, amount int64) error {
	return w.Charge(ctx, key, order, -amount)
}

func (w *world) Find(_ context.Context, reference string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sent[reference]) > 0, nil
}

func (w *world) Send(_ context.Context, reference string, mail service.Mail) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[reference] = append(w.sent[reference], mail)
	if w.afterSend != nil {
		return w.afterSend()
	}
	return nil
}

// mails returns the subjects of the mails with the given reference.
func (w *world) mails(reference string) (subjects []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, mail := range w.sent[reference] {
		subjects = append(subjects, mail.Subject)
	}
	return subjects
}

// money returns the sum of all charges minus the sum of all refunds.
func (w *world) money() (sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, amount := range w.moved {
		sum += amount
	}
	return sum
}

// running is a service that was started for a test.
type running struct {
	*testing.T

	url    string
	db     *sql.DB // for queries of the test
	tables schema.Config
	world  *world
	stop   func() error // returns the error of Run; may be called more than once
}

// start starts a service with the embedded transport. It stops the service after the
// test.
func start(t *testing.T, database service.Database, configure ...func(*service.Config)) *running {
	t.Helper()
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	transport, err := service.NewEmbedded(database)
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, database, transport, configure...)
}

// startOn starts a service with the given transport. It stops the service after the
// test.
func startOn(t *testing.T, database service.Database, transport service.Transport, configure ...func(*service.Config)) *running {
	t.Helper()
	config := service.Config{
		Retry:       retry.Policy{Base: 10 * time.Millisecond, Factor: 2},
		StopTimeout: 45 * time.Second, // long enough for a machine under load
		Logger:      slog.New(slog.DiscardHandler),
	}
	for _, change := range configure {
		change(&config)
	}
	r := &running{T: t, db: pool(t, database), tables: database.Tables, world: newWorld()}
	s, err := service.New(database, transport, r.world.companies(), config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	return r
}

// ready waits until all parts of the service run, which includes the checks at their start.
func (r *running) ready() {
	r.Helper()
	testenv.Eventually(r.T, 3*time.Minute, "ready", func() bool {
		return r.do(http.MethodGet, "/health/ready", "").status == http.StatusOK
	})
}

func pool(t *testing.T, database service.Database) *sql.DB {
	t.Helper()
	db := database.Pool(2)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// answer is a response of the service.
type answer struct {
	status int
	header http.Header
	body   string
}

// client keeps no idle connections, because their goroutines would look like leaks.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

func (r *running) do(method, path, body string, headers ...string) answer {
	r.Helper()
	request, err := http.NewRequestWithContext(r.Context(), method, r.url+path, bytes.NewBufferString(body))
	if err != nil {
		r.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		r.Error(err)
		return answer{}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		r.Error(err)
	}
	return answer{response.StatusCode, response.Header, string(content)}
}

const anOrder = `{"shop":"berlin","customer":"Ada","currency":"EUR","lines":[` +
	`{"sku":"tea","quantity":2,"unit_price":450},{"sku":"cake","quantity":1,"unit_price":390}]}`

// order places an order with the given Idempotency-Key, or without one.
func (r *running) order(key, body string, headers ...string) answer {
	r.Helper()
	headers = append(headers, "Content-Type", "application/json")
	if key != "" {
		headers = append(headers, "Idempotency-Key", key)
	}
	return r.do(http.MethodPost, "/orders", body, headers...)
}

// placed places an order and returns its id.
func (r *running) placed() string {
	r.Helper()
	got := r.order("", anOrder)
	var order service.Order
	if err := json.Unmarshal([]byte(got.body), &order); err != nil || got.status != http.StatusCreated {
		r.Fatalf("%d %s", got.status, got.body)
	}
	return order.ID
}

// details reads an order from the service.
func (r *running) details(id string) service.Details {
	r.Helper()
	got := r.do(http.MethodGet, "/orders/"+id, "")
	var details service.Details
	if err := json.Unmarshal([]byte(got.body), &details); err != nil || got.status != http.StatusOK {
		r.Fatalf("%d %s", got.status, got.body)
	}
	return details
}

func (r *running) exec(statement string) {
	r.Helper()
	if _, err := r.db.ExecContext(r.Context(), statement); err != nil {
		r.Fatal(err)
	}
}

func (r *running) count(table string) int {
	r.Helper()
	var n int
	if err := r.db.QueryRowContext(r.Context(), `SELECT COUNT(*) FROM `+table).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

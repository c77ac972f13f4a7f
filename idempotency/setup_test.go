package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// bench is a service that places orders. Its table has no unique constraint, so that
// an order that is placed twice is visible.
type bench struct {
	*kit.Bench

	keys    *idempotency.Keys
	logs    *watermill.CaptureLoggerAdapter
	handler http.Handler

	// during is called by the handler after it has inserted the order.
	during func(w http.ResponseWriter, r *http.Request) error
}

func newBench(t *testing.T, db kit.Database, change func(*idempotency.Config)) *bench {
	t.Helper()
	logs := watermill.NewCaptureLogger()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{}), logs: logs}
	b.Exec(`CREATE TABLE orders (body text NOT NULL)`)
	config := idempotency.Config{
		Schema: b.Config, Logger: logs, Wait: 20 * time.Second,
		Client: func(r *http.Request) string { return r.Header.Get("Client") },
	}
	if change != nil {
		change(&config)
	}
	var err error
	b.keys, err = idempotency.New(db.DB, config)
	kit.OK(t, err)
	box, err := outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(t, err)
	b.handler = b.keys.Handler(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (body) VALUES ('`+string(body)+`')`); err != nil {
			return err
		}
		if err := box.Publisher(tx).Publish("orders.placed", outbox.NewMessage(body)); err != nil {
			return err
		}
		if b.during != nil {
			if err := b.during(w, r); err != nil {
				return err
			}
		}
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, err = w.Write([]byte("placed " + string(body)))
		return err
	})
	return b
}

// expect checks the numbers of orders, events and keys.
func (b *bench) expect(orders, events, keys int) {
	b.Helper()
	if got := [3]int{b.Count("orders"), b.Count("once_outbox"), b.Count("once_idempotency_keys")}; got != [3]int{orders, events, keys} {
		b.Errorf("orders, events, keys are %v, want %v", got, [3]int{orders, events, keys})
	}
}

// send sends a request and returns its answer as a text: status, body, and whether the
// answer is replayed.
func (b *bench) send(body string, headers ...string) string {
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, request(b.Context(), body, headers...))
	return text(w)
}

func request(ctx context.Context, body string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders?from=web", strings.NewReader(body))
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func text(w *httptest.ResponseRecorder) string {
	answer := fmt.Sprintf("%d %s", w.Code, w.Body)
	if w.Header().Get("Content-Type") == "application/problem+json" {
		var problem struct {
			Title  string `json:"title"`
			Detail string `json:"detail"`
			Status int    `json:"status"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
			return err.Error()
		}
		answer = fmt.Sprintf("%d: %s: %s", problem.Status, problem.Title, problem.Detail)
	}
	if w.Header().Get(idempotency.Replayed) == "true" {
		answer += " replayed"
	}
	if location := w.Header().Get("Location"); location != "" {
		answer += " at " + location
	}
	return answer
}

func (b *bench) expectAnswer(want, body string, headers ...string) {
	b.Helper()
	if got := b.send(body, headers...); got != want {
		b.Errorf("the answer is\n%s\nwant\n%s", got, want)
	}
}

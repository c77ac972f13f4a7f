// Package console tests the pages of the console in a browser.
package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long a step in the browser may take on a busy machine.
const patience = 2 * time.Minute

// chromium returns the path of the browser. A test without one is left out.
func chromium(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	if own := os.Getenv("CHROMIUM"); own != "" {
		names = []string{own}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testkit.WithoutOptional(t, "CHROMIUM", fmt.Errorf("there is no browser: none of %v", names))
	return ""
}

// tab is a page of a new browser, with a console and its database.
type tab struct {
	*testing.T

	db     testkit.Database
	url    string
	ctx    context.Context
	mu     sync.Mutex
	errors []string // of the page: exceptions, failed requests, violations of the policy
}

func open(t *testing.T) *tab {
	t.Helper()
	path := chromium(t)
	b := &tab{T: t, db: testkit.Postgres(t)}
	b.must(schema.Up(t.Context(), b.db.DB, schema.Config{}))
	pages, err := console.Handler(b.db.DB, console.Config{
		Authorize:   func(*http.Request, console.Action) (string, error) { return "ann", nil },
		Environment: "test", Color: console.Green, Logger: testkit.Logger(t),
	})
	b.must(err)
	mux := http.NewServeMux()
	mux.Handle("/ops/", pages)
	server := httptest.NewServer(mux)
	b.url = server.URL + "/ops/"
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocator, closeBrowser := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	b.ctx = ctx
	t.Cleanup(func() {
		b.must(chromedp.Cancel(ctx))
		cancel()
		closeBrowser()
		server.Close()
		b.must(pages.Close())
	})
	b.must(chromedp.Listen(ctx, b.record))
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	b.must(err)
	return b
}

func (b *tab) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	b.must(chromedp.Do(b.ctx, steps...))
}

// record keeps what the browser says against a page.
func (b *tab) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.errors = append(b.errors, fmt.Sprintf("%s %s: %s", e.Entry.Source, e.Entry.URL, e.Entry.Text))
		}
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, fmt.Sprintf("%s %s:%d", e.ExceptionDetails.Text, e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.errors = append(b.errors, fmt.Sprintf("console.%s with %d values", e.Type, len(e.Args)))
		}
	}
}

// clean fails the test if the browser said something against the pages so far.
func (b *tab) clean(page string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.errors {
		b.Errorf("%s: %s", page, text)
	}
	b.errors = nil
}

// eval returns the value of an expression on the page.
func eval[V any](b *tab, expression string) V {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](expression))
	b.must(err)
	return value
}

// until waits until an expression on the page is true. The page may be loading.
func (b *tab) until(what, expression string) {
	b.Helper()
	testkit.Eventually(b, patience, what, func() bool {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && !!(`+expression+`)`))
		return err == nil && is
	})
}

// die inserts a dead letter.
func (b *tab) die(id string) {
	b.Helper()
	_, err := b.db.ExecContext(b.Context(), `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at,
		attempts, last_error, reason, unknown)
		VALUES (1, $1, 'orders.placed', '{}', '{}', now(), 20, 'no queue is bound', 'exhausted', false)`, id)
	b.must(err)
}

// seed puts messages into all tables.
func (b *tab) seed() {
	b.Helper()
	b.die("dead-1")
	b.die("dead-2")
	for _, query := range []string{
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			VALUES (2, 'sent-1', 'orders.placed', '{}', '{}', now())`,
		`INSERT INTO once_outbox (slot, message_id, topic, ordering_key, payload, metadata, attempts, last_error, due_at, failing_since)
			VALUES (0, 'refused-1', 'orders.placed', 'key', '{}', '{}', 3, 'no queue is bound', now() + interval '1 hour', now())`,
		`INSERT INTO once_replays (state, consumer, filter, plan, total, actor, why, stop_reason, until_id)
			VALUES ('stopped', 'payments', '{}', '{}', 1, 'ann', 'try', '1 failed again', 0)`,
	} {
		_, err := b.db.ExecContext(b.Context(), query)
		b.must(err)
	}
	store, err := poison.New(b.db.DB, poison.Config{Logger: watermill.NopLogger{}})
	b.must(err)
	for _, id := range []string{"failed-1", "failed-with-a-very-long-message-id-" + "0123456789abcdef0123456789abcdef0123456789abcdef"} {
		m := message.NewMessage(id, []byte(`{"order":1,"text":"`+id+`"}`))
		m.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		m.SetContext(parked.WithDelivery(b.Context(), &parked.Delivery{Consumer: "payments", Topic: "orders.placed"}))
		_, err := store.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("the gateway is down") })(m)
		b.must(err)
	}
}

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
	"path"
	"slices"
	"strings"
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
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// patience is how long a step in the browser may take on a busy machine.
const patience = 2 * time.Minute

// findChromium returns the path of the browser.
func findChromium() (string, error) {
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	if own := os.Getenv("CHROMIUM"); own != "" {
		names = []string{own}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no browser: none of %v", names)
}

// chromium skips the test if no browser is installed.
func chromium(t *testing.T) {
	t.Helper()
	if _, err := findChromium(); err != nil {
		kit.WithoutOptional(t, "CHROMIUM", err)
	}
}

// tab is a tab of the browser, with a console and its database.
type tab struct {
	*testing.T

	db     kit.Database
	url    string
	ctx    context.Context
	mu     sync.Mutex
	errors []string // of the page: exceptions, failed requests, violations of the content security policy
	sent   []string // the pages and the actions of the forms that were sent
}

func open(t *testing.T) *tab {
	t.Helper()
	chromium(t) // before the database is created
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	b := &tab{T: t, db: db}
	pages, err := console.Handler(db.DB, console.Config{
		Authorize:   b.authorize,
		Environment: "test", Color: console.Green, Logger: kit.Logger(t),
	})
	kit.OK(t, err)
	mux := http.NewServeMux()
	mux.Handle("/ops/", pages)
	server := httptest.NewServer(mux)
	b.browse(server.URL+"/ops/", func() error {
		server.Close()
		return pages.Close()
	})
	return b
}

// authorize lets the user ann do everything. It records the page and the action of each form that
// was sent.
func (b *tab) authorize(r *http.Request, action console.Action) (string, error) {
	if r.Method == http.MethodPost {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.sent = append(b.sent, path.Base(r.URL.Path), string(action))
	}
	return "ann", nil
}

// posted reports whether a form was sent to a page with the given name, or for an
// action with this name.
func (b *tab) posted(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.sent, what)
}

// browser starts the browser that all tests share, because a start takes seconds of processor time.
// Each test has a tab and cookies of its own.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, err := findChromium()
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocator, closeBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	kit.AtEnd(func() error {
		defer closeBrowser()
		defer cancel()
		return chromedp.Cancel(ctx)
	})
	return ctx, chromedp.Do(ctx)
})

// browse opens a tab for a console. stop is called after the tab is closed.
func (b *tab) browse(url string, stop func() error) {
	b.Helper()
	b.url = url
	all, err := browser()
	b.must(err)
	ctx, cancel := chromedp.NewContext(all, chromedp.WithNewBrowserContext())
	b.ctx = ctx
	b.Cleanup(func() {
		if b.Failed() {
			text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
			b.Log(text, err)
		}
		b.must(chromedp.Cancel(ctx))
		cancel()
		b.must(stop())
	})
	b.must(chromedp.Listen(ctx, b.record))
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	b.must(err)
}

func (b *tab) must(err error) {
	b.Helper()
	kit.OK(b, err)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	b.must(chromedp.Do(b.ctx, steps...))
}

// record keeps the errors and warnings that the browser reports about a page.
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

// clean fails the test if the browser has reported errors or warnings since the last call of clean.
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

// until waits until an expression on the page is true. The page may be loading. A script in the
// page evaluates the expression again and again, because repeated requests from the test would keep
// the browser busy.
func (b *tab) until(what, expression string) {
	b.Helper()
	look := fmt.Sprintf(`new Promise((tell) => {
		const last = Date.now() + 1000;
		const look = () => {
			let is = false;
			try { is = document.readyState === "complete" && !!(%s); } catch { /* a part of the page is missing */ }
			if (is || Date.now() > last) tell(is); else setTimeout(look, 20);
		};
		look();
	})`, expression)
	kit.Eventually(b, patience, what, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second) // a page that is left may not answer
		defer cancel()
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](look, chromedp.EvalAwaitPromise))
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

// seed inserts messages into all tables. They look like the messages of a shop that had an outage
// for an hour.
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
		`INSERT INTO once_forwarders (owner, destination, lease_until)
			VALUES ('shop-1/17/4f2a', 'amqp://broker:5672/', now() + interval '1 hour'),
			       ('shop-2/9/c01d', 'amqp://broker:5672/', now() + interval '1 hour')`,
		`UPDATE once_slots SET owner = CASE WHEN slot % 2 = 0 THEN 'shop-1/17/4f2a' ELSE 'shop-2/9/c01d' END,
			lease_until = now() + interval '1 hour'
			WHERE slot < 62`,
		`INSERT INTO once_consumers (consumer, topic, key_order, program, handler)
			VALUES ('payments', 'orders.placed', true, 'payments', 'charge'), ('mail', 'orders.placed', false, 'mailer', 'confirm')`,
		`INSERT INTO once_consumers (consumer, topic, program, handler, seen_at)
			VALUES ('warehouse', 'orders.placed', 'warehouse', 'reserve', now() - interval '3 hours')`,
		`INSERT INTO once_consumer_instances (consumer, topic, owner, program, handler, started_at)
			VALUES ('payments', 'orders.placed', 'pay-1/21/77aa', 'payments', 'charge', now() - interval '5 hours'),
			       ('mail', 'orders.placed', 'mail-1/8/0b3c', 'mailer', 'confirm', now() - interval '2 days')`,
		// A message that was sent, failed twice, and was handled, and the message that it caused.
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
			VALUES (3, 'order-1041', 'orders.placed', '{"order":1041}', '{}', now() - interval '9 minutes', now() - interval '539 seconds'),
			       (4, 'charge-1041', 'payments.charged', '{"order":1041}', '{"once_causation_id":"order-1041"}', now() - interval '6 minutes',
			        now() - interval '358 seconds')`,
		`UPDATE once_outbox_sent SET causation_id = 'order-1041' WHERE message_id = 'charge-1041'`,
		`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('order-1041', 'payments', '', now() - interval '6 minutes')`,
		`INSERT INTO once_audit (actor, action, subject, consumer, message_id, why, at)
			VALUES ('ann', 'run', 'parked:7', 'payments', 'order-1041', 'the gateway is back', now() - interval '6 minutes'),
			       ('bob', 'discard', 'parked:5', 'mail', 'order-1002', 'the customer has left', now() - interval '3 hours')`,
	} {
		_, err := b.db.ExecContext(b.Context(), query)
		b.must(err)
	}
	archive, err := reconcile.NewArchive(b.db.DB, schema.Config{})
	b.must(err)
	at := time.Now().Add(-time.Hour)
	b.must(archive.Keep(b.Context(), reconcile.Report{
		Consumer: "mail", Topics: []string{"orders.placed"}, Sent: 1204, Known: 1203,
		From: at.Add(-24 * time.Hour), Until: at, AsOf: at.Add(time.Minute),
		Missing:  []reconcile.Missing{{MessageID: "sent-1", Topic: "orders.placed", SentLogID: 1, SentAt: at, LastSentAt: at}},
		Phantoms: []reconcile.Phantom{{MessageID: "order-1077", State: "quarantined", At: at, Dead: true}},
	}))
	b.must(archive.Keep(b.Context(), reconcile.Report{Consumer: "payments", Topics: []string{"orders.placed"}, Sent: 1204, Known: 1204}))
	quarantine, err := poison.New(b.db.DB, poison.Config{Logger: watermill.NopLogger{}})
	b.must(err)
	fail := func(consumer, id, problem string) {
		m := message.NewMessage(id, []byte(`{"order":1,"text":"`+id+`"}`))
		m.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		m.SetContext(parkedrows.WithDelivery(b.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: "orders.placed"}))
		_, err := quarantine.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New(problem) })(m)
		b.must(err)
	}
	fail("payments", "failed-1", "the gateway is down")
	fail("payments", "failed-with-a-very-long-message-id-"+"0123456789abcdef0123456789abcdef0123456789abcdef", "the gateway is down")
	for n := range 12 {
		fail("payments", fmt.Sprintf("order-%d", 1100+n), "card was declined: currency XTS is unknown")
	}
	fail("mail", "order-1077", "mailbox ann@example.com is full")
	_, err = b.db.ExecContext(b.Context(), `UPDATE once_parked SET stack = $1 WHERE id = 2`, "goroutine 41 [running]:\n"+strings.Repeat(
		"example.com/shop/payments.(*Gateway).Charge(0xc0001a2000, {0x7f3c2c0a1b40, 0xc000112a50}, 0xc0004e6000)\n"+
			"\t/src/shop/payments/gateway.go:117 +0x1d5\n", 12))
	b.must(err)
	store, err := parkedrows.NewStore(b.db.DB, schema.Config{})
	b.must(err)
	for n := range 8 {
		m := message.NewMessage(fmt.Sprintf("order-%d", 1200+n), []byte(`{"order":1}`))
		outbox.SetOrderingKey(m, fmt.Sprintf("customer-%d", n/3))
		to := []parkedrows.Subscription{{Consumer: "payments", KeyOrder: true}, {Consumer: "warehouse"}}
		b.must(store.DeliverTo(b.Context(), "orders.placed", to, m))
	}
	_, err = b.db.ExecContext(b.Context(), `UPDATE once_parked SET priority_class = 'retry', attempts = 2, error = 'the gateway is down',
		due_at = now() + interval '4 minutes' WHERE message_id = 'order-1200' AND consumer = 'payments'`)
	b.must(err)
}

package console_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// ann may do everything.
func ann(*http.Request, console.Action) (string, error) { return "ann", nil }

// bench is a database with messages in all tables, and a console.
type bench struct {
	*kit.Bench

	poison  *poison.Store
	store   *quarantine.Entries
	console *console.Console
	server  *httptest.Server
	logs    *kit.Logs
	prefix  string // where the console is mounted
}

// newBench returns a bench on PostgreSQL. change is nil, or a function
// that changes the configuration of the console.
func newBench(t *testing.T, change func(*console.Config)) *bench {
	t.Helper()
	return benchIn(t, kit.Postgres(t), change)
}

// quickBench is newBench on SQLite, for tests that do not depend on the kind of
// database.
func quickBench(t *testing.T, change func(*console.Config)) *bench {
	t.Helper()
	return benchIn(t, kit.SQLite(t), change)
}

func benchIn(t *testing.T, db kit.Database, change func(*console.Config)) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{}), logs: &kit.Logs{}, prefix: "/ops/once/"}
	var err error
	b.store, err = quarantine.New(db.DB, operate.Config{Schema: b.Config, ReplayToAbsent: true})
	kit.OK(t, err)
	b.poison, err = poison.New(db.DB, poison.Config{Schema: b.Config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	config := console.Config{Schema: b.Config, Authorize: ann, Environment: "test", Color: console.Purple, Logger: b.logs}
	if change != nil {
		change(&config)
	}
	b.console, err = console.Handler(db.DB, config)
	kit.OK(t, err)
	mux := http.NewServeMux()
	mux.Handle(b.prefix, b.console)
	b.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		b.server.Close()
		kit.OK(t, b.console.Close())
	})
	return b
}

// publish commits a message to the outbox.
func (b *bench) publish(topic, id, key, payload string, metadata message.Metadata) {
	b.Helper()
	box, err := outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(b, err)
	m := message.NewMessage(id, []byte(payload))
	maps.Copy(m.Metadata, metadata)
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	kit.OK(b, box.InTx(b.Context(), b.DB, func(_ *sql.Tx, events message.Publisher) error { return events.Publish(topic, m) }))
}

// die inserts a dead letter, and blocks its key if it has one.
func (b *bench) die(topic, id, key, payload, reason, problem string) {
	b.Helper()
	var orderingKey any
	if key != "" {
		orderingKey = key
	}
	position := 1000 + b.Number(`SELECT COUNT(*) FROM once_outbox_dead`)
	b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error,
		reason, unknown) VALUES ($1, $2, $3, $4, $5, $6, `+b.FromNow(-time.Hour)+`, 20, $7, $8, 1 = 0)`,
		position, id, topic, orderingKey, []byte(payload), `{"trace":"0af7"}`, problem, reason)
	if key != "" {
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ($1, $2, $2, 'dead')`, key, position)
	}
}

// send inserts a message into the sent log.
func (b *bench) send(topic, id, payload string) {
	b.Helper()
	position := 2000 + b.Number(`SELECT COUNT(*) FROM once_outbox_sent`)
	b.Exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
		VALUES ($1, $2, $3, $4, '{}', `+b.FromNow(-time.Minute)+`)`, position, id, topic, []byte(payload))
}

// quarantine stores a message in quarantine and returns the ID of its entry.
func (b *bench) quarantine(consumer, topic string, msg *message.Message, problem error) int64 {
	b.Helper()
	msg.SetContext(parkedrows.WithDelivery(b.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: topic}))
	_, err := b.poison.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, problem })(msg)
	kit.OK(b, err)
	page, err := b.store.List(b.Context(), operate.Filter{MessageID: msg.UUID, Consumer: consumer})
	kit.OK(b, err)
	if len(page.Rows) != 1 {
		b.Fatalf("%d entries, want 1: %+v", len(page.Rows), page.Rows)
	}
	return page.Rows[0].ID
}

// park stores a message for a consumer that keeps the order of keys.
func (b *bench) park(consumer, topic, id, key string) {
	b.Helper()
	store, err := parkedrows.NewStore(b.DB, b.Config)
	kit.OK(b, err)
	m := message.NewMessage(id, []byte(`{"order":7}`))
	m.Metadata["trace"] = "0af7"
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	kit.OK(b, store.DeliverTo(b.Context(), topic, []parkedrows.Subscription{{Consumer: consumer, KeyOrder: true}}, m))
}

var errCard = errors.New("card gateway answered 502")

// seed puts messages in all states into all tables.
func (b *bench) seed() {
	b.Helper()
	b.publish("orders.placed", "due-1", "", `{"order":1}`, nil)
	b.publish("orders.placed", "refused-1", "customer-7", `{"order":2}`, nil)
	b.publish("orders.placed", "behind-1", "customer-7", `{"order":3}`, nil)
	b.publish("stock.changed", "later-1", "", `{"sku":"tea"}`, nil)
	b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(time.Hour) + `, failing_since = ` + b.FromNow(-time.Hour) + `, attempts = 3,
		last_error = 'no queue is bound' WHERE message_id = 'refused-1'`)
	b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(time.Hour) + ` WHERE message_id = 'later-1'`)
	b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		SELECT ordering_key, position, position, 'refused' FROM once_outbox WHERE message_id = 'refused-1'`)
	b.die("orders.placed", "dead-1", "", `{"order":4}`, "exhausted", "no queue is bound")
	b.die("orders.placed", "dead-2", "customer-9", `{"order":5}`, "unacceptable", "message is too large")
	b.send("orders.placed", "sent-1", `{"order":6}`)
	for i := range 3 {
		m := message.NewMessage(fmt.Sprintf("failed-%d", i), fmt.Appendf(nil, `{"order":%d,"amount":-%d}`, 10+i, i))
		m.Metadata["trace"] = "0af7"
		b.quarantine("payments", "orders.placed", m, errCard)
	}
	b.quarantine("shipping", "orders.placed", message.NewMessage("binary", []byte{0, 1, 0xff, '\r', '\n'}), errors.New("no address"))
	b.park("mail", "orders.placed", "parked-1", "customer-5")
	b.park("mail", "orders.placed", "parked-2", "customer-5")
	b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(time.Hour) + `, attempts = 2, error = 'mail server is full'
		WHERE message_id = 'parked-1'`)
	b.Exec(`INSERT INTO once_consumers (consumer, topic, key_order, program, handler)
		VALUES ('mail', 'orders.placed', 1 = 1, 'shop', 'sendMail')`)
	b.Exec(`INSERT INTO once_consumer_instances (consumer, topic, owner, program, handler)
		VALUES ('mail', 'orders.placed', 'host/17/a1', 'shop', 'sendMail')`)
	b.Exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('tenant', 'globex', 'bob', 'their endpoint is down')`)
	b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why)
		VALUES ('orders.placed', 'shipping', 'bob', 'the provider is down')`)
}

// answer is the response of a page.
type answer struct {
	*http.Response

	text string
}

// do sends a request to a page, with the headers that a browser sends when another page
// of the console makes the request.
func (b *bench) do(method, page string, form url.Values, change ...func(r *http.Request)) answer {
	b.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(b.Context(), method, b.server.URL+b.prefix+page, body)
	kit.OK(b, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, f := range change {
		f(r)
	}
	client := *b.server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(r)
	kit.OK(b, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	kit.OK(b, err)
	return answer{response, string(text)}
}

// get returns a page that must exist.
func (b *bench) get(page string) answer {
	b.Helper()
	a := b.do(http.MethodGet, page, nil)
	if a.StatusCode != http.StatusOK {
		b.Fatalf("a.StatusCode is %d, want %d: %s: %s\n%s", a.StatusCode, http.StatusOK, page, a.text, strings.Join(b.logs.Lines(), "\n"))
	}
	return a
}

// fields finds the form on the page a that is posted to path. It returns the names and
// values that a browser would send for this form.
func (b *bench) fields(a answer, path string) url.Values {
	b.Helper()
	form := regexp.MustCompile(`(?s)<form method="post" action="` + path + `".*?</form>`).FindString(a.text)
	if form == "" {
		b.Fatalf("no form for %s on\n%s: form is empty", path, a.text)
	}
	values := url.Values{}
	for _, tag := range regexp.MustCompile(`<input [^>]*>`).FindAllString(form, -1) {
		attribute := func(name string) string {
			found := regexp.MustCompile(` ` + name + `="([^"]*)"`).FindStringSubmatch(tag)
			if found == nil {
				return ""
			}
			return unescape(found[1])
		}
		if attribute("type") == "checkbox" && !strings.Contains(tag, " checked") {
			continue
		}
		values.Add(attribute("name"), attribute("value"))
	}
	for _, area := range regexp.MustCompile(`(?s)<textarea name="([^"]*)"[^>]*>\n(.*?)</textarea>`).FindAllStringSubmatch(form, -1) {
		values.Set(area[1], strings.ReplaceAll(unescape(area[2]), "\n", "\r\n"))
	}
	return values
}

// change opens the form of a change, fills in the reason, sends the form, and returns
// the page that the browser then shows.
func (b *bench) change(query, why string) answer {
	b.Helper()
	form := b.fields(b.get("change?"+query), "change")
	form.Set("why", why)
	return b.follow(b.do(http.MethodPost, "change", form))
}

// follow follows the redirects after a form was sent, and returns the last page.
func (b *bench) follow(a answer) answer {
	b.Helper()
	for range 3 {
		if a.StatusCode != http.StatusSeeOther {
			return a
		}
		a = b.do(http.MethodGet, a.Header.Get("Location"), nil)
	}
	return a
}

// unescape undoes the escapes of html/template.
func unescape(text string) string { return html.UnescapeString(text) }

func itoa(id int64) string { return strconv.FormatInt(id, 10) }

// handled are the payloads that a consumer has handled.
type handled struct {
	sync.Mutex

	payloads []string
}

func (h *handled) all() []string {
	h.Lock()
	defer h.Unlock()
	return append([]string(nil), h.payloads...)
}

// consume runs the consumer "payments" of the topic "orders.placed" until the test ends. Its
// handler refuses payloads that contain "bad". If gate is not nil, the handler waits until gate is
// closed.
func (b *bench) consume(gate <-chan struct{}) *handled {
	b.Helper()
	var h handled
	transport, err := embedded.New(b.DB, embedded.Config{Schema: b.Config, Logger: watermill.NopLogger{}})
	kit.OK(b, err)
	consumer, err := once.NewConsumer(b.DB, once.ConsumerConfig{Schema: b.Config, Logger: watermill.NopLogger{}})
	kit.OK(b, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	kit.OK(b, err)
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			if strings.Contains(string(msg.Payload), "bad") {
				return nil, retry.Permanent(errors.New("still bad"))
			}
			h.Lock()
			defer h.Unlock()
			h.payloads = append(h.payloads, string(msg.Payload))
			return nil, nil
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := kit.Go(func() error { return router.Run(ctx) })
	<-router.Running()
	b.Cleanup(func() {
		cancel()
		kit.OK(b, errors.Join(router.Close(), <-ended))
	})
	return &h
}

// says reports each part that a page does not contain.
func says(t testing.TB, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(page, part) {
			t.Errorf("%q is missing:\n%s", part, page)
		}
	}
}

// hides reports a part that a page contains.
func hides(t testing.TB, page, part string) {
	t.Helper()
	if strings.Contains(page, part) {
		t.Errorf("%q is there:\n%s", part, page)
	}
}

// answers ends the test unless a request is answered with a status.
func (b *bench) answers(status int, method, page string, form url.Values) {
	b.Helper()
	if a := b.do(method, page, form); a.StatusCode != status {
		b.Fatalf("%s %s is answered with %d, want %d:\n%s", method, page, a.StatusCode, status, a.text)
	}
}

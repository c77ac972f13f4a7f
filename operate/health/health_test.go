package health_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

// patience is a timeout for checks that must not fail on a busy machine.
const patience = time.Minute

type bench struct {
	*kit.Bench

	now string // SQL
}

func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := &bench{Bench: kit.NewBench(t, db, schema.Config{}), now: `now()`}
		if b.SQLite() {
			b.now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
		}
		test(b)
	})
}

func (b *bench) health(config health.Config) *health.Health {
	b.Helper()
	config.Schema = b.Config
	if config.Timeout == 0 {
		config.Timeout = patience
	}
	h, err := health.New(b.DB, config)
	kit.OK(b, err)
	return h
}

// ago returns an SQL expression for a time in the past. The argument is the time since
// then.
func (b *bench) ago(before time.Duration) string {
	if b.SQLite() {
		return fmt.Sprintf(`%s - (%d)`, b.now, before.Milliseconds())
	}
	return fmt.Sprintf(`%s - interval '%d milliseconds'`, b.now, before.Milliseconds())
}

// expect runs the checks. It fails the test unless Report.Ready returns the same value as
// ready, and the regular expression text matches the whole error of the
// check with the given name. If name is "", all checks must succeed.
func (b *bench) expect(h *health.Health, ready bool, name, text string) {
	b.Helper()
	report := h.Health(b.Context())
	if report.Ready() != ready {
		b.Errorf("ready is %v: %v", report.Ready(), report.Err())
	}
	if name == "" {
		if err := report.Err(); err != nil {
			b.Errorf("not well: %v", err)
		}
		return
	}
	for _, c := range report.Checks {
		if c.Name != name {
			continue
		}
		if c.Err == nil || !regexp.MustCompile("^"+text+"$").MatchString(c.Err.Error()) {
			b.Errorf("%s says %v, want %q", name, c.Err, text)
		}
		return
	}
	b.Errorf("no check %s in %+v", name, report)
}

func TestDatabaseAndTables(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		h := b.health(health.Config{MaxLag: time.Minute, Retention: time.Hour})
		b.expect(h, true, "", "")
		b.Exec(`ALTER TABLE once_migrations RENAME TO away`)
		b.expect(h, false, "tables", `schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`)
		b.expect(h, false, "lag", "not checked, because the database cannot be used")
		b.Exec(`ALTER TABLE away RENAME TO once_migrations`)
		b.expect(h, true, "", "")
		kit.OK(b, b.Close())
		b.expect(h, false, "database", "it cannot be reached; check its address, its login and the size of the pool: sql: database is closed")
		b.expect(h, false, "retention", "not checked, because the database cannot be used")
	})
}

// The lag is the time since the oldest message became due, also if the message backs
// off after a refusal. A high lag does not make a process unready.
func TestLag(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		h := b.health(health.Config{MaxLag: time.Minute})
		insert := func(id, column, value string) {
			b.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, ` + column + `)
				VALUES ('` + id + `', 't', 0, '', '{}', ` + value + `)`)
		}
		b.Exec(`UPDATE once_slots SET owner = 'f', lease_until = ` + b.ago(-time.Hour))
		insert("new", "created_at", b.now)
		insert("delayed", "created_at, due_at", b.ago(time.Hour)+`, `+b.ago(-time.Hour))
		b.expect(h, true, "", "")
		for _, late := range []struct{ id, column, value string }{
			{"waits", "created_at", b.ago(2 * time.Minute)},
			{"due", "due_at", b.ago(2 * time.Minute)},
			{"backs off", "due_at, failing_since", b.ago(-time.Hour) + `, ` + b.ago(2*time.Minute)},
		} {
			b.Exec(`DELETE FROM once_outbox`)
			insert(late.id, late.column, late.value)
			b.expect(h, true, "lag", "a message has waited in the outbox for 2m[0-9]+s, longer than 1m0s; "+
				"the log of the forwarder and once doctor say why")
		}
		// The messages behind a dead letter wait for a person, not for a forwarder.
		b.Exec(`DELETE FROM once_outbox`)
		insert("behind", "ordering_key, created_at", `'k', `+b.ago(2*time.Minute))
		b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error,
			reason, unknown) VALUES (1, 'd', 't', 'k', '', '{}', ` + b.now + `, 1, 'e', 'exhausted', 1 = 0)`)
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 1, 1, 'dead')`)
		const blocked = `ordering key "k" is blocked by dead letter 1; once dead replay 1 sends the letter again, ` +
			`once dead discard 1 gives it up, and once dead release 'k' sends the messages that wait for it`
		b.expect(h, true, "lag", "a message has waited in the outbox for 2m[0-9]+s, longer than 1m0s, behind a dead letter: "+blocked)
		insert("waits", "created_at", b.ago(3*time.Minute))
		b.expect(h, true, "lag", "a message has waited in the outbox for [23]m[0-9]+s, longer than 1m0s; "+
			"the log of the forwarder and once doctor say why; also, "+blocked)
	})
}

// Slots without a forwarder are reported while messages wait.
func TestSlots(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		h := b.health(health.Config{MaxLag: time.Hour})
		b.expect(h, true, "", "")
		b.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('1', 't', 0, '', '{}')`)
		const remedy = " slots have no forwarder, and messages wait in the outbox; start a forwarder, or wait until another one takes over"
		b.expect(h, true, "slots", "64 of 64"+remedy)
		b.Exec(`UPDATE once_slots SET owner = 'f', lease_until = ` + b.ago(-time.Hour))
		b.expect(h, true, "", "")
		b.Exec(`UPDATE once_slots SET lease_until = ` + b.ago(time.Second) + ` WHERE slot < 3`)
		b.expect(h, true, "slots", "3 of 64"+remedy)
	})
}

func TestRetention(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		h := b.health(health.Config{Retention: 24 * time.Hour})
		insert := func(id string, age time.Duration) {
			b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('` + id + `', 'c', '', ` + b.ago(age) + `)`)
		}
		insert("young", 70*time.Hour)
		b.expect(h, true, "", "")
		insert("old", 74*time.Hour)
		b.expect(h, true, "retention", "the inbox has ids that are 74h0m0s old, and the retention is 24h0m0s; run dedup.Inbox.Run in one "+
			"process, or once sweep. Ids of parked and quarantined messages are kept on purpose")
	})
}

// A paused consumer is reported, and the process stays ready: no other instance could
// handle the messages.
func TestPausedConsumerLeavesProcessReady(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		h := b.health(health.Config{Retention: 24 * time.Hour})
		b.expect(h, true, "", "")
		b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ('orders', 'payments', 'ann', 'no provider')`)
		b.expect(h, true, "paused", `consumer "payments" of topic "orders" has been paused for \d+s, by ann: no provider; `+
			`to end this: once consumers resume payments`)
	})
}

// A process with a forwarder needs its broker. It is ready while the forwarder runs,
// and not ready once it stops.
func TestPartsOfAProcess(t *testing.T) {
	broker := kit.Rabbit(t)
	eachDatabase(t, func(b *bench) {
		config := amqp.NewDurableQueueConfig(broker.URL)
		config.Marshaler = rabbit.Marshaler{}
		publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{Logger: kit.Logger(b.T)})
		kit.OK(b, err)
		defer publisher.Close()
		subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: kit.Logger(b.T)})
		kit.OK(b, err)
		defer subscriber.Close()
		fwd, err := forwarder.New(b.DB, publisher, forwarder.Config{Schema: b.Config, Logger: kit.Logger(b.T)})
		kit.OK(b, err)
		stopping := make(chan struct{})
		h := b.health(health.Config{
			Running: map[string]<-chan struct{}{"forwarder": fwd.Running()},
			Brokers: map[string]health.Pinger{"publisher": publisher, "subscriber": subscriber},
			MaxLag:  time.Minute, NeedsBroker: true, Stopping: stopping,
		})
		b.expect(h, false, "forwarder", "it does not run yet; the log says what it waits for")
		ended := kit.Go(func() error { return fwd.Run(context.WithoutCancel(b.Context())) })
		<-fwd.Running()
		b.expect(h, true, "", "")
		close(stopping)
		b.expect(h, false, "service", "the process is stopping")
		kit.Check(b, errors.Join(fwd.Close(), <-ended))
	})
}

// unreachable is a broker that does not answer.
type unreachable struct{ waits bool }

func (u unreachable) Ping(ctx context.Context) error {
	if u.waits {
		<-ctx.Done()
	}
	return errors.New("no connection to 10.1.2.3 as user guest")
}

// Without a broker a process is live. It is ready unless it needs the broker. The
// endpoints do not contain details that only an operator should see.
func TestEndpointsWithoutABroker(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for _, needed := range []bool{false, true} {
			h := b.health(health.Config{
				Brokers: map[string]health.Pinger{"publisher": unreachable{}}, NeedsBroker: needed,
			})
			code, status := http.StatusOK, "degraded"
			if needed {
				code, status = http.StatusServiceUnavailable, "unavailable"
			}
			for path, want := range map[string]struct {
				code int
				body string
			}{
				"/health/live":  {http.StatusOK, `{"status":"ok"}`},
				"/health/ready": {code, `{"checks":{"database":"ok","publisher":"failed","tables":"ok"},"status":"` + status + `"}`},
				"/health":       {http.StatusNotFound, "404 page not found"},
			} {
				answer := httptest.NewRecorder()
				h.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(b.Context(), http.MethodGet, path, nil))
				if body := strings.TrimSpace(answer.Body.String()); answer.Code != want.code || body != want.body {
					b.Errorf("%s says %d %s, want %d %s", path, answer.Code, body, want.code, want.body)
				}
			}
		}
	})
}

// A report is complete in time, even if a broker does not answer.
func TestTimeout(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.expect(b.health(health.Config{
			Brokers: map[string]health.Pinger{"publisher": unreachable{waits: true}}, NeedsBroker: true, Timeout: 100 * time.Millisecond,
		}), false, "publisher", "no connection to 10.1.2.3 as user guest")
	})
}

// If a topic has no queue, the lag shows this. The test uses a real forwarder, a real
// publisher and a real broker.
func TestTopicWithoutAQueue(t *testing.T) {
	broker := kit.Rabbit(t)
	eachDatabase(t, func(b *bench) {
		config := amqp.NewDurableQueueConfig(broker.URL)
		config.Marshaler = rabbit.Marshaler{}
		publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{Logger: kit.Logger(b.T)})
		kit.OK(b, err)
		defer publisher.Close()
		fwd, err := forwarder.New(b.DB, publisher, forwarder.Config{
			Schema: b.Config, Logger: kit.Logger(b.T), Backoff: func(int) time.Duration { return time.Hour },
		})
		kit.OK(b, err)
		ended := kit.Go(func() error { return fwd.Run(context.WithoutCancel(b.Context())) })
		box, err := outbox.New(outbox.Config{Schema: b.Config})
		kit.OK(b, err)
		topic := broker.Name("nobody")
		kit.OK(b, box.InTx(b.Context(), b.DB, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish(topic, outbox.NewMessage(nil))
		}))
		h := b.health(health.Config{MaxLag: time.Millisecond})
		kit.Eventually(b, patience, "the message backs off and is late", func() bool {
			var backsOff int
			err := b.DB.QueryRowContext(b.Context(),
				`SELECT COUNT(*) FROM once_outbox WHERE failing_since IS NOT NULL AND due_at > `+b.now).Scan(&backsOff)
			kit.OK(b, err)
			err = h.Health(b.Context()).Err()
			return backsOff == 1 && err != nil && strings.Contains(err.Error(), "lag: a message has waited")
		})
		kit.Check(b, errors.Join(fwd.Close(), <-ended))
	})
}

// Each mistake in a Config is an error that names the field.
func TestConfigErrorsNameFields(t *testing.T) {
	closed := make(chan struct{})
	_, err := health.New(nil, health.Config{
		MaxLag: -1, Retention: -2, Timeout: -3, NeedsBroker: true,
		Running: map[string]<-chan struct{}{"router": nil, "": closed, "lag": closed},
	})
	for _, text := range []string{
		"health: db is nil", "MaxLag is -1ns", "Retention is -2ns", "Timeout is -3ns", `Running["router"] is nil`,
		"Running has an empty name", `Running has the name "lag"`, "NeedsBroker is set without Brokers",
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %q", err, text)
		}
	}
	_, err = health.New(nil, health.Config{
		Running: map[string]<-chan struct{}{"x": closed}, Brokers: map[string]health.Pinger{"x": nil},
	})
	for _, text := range []string{`Brokers["x"] is nil`, `"x" is in Running and in Brokers`} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %q", err, text)
		}
	}
}

// No error contains the password of a refused login.
func TestErrorsHaveNoPassword(t *testing.T) {
	broker := kit.Rabbit(t)
	uri, err := amqp091.ParseURI(broker.URL)
	kit.OK(t, err)
	uri.Password = "pa55word"
	config := amqp.NewDurableQueueConfig(uri.String())
	config.Marshaler = rabbit.Marshaler{}
	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{Logger: kit.Logger(t)})
	kit.OK(t, err)
	defer publisher.Close()
	wrong, err := sql.Open("postgres", "postgres://nobody:pa55word@127.0.0.1:1/x?sslmode=disable")
	kit.OK(t, err)
	defer wrong.Close()
	h, err := health.New(wrong, health.Config{Timeout: patience, Brokers: map[string]health.Pinger{"publisher": publisher}})
	kit.OK(t, err)
	report := h.Health(t.Context())
	if report.Err() == nil || strings.Contains(report.Err().Error(), "pa55word") ||
		!strings.Contains(report.Err().Error(), "refuses the login") {
		t.Errorf("%v", report.Err())
	}
}

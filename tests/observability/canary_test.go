package observability

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// Secrets that must not appear in logs, spans or metrics.
const (
	secretPayload  = "canary-payload"
	secretMetadata = "canary-metadata"
	secretKey      = "canary-key"
	secretPassword = "canary-password"
)

// Trap 60. Logs, metrics and traces of producers and forwarders contain no
// payload, metadata or password.
func TestForwarderRecordsNoPayloadsAndPasswords(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box, broker := w.database(), w.outbox(), kit.Rabbit(t)
	config := queue(strings.Replace(broker.URL, "guest:guest@", "guest:"+secretPassword+"@", 1))
	if !strings.Contains(config.Connection.AmqpURI, secretPassword) {
		config.Connection.AmqpURI = "amqp://guest:" + secretPassword + "@127.0.0.1:1/"
	}
	locked := w.rabbit(config, rabbit.PublisherConfig{ReadyTimeout: 50 * time.Millisecond})
	good := w.rabbit(queue(broker.URL), rabbit.PublisherConfig{})

	// One message for each way in which a message can fail.
	fine, later := broker.Name("fine"), broker.Name("later")
	w.declare(broker.URL, fine, nil)
	w.declare(broker.URL, later, nil)
	var attempts atomic.Int64
	pub := &scripted{answer: func(topic string, msg *message.Message) error {
		switch {
		case strings.HasPrefix(topic, "says "):
			return outcomeError(strings.TrimPrefix(topic, "says "))
		case topic == later && attempts.Add(1) == 1:
			return locked.Publish(topic, msg)
		}
		return good.Publish(topic, msg)
	}}
	t.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{
		MaxAttempts: 2, Backoff: func(int) time.Duration { return time.Millisecond }, StallTimeout: 500 * time.Millisecond,
	})
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	secret := func(id string) *message.Message {
		msg := message.NewMessage(id, []byte(secretPayload))
		msg.Metadata.Set("customer", secretMetadata)
		outbox.SetOrderingKey(msg, secretKey+id)
		outbox.SetTenant(msg, "acme")
		outbox.SetAggregate(msg, "order", "17", 3)
		outbox.SetEventType(msg, "placed")
		return msg
	}
	for i, topic := range []string{
		later, fine, "says refused", "says unacceptable", "says unknown", broker.Name("nobody"), strings.Repeat("x", 255),
	} {
		w.publish(ctx, db, box, topic, secret(fmt.Sprint("id-", i)))
	}
	tx, err := db.BeginTx(ctx, nil)
	kit.OK(t, err)
	broken := secret("refused")
	broken.SetContext(ctx)
	broken.Metadata.Set("broken", secretMetadata+"\x00")
	if err := box.Publisher(tx).Publish("t", broken); !errors.Is(err, outbox.ErrInvalid) || strings.Contains(err.Error(), "canary") {
		t.Errorf("refused: %v", err)
	}
	kit.OK(t, tx.Rollback())
	w.awaitValue(4, "once.forwarder.dead_letters", "")
	w.awaitValue(1, "once.forwarder.published", "once.outcome=unavailable")
	w.awaitValue(1, "once.forwarder.published", "once.outcome=unknown")
	w.eventually("the other messages are sent", func() bool { return w.value("once.forwarder.published", "once.outcome=confirmed") >= 2 })
	service.End()

	w.tellsNoSecrets()
	dead := 0
	for _, line := range w.logs.Lines() {
		if strings.Contains(line, "Message is dead") {
			dead++
			for _, field := range []string{
				"message_uuid=", "topic=", "attempt=", "size=", "reason=",
				"tenant=acme", "aggregate_type=order", "aggregate_id=17", "version=3", "event_type=placed",
			} {
				if !strings.Contains(line, field) {
					t.Errorf("no field %s in %s", field, line)
				}
			}
		}
	}
	if dead < 4 || len(w.named("forward "+fine)) != 1 {
		t.Errorf("%d dead letters were logged, %d spans", dead, len(w.spans.GetSpans()))
	}
}

// tellsNoSecrets searches all logs, metrics and spans, and the errors that callers got, for
// secrets. It fails the test if it finds one.
func (w *watch) tellsNoSecrets(errs ...error) {
	w.Helper()
	told := w.logs.Lines()
	for name, i := range w.instruments() {
		told = append(told, fmt.Sprint(name, i.description, i.unit))
		for series := range i.series {
			told = append(told, series)
		}
	}
	for _, span := range w.spans.GetSpans() {
		told = append(told, fmt.Sprint(span.Name, span.Attributes, span.Status, span.Events, span.Links, span.Resource))
	}
	for _, err := range errs {
		if err == nil {
			w.Error("there is no error to look at")
			continue
		}
		told = append(told, fmt.Sprintf("%v %+v", err, err))
	}
	for _, line := range told {
		if strings.Contains(line, "canary-") {
			w.Errorf("a secret is in: %s", line)
		}
	}
}

// Trap 60. The password of the database must not appear if the database is
// unreachable, if it refuses the login, or if the driver quotes a data source
// name that it cannot parse. The test asks each driver, because they accept
// different names.
func TestPasswordOfTheDatabaseIsNotRecorded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	closed := listener.Addr().String()
	kit.OK(t, listener.Close())
	address, err := url.Parse(kit.Postgres(t).DSN)
	if err != nil {
		t.Fatal("the DSN is no URL")
	}
	there := *address
	there.User = url.UserPassword("nobody_of_that_name", secretPassword)
	const pairs = "user=nobody_of_that_name host=127.0.0.1"
	inQuery := there
	inQuery.User = url.User("nobody_of_that_name")
	inQuery.RawQuery += "&password=" + secretPassword
	const away, refused, unread = "connection refused", "does not exist", "cannot be parsed"
	tests := map[string]struct{ dsn, says string }{
		"away":               {strings.Replace(there.String(), there.Host, closed, 1), away},
		"refused":            {there.String(), refused},
		"refused, in query":  {inQuery.String(), refused},
		"escape":             {strings.Replace(there.String(), secretPassword, secretPassword+"%zz", 1), unread},
		"port":               {strings.Replace(there.String(), there.Host, "127.0.0.1:port", 1), unread},
		"query":              {strings.Replace(inQuery.String(), inQuery.Host, "127.0.0.1:port", 1), unread},
		"query, wrong value": {inQuery.String() + "&connect_timeout=soon", unread},
		"pairs":              {pairs + " password=" + secretPassword + " connect_timeout=soon", unread},
		"pairs, quoted":      {pairs + " password='" + secretPassword + "' connect_timeout=soon", unread},
		"pairs, blanks":      {pairs + " password = '" + secretPassword + "' connect_timeout=soon", unread},
		"pairs, escaped":     {pairs + ` password='it\'s ` + secretPassword + "' connect_timeout=soon", unread},
		"pairs, two words":   {pairs + " password=two " + secretPassword, unread},
		"pairs, no end":      {pairs + " password='" + secretPassword, unread},
	}
	for _, driver := range []string{"postgres", "pgx"} {
		for name, test := range tests {
			t.Run(driver+", "+name, func(t *testing.T) {
				t.Parallel()
				db, err := sql.Open(driver, test.dsn)
				if err != nil {
					t.Fatal("the driver reads the data source name before it connects")
				}
				t.Cleanup(func() { _ = db.Close() })
				w := newWatch(t)
				errs := w.call(db)
				if says := test.says; says != unread || name == "pairs, blanks" { // the logs are the same for all of these
					w.background(db, says, name == "refused")
				}
				for _, err := range errs {
					if err == nil || !strings.Contains(err.Error(), test.says) {
						t.Errorf("%v does not say %q", err, test.says)
					}
				}
				w.tellsNoSecrets(errs...)
			})
		}
	}
}

// call calls functions that use the database, and returns their errors.
func (w *watch) call(db *sql.DB) []error {
	w.Helper()
	ctx := w.Context()
	letters, err := dead.New(db, operate.Config{})
	kit.OK(w, err)
	entries, err := quarantine.New(db, operate.Config{ReplayToAbsent: true})
	kit.OK(w, err)
	ann := operate.Act{Actor: "ann", Why: "a test"}
	_, list := entries.List(ctx, operate.Filter{})
	_, replay := entries.ReplayMatching(ctx, ann, operate.Filter{All: true}, operate.Plan{})
	_, dead := letters.List(ctx, operate.Filter{})
	_, sweep := w.inbox(db).Sweep(ctx)
	return []error{
		schema.Up(ctx, db, schema.Config{}),
		schema.Check(ctx, db, schema.Config{}),
		outbox.InTx(ctx, db, func(*sql.Tx, message.Publisher) error { return nil }),
		list, replay, dead, sweep,
	}
}

// refused starts a consumer. The start must fail with the given error of the database.
// If the database is unreachable, refused does nothing, because a consumer would wait
// for the database instead of failing.
func (w *watch) refused(db *sql.DB, says string) {
	w.Helper()
	if says == "connection refused" { // the consumer would wait
		return
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Logger: &w.logs, MeterProvider: w.meters})
	kit.OK(w, err)
	router, err := message.NewRouter(message.RouterConfig{}, &w.logs)
	kit.OK(w, err)
	consumer.AddHandler(router, "refused", "t", &byHand{kit.NewSubscriber()},
		func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
	err = router.Run(w.Context())
	if err == nil || !strings.Contains(err.Error(), says) {
		w.Errorf("%v does not say %q", err, says)
	}
	w.tellsNoSecrets(err)
}

// background runs all background work until each part has logged why it fails. A consumer that
// cannot read which consumers are paused fetches no messages, and only registers itself from time
// to time. If fetches is true, background also waits for this.
func (w *watch) background(db *sql.DB, says string, fetches bool) {
	w.Helper()
	w.refused(db, says)
	// The parts run without the checks at the start, as if the database began to refuse logins
	// later. The consumers leave their messages in the broker.
	ids := w.inbox(db)
	storage, err1 := durable.New(db, durable.Config{Logger: &w.logs, MeterProvider: w.meters})
	retries, err2 := retry.New(db, retry.Config{Logger: &w.logs, MeterProvider: w.meters})
	quarantine, err3 := poison.New(db, poison.Config{Logger: &w.logs, MeterProvider: w.meters})
	router, err4 := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, &w.logs)
	kit.OK(w, errors.Join(err1, err2, err3, err4))
	plain, durable := &byHand{kit.NewSubscriber()}, &byHand{kit.NewSubscriber()}
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, ids.Middleware)
	handle := func(*message.Message) error { return nil }
	router.AddConsumerHandler("plain", "t", retries.Subscriber("plain", plain), handle)
	router.AddConsumerHandler("durable", "t", retries.Subscriber("durable", storage.Subscriber(durable)), handle)
	stock, err := mover.New(db, mover.Config{Logger: &w.logs})
	kit.OK(w, err)
	forward, err := forwarder.New(db, &scripted{}, forwarder.Config{Logger: &w.logs, MeterProvider: w.meters})
	kit.OK(w, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 4)
	for _, run := range []func(context.Context) error{ids.Run, stock.Run, forward.Run} {
		go func() { ended <- run(ctx) }()
	}
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	<-router.Running()
	defer func() {
		stop()
		err := router.Close()
		for range cap(ended) {
			if failed := <-ended; failed != nil {
				err = errors.Join(err, failed)
			}
		}
		w.tellsNoSecrets(errors.Join(err, errors.New("they have ended")))
	}()
	w.eventually("all parts have logged why they fail", func() bool {
		lines := slices.DeleteFunc(w.logs.Lines(), func(line string) bool { return !strings.Contains(line, says) })
		all := strings.Join(lines, "\n")
		expected := []string{"The outbox's tables cannot be read", "Sweep of the inbox failed", "Paused consumers cannot be read"}
		if fetches {
			expected = append(expected, "Parked messages cannot be fetched")
		}
		for _, said := range expected {
			if !strings.Contains(all, said) {
				return false
			}
		}
		return true
	})
}

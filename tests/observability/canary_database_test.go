package observability

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// Trap 60. The password of the database must not appear if the database is
// unreachable, if it refuses the login, or if the driver quotes a data source
// name that it cannot parse. The test asks each driver, because they accept
// different names.
func TestPasswordOfTheDatabaseIsNotRecorded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(testkit.Postgres(t).DSN)
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
				db, err := sql.Open(driver, test.dsn)
				if err != nil {
					t.Fatal("the driver reads the data source name before it connects")
				}
				t.Cleanup(func() { _ = db.Close() })
				w := newWatch(t)
				errs := w.call(db)
				if says := test.says; says != unread || name == "pairs, blanks" { // the logs are the same for all of these
					w.background(db, says)
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
	letters, err := deadletter.New(db, deadletter.Config{})
	if err != nil {
		w.Fatal(err)
	}
	quarantine, err := poison.New(db, poison.Config{Logger: &w.logs, ReplayToAbsent: true})
	if err != nil {
		w.Fatal(err)
	}
	ann := poison.Act{Actor: "ann", Why: "a test"}
	_, list := quarantine.List(ctx, poison.Filter{})
	_, replay := quarantine.ReplayMatching(ctx, ann, poison.Filter{All: true}, poison.Plan{})
	_, dead := letters.List(ctx, deadletter.Filter{})
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
	if err != nil {
		w.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, &w.logs)
	if err != nil {
		w.Fatal(err)
	}
	consumer.AddHandler(router, "refused", "t", &byHand{testkit.NewSubscriber()},
		func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
	err = router.Run(w.Context())
	if err == nil || !strings.Contains(err.Error(), says) {
		w.Errorf("%v does not say %q", err, says)
	}
	w.tellsNoSecrets(err)
}

// background runs all background work until each part has logged why it fails.
func (w *watch) background(db *sql.DB, says string) {
	w.Helper()
	w.refused(db, says)
	// The parts run without the checks at the start, as if the database began to refuse logins
	// later.
	ids := w.inbox(db)
	storage, err1 := durable.New(db, durable.Config{Logger: &w.logs, MeterProvider: w.meters})
	retries, err2 := retry.New(db, retry.Config{Logger: &w.logs, MeterProvider: w.meters})
	quarantine, err3 := poison.New(db, poison.Config{Logger: &w.logs, MeterProvider: w.meters})
	router, err4 := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, &w.logs)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		w.Fatal(err)
	}
	plain, durable := &byHand{testkit.NewSubscriber()}, &byHand{testkit.NewSubscriber()}
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, ids.Middleware)
	handle := func(*message.Message) error { return nil }
	router.AddConsumerHandler("plain", "t", retries.Subscriber("plain", plain), handle)
	router.AddConsumerHandler("durable", "t", retries.Subscriber("durable", storage.Subscriber(durable)), handle)
	stock, err := mover.New(db, mover.Config{Logger: &w.logs})
	if err != nil {
		w.Fatal(err)
	}
	forward, err := forwarder.New(db, &scripted{}, forwarder.Config{Logger: &w.logs, MeterProvider: w.meters})
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 4)
	for _, run := range []func(context.Context) error{ids.Run, stock.Run, forward.Run} {
		go func() { ended <- run(ctx) }()
	}
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	<-router.Running()
	for _, to := range []*byHand{plain, durable} {
		go to.deliver(message.NewMessage(watermill.NewUUID(), []byte(secretPayload)))
	}
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
		for _, said := range []string{
			"The outbox's tables cannot be read", "Sweep of the inbox failed", "store messages",
			"Parked messages cannot be fetched", "Message is held",
		} {
			if !strings.Contains(all, said) {
				return false
			}
		}
		return true
	})
}

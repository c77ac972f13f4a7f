package oncetest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/outbox"
)

// TB contains the methods of *testing.T that [Run] and [RunOrder] need.
type TB[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// Run tests a handler. It runs a subtest for each case. If a message cannot be handled
// although no fault is injected, or if two runs without faults give different results, t
// fails before any subtest.
//
// There are two cases for each statement in the transaction of each message, and a few
// more. A case takes about ten milliseconds, in addition to the time that Reset takes.
func Run[T TB[T]](t T, config Config) {
	t.Helper()
	s, err := newSubject(t.Context(), config)
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	t.Cleanup(func() { _ = s.db.Close() })
	if err := s.makeReference(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.cases() {
		t.Run(c.name, func(t T) {
			t.Helper()
			err := c.run(t.Context())
			switch {
			case errors.Is(err, errNotInjected):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

// errNotInjected means that the transaction had fewer statements than in the reference. The case is
// skipped: the handler may cache rows that it has read.
var errNotInjected = errors.New("fewer statements ran this time: the case is skipped")

type testCase struct {
	name string
	run  func(ctx context.Context) error
}

func (s *subject) cases() []testCase {
	all := []testCase{
		{"twice in a row", s.twiceInARow},
		{"twice at once", s.twiceAtOnce},
	}
	for _, f := range s.faults {
		all = append(all, testCase{f.name(), func(ctx context.Context) error { return s.withFault(ctx, f) }})
	}
	if s.config.Ordered {
		return all
	}
	for i := range len(s.config.Messages) - 1 {
		all = append(all, testCase{
			fmt.Sprintf("messages %d and %d swapped", i+1, i+2),
			func(ctx context.Context) error { return s.swapped(ctx, i) },
		})
	}
	return all
}

// Config configures [Run]. DB, Handler, Messages and Reset are required. For every
// other field, the zero value means the default.
type Config struct {
	// DB is a test database with the tables of the handler and of this library (schema.Up). Use
	// PostgreSQL, or SQLite in a file: one in memory is lost when its connection is closed. No
	// other process may use it. Run deletes all rows of the inbox and the outbox.
	DB *sql.DB

	// Handler is the handler to test. If yours takes its transaction from dedup.TxFromContext, set
	// a function that calls it with msg.
	Handler once.HandlerFunc

	// Messages are delivered one after another. Their ids must differ.
	Messages []*message.Message

	// Reset puts the tables into the state before the first message: it empties them, and inserts
	// the rows that the handler needs. It is called before every case, and must produce the same
	// state each time.
	Reset func(ctx context.Context, db *sql.DB) error

	// Tables are the tables to compare, such as "payments" or "shop.payments", spelled as in the
	// database. Defaults to all in the search path but this library's.
	Tables []string

	// Ignore lists columns that are not compared because their values differ in each run, such as
	// times and generated ids: "captured_at" in all tables, or "payments.id". Defaults to none.
	Ignore []string

	// Ordered says that messages always arrive in order, and are not swapped. Defaults to false: a
	// consumer that retries, or has more than one message in flight, receives them out of order.
	Ordered bool

	// Dedup is the configuration of your service's inbox. If Dedup.Idempotent contains the
	// consumer, the cases with duplicates test whether its handler is idempotent. Dedup.Consumer
	// defaults to "oncetest", and Dedup.Outbox to the outbox of the same Schema.
	Dedup dedup.Config

	// Timeout limits one message with all its redeliveries. Defaults to 30 seconds.
	Timeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Dedup.Consumer = cmp.Or(c.Dedup.Consumer, "oncetest")
	// With tracing, the produced messages would differ in each run.
	if c.Dedup.TracerProvider == nil {
		c.Dedup.TracerProvider = noop.NewTracerProvider()
	}
	if c.Dedup.Outbox == nil {
		// An invalid Schema is the only possible error, and validate reports it.
		if box, err := outbox.New(outbox.Config{Schema: c.Dedup.Schema, TracerProvider: c.Dedup.TracerProvider}); err == nil {
			c.Dedup.Outbox = box.Publisher
		}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.DB == nil {
		errs = append(errs, errors.New("DB is nil: set it to a database for tests"))
	}
	if c.Handler == nil {
		errs = append(errs, errors.New("Handler is nil: set it to the handler to test"))
	}
	if c.Reset == nil {
		errs = append(errs, errors.New("Reset is nil: each case needs the same state of the database"))
	}
	if len(c.Messages) == 0 {
		errs = append(errs, errors.New("Messages is empty: there must be at least one"))
	}
	ids := map[string]bool{}
	for i, msg := range c.Messages {
		switch {
		case msg == nil:
			errs = append(errs, fmt.Errorf("Messages[%d] is nil", i))
		case msg.UUID == "" && c.Dedup.Key == nil:
			errs = append(errs, fmt.Errorf("Messages[%d] has no id, and Dedup.Key is nil", i))
		case ids[msg.UUID]:
			errs = append(errs, fmt.Errorf("Messages[%d] has the id %q of an earlier one", i, msg.UUID))
		default:
			ids[msg.UUID] = true
		}
	}
	if slices.Contains(c.Tables, "") {
		errs = append(errs, errors.New("Tables has an empty name"))
	}
	if slices.Contains(c.Ignore, "") {
		errs = append(errs, errors.New("Ignore has an empty name"))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Timeout is %v: negative", c.Timeout))
	}
	if _, err := dedup.New(new(sql.DB), c.Dedup); err != nil { // New checks only that the *sql.DB is not nil
		errs = append(errs, fmt.Errorf("Dedup: %w", err))
	}
	return errors.Join(errs...)
}

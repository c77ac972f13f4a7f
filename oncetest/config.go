package oncetest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/outbox"
)

// Config configures [Run]. DB, Handler, Messages and Reset are required. The zero
// value of all other fields is a good default.
type Config struct {
	// DB is a database for tests, with the tables of the handler and of this library
	// (schema.Up). Use PostgreSQL, or SQLite in a file: a SQLite database in memory
	// is lost with its connection. No other process may use it meanwhile. Run deletes
	// all rows of the inbox and the outbox.
	DB *sql.DB

	// Handler is the handler to test. For a handler that uses dedup.TxFromContext,
	// set a function that calls it with msg.
	Handler once.HandlerFunc

	// Messages are delivered one after the other. Their ids must differ, and the
	// handler must accept them in this order.
	Messages []*message.Message

	// Reset puts the tables into the state that the messages expect: it empties
	// them and inserts the rows that the handler needs. Run calls it before every
	// case, and checks that the state is the same each time.
	Reset func(ctx context.Context, db *sql.DB) error

	// Tables are the tables to compare, such as "payments" or "shop.payments", in
	// the spelling of the database. Defaults to all tables (PostgreSQL: in the
	// search path) except those of this library.
	Tables []string

	// Ignore are columns that are not compared, such as "captured_at" in all tables,
	// or "payments.id": times, generated ids and other values that differ in each
	// run. Defaults to none.
	Ignore []string

	// Ordered states that messages always arrive in order; Run then swaps none.
	// Defaults to false, because with retries, or with more than one message in
	// flight, a consumer has no order.
	Ordered bool

	// Dedup is the configuration of the inbox in your service. The handler of a
	// consumer in Dedup.Idempotent runs for every delivery, so the cases with
	// duplicates test whether it is idempotent. Consumer defaults to "oncetest",
	// Outbox to the outbox of the same Schema.
	Dedup dedup.Config

	// Timeout is the longest time for one message with all its redeliveries.
	// Defaults to 30 seconds.
	Timeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Dedup.Consumer = cmp.Or(c.Dedup.Consumer, "oncetest")
	// With tracing, produced messages would differ in each run.
	if c.Dedup.TracerProvider == nil {
		c.Dedup.TracerProvider = noop.NewTracerProvider()
	}
	if c.Dedup.Outbox == nil {
		// Only the Schema can be invalid, and validate reports that.
		if box, err := outbox.New(outbox.Config{Schema: c.Dedup.Schema, TracerProvider: c.Dedup.TracerProvider}); err == nil {
			c.Dedup.Outbox = box.Publisher
		}
	}
	return c
}

// validate reports every field that is wrong.
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
	for field, names := range map[string][]string{"Tables": c.Tables, "Ignore": c.Ignore} {
		if slices.Contains(names, "") {
			errs = append(errs, fmt.Errorf("%s has an empty name", field))
		}
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Timeout is %v: negative", c.Timeout))
	}
	if _, err := dedup.New(new(sql.DB), c.Dedup); err != nil { // New only checks that the *sql.DB is not nil
		errs = append(errs, fmt.Errorf("Dedup: %w", err))
	}
	return errors.Join(errs...)
}

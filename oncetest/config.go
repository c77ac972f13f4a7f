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

// Config is what [Run] is told. DB, Handler, Messages and Reset are required,
// the rest has good defaults.
type Config struct {
	// DB is a database for tests, with the handler's tables and those of this
	// library (schema.Up). PostgreSQL, or SQLite in a file: one in memory is
	// gone when its connection is lost. Nothing else may work in it meanwhile.
	// Inbox and outbox are emptied.
	DB *sql.DB

	// Handler is what is examined. A handler that finds its transaction with
	// dedup.TxFromContext does so here too: give a function that calls it with
	// msg.
	Handler once.HandlerFunc

	// Messages are delivered one after the other. Their ids must differ, and
	// the handler must accept them. Their order is one in which they may come.
	Messages []*message.Message

	// Reset brings the tables to the state in which the messages find them:
	// it empties them and inserts what has to be there. It is called before
	// every case, and whether the state is the same each time is checked.
	Reset func(ctx context.Context, db *sql.DB) error

	// Tables are those whose contents are compared, as "payments" or
	// "shop.payments", in the database's own spelling. Defaults to all that are
	// found (PostgreSQL: in the search path) but this library's.
	Tables []string

	// Ignore are columns that are not compared, as "captured_at", in all
	// tables, or "payments.id": times, generated ids and whatever else may
	// differ. Defaults to none.
	Ignore []string

	// Ordered says that the messages are always delivered in order, so that
	// none are swapped. Defaults to false: with retries, or with more than one
	// message in flight, a consumer has no order.
	Ordered bool

	// Dedup is the inbox as the service has it. A consumer that is among its
	// Idempotent ones is run for every copy, and has to be what it is called.
	// Consumer defaults to "oncetest", Outbox to the outbox of the same Schema.
	Dedup dedup.Config

	// Timeout is how long a message may take, with all its redeliveries.
	// Defaults to 30 seconds.
	Timeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Dedup.Consumer = cmp.Or(c.Dedup.Consumer, "oncetest")
	// The context of a span would make each run's messages different.
	if c.Dedup.TracerProvider == nil {
		c.Dedup.TracerProvider = noop.NewTracerProvider()
	}
	if c.Dedup.Outbox == nil {
		// Only the Schema can be wrong, and validate says so.
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
		errs = append(errs, errors.New("DB is nil: it must be a database for tests"))
	}
	if c.Handler == nil {
		errs = append(errs, errors.New("Handler is nil: it is what is examined"))
	}
	if c.Reset == nil {
		errs = append(errs, errors.New("Reset is nil: each case needs the database as it was"))
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
			errs = append(errs, fmt.Errorf("Messages[%d] has no id, and there is no Dedup.Key", i))
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
	if _, err := dedup.New(new(sql.DB), c.Dedup); err != nil { // it only looks whether there is one
		errs = append(errs, fmt.Errorf("Dedup: %w", err))
	}
	return errors.Join(errs...)
}

package quarantine_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

var errHandler = errors.New("handler failed")

type bench struct {
	*testing.T
	kit.Database

	config schema.Config
	store  *quarantine.Entries
	poison *poison.Store
	parked *parkedrows.Store
}

func newBench(t *testing.T, db kit.Database, change func(*operate.Config)) *bench {
	t.Helper()
	b := &bench{T: t, Database: db, config: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	if err := schema.Up(t.Context(), db.DB, b.config); err != nil {
		t.Fatal(err)
	}
	config := operate.Config{Schema: b.config, ReplayToAbsent: true}
	if change != nil {
		change(&config)
	}
	var err error
	if b.store, err = quarantine.New(db.DB, config); err != nil {
		t.Fatal(err)
	}
	middleware := poison.Config{Schema: b.config, UnackedWait: 100 * time.Millisecond, Logger: kit.Logger(t)}
	if b.poison, err = poison.New(db.DB, middleware); err != nil {
		t.Fatal(err)
	}
	if b.parked, err = parkedrows.NewStore(db.DB, b.config); err != nil {
		t.Fatal(err)
	}
	return b
}

// handle passes msg to the middleware around h, as the router of the consumer would do.
func (b *bench) handle(consumer string, msg *message.Message, h message.HandlerFunc) error {
	msg.SetContext(parkedrows.WithDelivery(msg.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: "orders.placed"}))
	_, err := b.poison.Middleware(h)(msg)
	return err
}

// quarantinePanic delivers a message to a handler that panics, so that the message is
// quarantined.
func (b *bench) quarantinePanic(consumer, id string) {
	b.Helper()
	h := func(*message.Message) ([]*message.Message, error) { panic("boom") }
	if err := b.handle(consumer, message.NewMessage(id, nil), h); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) list() []quarantine.Entry {
	b.Helper()
	page, err := b.store.List(b.Context(), operate.Filter{})
	if err != nil {
		b.Fatal(err)
	}
	return page.Rows
}

// importCounts is the result of an import.
type importCounts struct{ New, Known int }

func (b *bench) importFrom(r io.Reader) (got importCounts, err error) {
	b.Helper()
	got.New, got.Known, err = b.store.Import(b.Context(), act, r)
	return got, err
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

package poison_test

import (
	"errors"
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

func TestMain(m *testing.M) { kit.MainWithTables(m) }

type bench struct {
	*kit.Bench

	store  *poison.Store
	stored *quarantine.Entries
	parked *parkedrows.Store
}

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newBench(t, db, nil)) })
}

func newBench(t *testing.T, db kit.Database, change func(*poison.Config)) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{})}
	config := poison.Config{Schema: b.Config, UnackedWait: 100 * time.Millisecond, Logger: kit.Logger(t)}
	if change != nil {
		change(&config)
	}
	var err error
	b.store, err = poison.New(db.DB, config)
	kit.OK(t, err)
	b.stored, err = quarantine.New(db.DB, operate.Config{Schema: b.Config})
	kit.OK(t, err)
	b.parked, err = parkedrows.NewStore(db.DB, b.Config)
	kit.OK(t, err)
	return b
}

// handle passes msg to the middleware around h, as the router of the consumer would do.
func (b *bench) handle(consumer string, msg *message.Message, h message.HandlerFunc) error {
	msg.SetContext(parkedrows.WithDelivery(msg.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: "orders.placed"}))
	_, err := b.store.Middleware(h)(msg)
	return err
}

// quarantinePanic delivers a message to a handler that panics, so that the message is
// quarantined.
func (b *bench) quarantinePanic(consumer, id string) {
	b.Helper()
	h := func(*message.Message) ([]*message.Message, error) { panic("boom") }
	kit.OK(b, b.handle(consumer, message.NewMessage(id, nil), h))
}

func (b *bench) list() []quarantine.Entry {
	b.Helper()
	page, err := b.stored.List(b.Context(), operate.Filter{})
	kit.OK(b, err)
	return page.Rows
}

// quarantine delivers messages to a handler that fails.
func (b *bench) quarantine(consumer string, ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, b.handle(consumer, message.NewMessage(id, []byte("body")), failing(errHandler)))
	}
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

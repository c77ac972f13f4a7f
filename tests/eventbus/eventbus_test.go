package eventbus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

type orderPlaced struct {
	Number int
}

var jsonMarshaler = cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}

// bench is a database with an outbox, an inbox and one event bus.
type bench struct {
	*testing.T
	kit.Database

	inbox *dedup.Inbox
	bus   *cqrs.EventBus
}

func newBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	tables := kit.Tables(t, db)
	box, err := outbox.New(outbox.Config{Schema: tables})
	kit.OK(t, err)
	b := &bench{T: t, Database: db}
	b.inbox, err = dedup.New(db.DB, dedup.Config{
		Schema: tables, Consumer: "payments", Outbox: box.Publisher, Logger: kit.Logger(t), Batch: dedup.Batch{Size: 2},
	})
	kit.OK(t, err)
	b.bus, err = cqrs.NewEventBusWithConfig(eventbus.Publisher(box.Publisher), cqrs.EventBusConfig{
		GeneratePublishTopic: func(params cqrs.GenerateEventPublishTopicParams) (string, error) { return params.EventName, nil },
		Marshaler:            jsonMarshaler,
		Logger:               kit.Logger(t),
	})
	kit.OK(t, err)
	return b
}

// stored returns topic, payload, causation id and tenant of the outbox rows.
func (b *bench) stored() string {
	b.Helper()
	found, err := b.QueryContext(b.Context(), `SELECT topic, payload, COALESCE(metadata->>'once_causation_id', ''),
		COALESCE(metadata->>'once_tenant_id', '') FROM once_outbox ORDER BY position`)
	kit.OK(b, err)
	defer found.Close()
	var all []string
	for found.Next() {
		var topic, causation, tenant string
		var payload []byte
		kit.OK(b, found.Scan(&topic, &payload, &causation, &tenant))
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", topic, payload, causation, tenant)))
	}
	kit.OK(b, found.Err())
	return strings.Join(all, "\n")
}

func (b *bench) expect(want string) {
	b.Helper()
	if got := b.stored(); got != want {
		b.Errorf("the outbox has\n%s\nwant\n%s", got, want)
	}
}

func TestEventsOfAProducerFollowItsTransaction(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		for number, end := range []func(tx *sql.Tx) error{(*sql.Tx).Rollback, (*sql.Tx).Commit} {
			tx, err := db.BeginTx(t.Context(), nil)
			kit.OK(t, err)
			err = b.bus.Publish(eventbus.WithTx(t.Context(), tx), orderPlaced{number})
			kit.OK(t, errors.Join(err, end(tx)))
		}
		b.expect(`orderPlaced {"Number":1}`)
	})
}

func TestEventsOfAHandlerFollowItsMessage(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		handle := func(msg *message.Message) ([]*message.Message, error) {
			if err := b.bus.Publish(msg.Context(), orderPlaced{7}); err != nil {
				return nil, err
			}
			if msg.UUID == "fails" {
				return nil, errors.New("on purpose")
			}
			return nil, nil
		}
		for _, h := range []message.HandlerFunc{b.inbox.Middleware(handle), b.inbox.BatchMiddleware(handle)} {
			for _, id := range []string{"fails", "m1", "m1"} {
				msg := message.NewMessage(id, nil)
				outbox.SetTenant(msg, "acme")
				if _, err := h(msg); (err != nil) != (id == "fails") {
					t.Fatal(id, err)
				}
			}
		}
		b.expect(`orderPlaced {"Number":7} m1 acme`)
	})
}

func TestEventWithoutATransactionIsRefused(t *testing.T) {
	b := newBench(t, kit.SQLite(t))
	for _, ctx := range []context.Context{t.Context(), eventbus.WithTx(t.Context(), nil)} {
		if err := b.bus.Publish(ctx, orderPlaced{1}); !errors.Is(err, eventbus.ErrNoTransaction) {
			t.Error(err)
		}
	}
	b.expect("")
}

func TestMessagesThatNobodyCanHandleAreNotRetried(t *testing.T) {
	handled := 0
	marshaler := eventbus.Marshaler{CommandEventMarshaler: jsonMarshaler}
	h := eventbus.KnownEvents(marshaler, orderPlaced{})(func(msg *message.Message) ([]*message.Message, error) {
		handled++
		var event orderPlaced
		return nil, marshaler.Unmarshal(msg, &event)
	})
	fine, err := marshaler.Marshal(orderPlaced{1})
	kit.OK(t, err)
	broken, err := marshaler.Marshal(orderPlaced{1})
	kit.OK(t, err)
	broken.Payload = []byte("{")
	unknown := message.NewMessage("m3", nil)
	unknown.Metadata.Set("name", "orderLost")
	for _, c := range []struct {
		msg     *message.Message
		handled int
		want    string
	}{
		{fine, 1, ""},
		{broken, 2, "eventbus: the payload does not fit *eventbus.orderPlaced: unexpected end of JSON input"},
		{unknown, 2, `eventbus: no handler for event "orderLost", only for ["orderPlaced"]`},
		{message.NewMessage("m4", nil), 2, "eventbus: the message has no event name: was it published with the same marshaler?"},
	} {
		_, err := h(c.msg)
		if (err == nil) != (c.want == "") || err != nil && (err.Error() != c.want || chain.Of(err).Kind != chain.Permanent) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if handled != c.handled {
			t.Errorf("handled %d, want %d", handled, c.handled)
		}
	}
}

func TestMistakesAtTheStartPanic(t *testing.T) {
	for want, call := range map[string]func(){
		"eventbus: Publisher: outbox is nil: pass outbox.Publisher":       func() { eventbus.Publisher(nil) },
		"eventbus: KnownEvents: no events: all messages would be refused": func() { eventbus.KnownEvents(jsonMarshaler) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("%v, want %q", got, want)
				}
			}()
			call()
		}()
	}
}

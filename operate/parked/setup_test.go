package parked_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var ann = operate.Act{Actor: "ann", Why: "order 7 is void"}

const consumer, topic = "payments", "orders.placed"

// bench is a database that contains the tables of this library.
type bench struct {
	*kit.Bench

	messages   *parked.Messages
	store      *store.Store
	quarantine *quarantine.Entries
}

// eachDatabase runs test against each kind of database.
func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(newBench(t, db)) })
}

func newBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{})}
	var err error
	b.messages, err = parked.New(db.DB, operate.Config{Schema: b.Config})
	kit.OK(t, err)
	b.store, err = store.NewStore(db.DB, b.Config)
	kit.OK(t, err)
	b.quarantine, err = quarantine.New(db.DB, operate.Config{Schema: b.Config, ReplayToAbsent: true})
	kit.OK(t, err)
	return b
}

// msg returns a message with an ordering key, or without an ordering key if key is empty.
func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	return m
}

// seed stores messages in each state: one that is due, one that is due later after a
// failure, the head of a key, two messages held behind the head, and one each in
// quarantine, resolved and discarded. In an empty database the ids begin with 1.
func (b *bench) seed() {
	b.Helper()
	to := []store.Subscription{{Consumer: consumer, KeyOrder: true}}
	for _, m := range []*message.Message{
		msg("due", ""), msg("failed", ""), msg("head", "k"), msg("second", "k"), msg("third", "k"), msg("poison", ""), msg("done", ""),
	} {
		kit.OK(b, b.store.DeliverTo(b.Context(), topic, to, m))
	}
	kit.OK(b, b.store.DeliverTo(b.Context(), "stock", []store.Subscription{{Consumer: "other"}}, msg("gone", "")))
	b.Exec(`UPDATE once_parked SET priority_class = 'retry', due_at = ` + b.FromNow(time.Hour) + `, attempts = 3, error = 'no answer',
		first_failed_at = ` + b.FromNow(-time.Hour) + `, last_failed_at = ` + b.FromNow(-time.Minute) + ` WHERE message_id = 'failed'`)
	b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(time.Hour) + ` WHERE message_id = 'head'`)
	b.Exec(`UPDATE once_parked SET state = 'quarantined', reason = 'permanent', fingerprint = 'f' WHERE message_id = 'poison'`)
	b.Exec(`UPDATE once_parked SET state = 'resolved', finished_at = ` + b.FromNow(0) + ` WHERE message_id = 'done'`)
	b.Exec(`UPDATE once_parked SET state = 'discarded', finished_at = ` + b.FromNow(0) + ` WHERE message_id = 'gone'`)
}

func (b *bench) id(messageID string) int64 {
	b.Helper()
	return int64(b.Number(`SELECT id FROM once_parked WHERE message_id = $1`, messageID))
}

// states returns the state of each message that the filter selects.
func (b *bench) states(f operate.Filter) string {
	b.Helper()
	page, err := b.messages.List(b.Context(), f)
	kit.OK(b, err)
	all := []string{}
	for _, m := range page.Rows {
		all = append(all, m.MessageID+":"+m.State)
	}
	return strings.Join(all, " ")
}

func ids(messages []parked.Message) string {
	var all []string
	for _, m := range messages {
		all = append(all, m.MessageID)
	}
	return strings.Join(all, " ")
}

// claim claims the due messages of the consumer, as a subscription does.
func (b *bench) claim(lease time.Duration) map[string]store.Claimed {
	b.Helper()
	claimed, err := b.store.Claim(b.Context(), store.Select{
		Consumer: consumer, Topic: topic, Owner: "host/1/a", Limit: 10, Lease: lease, Order: store.BlockWhileQuarantined,
	})
	kit.OK(b, err)
	all := map[string]store.Claimed{}
	for _, c := range claimed {
		all[c.Message.UUID] = c
	}
	return all
}

// handle passes a message to dedup's middleware, as a delivery to the consumer would,
// and reports whether the handler was called.
func (b *bench) handle(m *message.Message, claim *store.Claim, during func()) (called bool) {
	b.Helper()
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Logger: kit.Logger(b.T)})
	kit.OK(b, err)
	m = m.Copy()
	m.SetContext(store.WithDelivery(b.Context(), &store.Delivery{Consumer: consumer, Topic: topic, Claim: claim}))
	_, err = inbox.Middleware(func(*message.Message) ([]*message.Message, error) {
		called = true
		if during != nil {
			during()
		}
		return nil, nil
	})(m)
	if err != nil && !errors.Is(err, store.ErrClaimLost) {
		b.Errorf("handle %s: %v", m.UUID, err)
	}
	return called
}

package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	outboxops "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var ann = operate.Act{Actor: "ann", Why: "order 7 is void"}

// bench is a database that contains the tables of this library.
type bench struct {
	*kit.Bench

	messages *outboxops.Messages
	letters  *dead.Letters
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
	b.messages, err = outboxops.New(db.DB, operate.Config{Schema: b.Config})
	kit.OK(t, err)
	b.letters, err = dead.New(db.DB, operate.Config{Schema: b.Config})
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

// publish commits messages to the outbox. In an empty database the positions begin with
// 1.
func (b *bench) publish(topic string, msgs ...*message.Message) {
	b.Helper()
	box, err := outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(b, err)
	kit.OK(b, box.InTx(b.Context(), b.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	}))
}

// seed writes messages in each state: due, backing off, delayed, the head of a blocked
// key, and two messages that wait for the head.
func (b *bench) seed() {
	b.Helper()
	b.publish("orders", msg("due", ""), msg("refused", ""), msg("later", ""))
	b.publish("stock", msg("head", "k"), msg("second", "k"), msg("third", "k"))
	b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(time.Hour) + `, failing_since = ` + b.FromNow(-time.Hour) + `, attempts = 3,
		last_error = 'no queue' WHERE message_id IN ('refused', 'head')`)
	b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(time.Hour) + ` WHERE message_id = 'later'`)
	b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		SELECT ordering_key, position, position, 'refused' FROM once_outbox WHERE message_id = 'head'`)
}

// lease gives all slots to a forwarder that does nothing.
func (b *bench) lease() {
	b.Helper()
	b.Exec(`UPDATE once_slots SET owner = 'idle', lease_until = ` + b.FromNow(time.Hour))
}

func (b *bench) id(messageID string) int64 {
	b.Helper()
	return int64(b.Number(`SELECT position FROM once_outbox WHERE message_id = $1`, messageID))
}

func (b *bench) left() string {
	b.Helper()
	page, err := b.messages.List(b.Context(), operate.Filter{})
	kit.OK(b, err)
	return ids(page.Rows)
}

func ids(messages []outboxops.Message) string {
	var all []string
	for _, m := range messages {
		all = append(all, m.MessageID)
	}
	return strings.Join(all, " ")
}

// dead returns the dead letters by their message ids.
func (b *bench) dead() map[string]dead.Letter {
	b.Helper()
	all := map[string]dead.Letter{}
	page, err := b.letters.List(b.Context(), operate.Filter{Limit: 100_000})
	kit.OK(b, err)
	for _, l := range page.Rows {
		all[l.MessageID] = l
	}
	return all
}

// refusal is the error of a publisher whose broker did not accept a message.
type refusal struct{ error }

func (refusal) Refused() bool { return true }

// publisher records the ids of the messages that it gets, and refuses messages of some
// topics.
type publisher struct {
	mu      sync.Mutex
	sent    []string
	refused string
}

func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if topic == p.refused {
		return refusal{errors.New("no queue")}
	}
	for _, m := range msgs {
		p.sent = append(p.sent, m.UUID)
	}
	return nil
}

func (p *publisher) Close() error { return nil }

func (p *publisher) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.sent...)
}

// forward runs a forwarder until the test ends.
func (b *bench) forward(p *publisher, config forwarder.Config) {
	b.Helper()
	config.Schema, config.PollMax, config.Logger = b.Config, 20*time.Millisecond, kit.Logger(b.T)
	f, err := forwarder.New(b.DB, p, config)
	kit.OK(b, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	b.Cleanup(func() {
		kit.OK(b, f.Close())
		kit.OK(b, <-ended)
	})
}

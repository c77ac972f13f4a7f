package trace_test

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// bench is a database with our tables.
type bench struct {
	*kit.Bench

	finder *trace.Finder
	parked *parkedrows.Store
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
	b.finder, err = trace.New(db.DB, b.Config)
	kit.OK(t, err)
	b.parked, err = parkedrows.NewStore(db.DB, b.Config)
	kit.OK(t, err)
	return b
}

// msg returns a message about an order. causedBy is the id of the message
// that caused it, or "".
func msg(id, order, causedBy string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	outbox.SetTenant(m, "acme")
	outbox.SetAggregate(m, "order", order, 1)
	outbox.SetEventType(m, "placed")
	if causedBy != "" {
		m.Metadata[meta.CausationID] = causedBy
	}
	return m
}

func (b *bench) publish(topic string, msgs ...*message.Message) {
	b.Helper()
	box, err := outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(b, err)
	kit.OK(b, box.InTx(b.Context(), b.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	}))
}

// never is the error of a broker that can never accept a message.
type never struct{ error }

func (never) Unacceptable() bool { return true }

type publisher struct{}

func (publisher) Publish(topic string, _ ...*message.Message) error {
	if topic == "bad" {
		return never{errors.New("too large")}
	}
	return nil
}
func (publisher) Close() error { return nil }

// forward runs a forwarder until the outbox is empty.
func (b *bench) forward() {
	b.Helper()
	f, err := forwarder.New(b.DB, publisher{}, forwarder.Config{Schema: b.Config, KeepSent: time.Hour, Logger: kit.Logger(b.T)})
	kit.OK(b, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	kit.Eventually(b, time.Minute, "the outbox is empty", func() bool {
		n := kit.One[int](b, b.DB, `SELECT COUNT(*) FROM once_outbox`)
		return n == 0
	})
	kit.OK(b, f.Close())
	kit.OK(b, <-ended)
}

func (b *bench) handled(consumer string, ids ...string) {
	b.Helper()
	for _, id := range ids {
		b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ($1, $2, $3)`, id, consumer, []byte{1})
	}
}

func (b *bench) quarantined(m *message.Message) int64 {
	b.Helper()
	id, err := b.parked.Quarantine(b.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders"}, m,
		parkedrows.Failure{Err: errors.New("card 17 is refused"), Reason: poison.ReasonExhausted, Attempts: 3}, nil)
	kit.OK(b, err)
	return id
}

func (b *bench) waits(consumer string, m *message.Message) {
	b.Helper()
	kit.OK(b, b.parked.Park(b.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: "orders"}, m,
		parkedrows.Failure{Err: errors.New("card 18 is refused"), Attempts: 2}, time.Hour))
}

func (b *bench) quarantine() *quarantine.Entries {
	b.Helper()
	q, err := quarantine.New(b.DB, operate.Config{Schema: b.Config, ReplayToAbsent: true})
	kit.OK(b, err)
	return q
}

func (b *bench) find(q trace.Query) trace.Answer {
	b.Helper()
	answer, err := b.finder.Find(b.Context(), q)
	kit.OK(b, err)
	return answer
}

func (b *bench) one(id string) trace.Message {
	b.Helper()
	answer := b.find(trace.Query{MessageID: id})
	if len(answer.Notes) != 0 {
		b.Fatalf("answer.Notes are %q, want none", answer.Notes)
	}
	if len(answer.Messages) != 1 {
		b.Fatalf("%d messages, want 1: %+v", len(answer.Messages), answer.Messages)
	}
	return answer.Messages[0]
}

// lines returns the events as lines, in their order.
func lines(m trace.Message) (all []string) {
	for _, e := range m.Events {
		line := strings.Join([]string{string(e.Place), e.Consumer, e.What, e.Reason, e.Error, e.Actor, e.Why}, "|")
		all = append(all, strings.TrimRight(regexp.MustCompile(`\|+`).ReplaceAllString(line, " "), " "))
	}
	return all
}

// ids returns the ids of messages. Before each id, it writes one dot for each level of
// Message.Depth.
func ids(messages []trace.Message) string {
	var all []string
	for _, m := range messages {
		all = append(all, strings.Repeat(".", m.Depth)+m.ID)
	}
	return strings.Join(all, " ")
}

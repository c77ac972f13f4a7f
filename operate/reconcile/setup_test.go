package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// bench is a sender and its consumers, each with its own database.
type bench struct {
	*testing.T

	sender, receiver place
	start            time.Time // beginning of the sent log, on a whole minute
}

// place is a database that contains the tables of this library.
type place struct {
	kit.Database

	t      *testing.T
	config schema.Config
}

const (
	topic  = "orders.placed"
	billed = "billing"
)

func newPlace(t *testing.T, db kit.Database) place {
	t.Helper()
	p := place{db, t, schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	kit.OK(t, schema.Up(t.Context(), db.DB, p.config))
	return p
}

// eachDatabase runs test with each combination of two kinds of databases.
func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	kinds := map[string]func(testing.TB) kit.Database{"postgres": kit.Postgres, "sqlite": kit.SQLite}
	for _, pair := range []string{"postgres to postgres", "sqlite to sqlite", "postgres to sqlite"} {
		from, to, _ := strings.Cut(pair, " to ")
		t.Run(pair, func(t *testing.T) {
			if from != to {
				kit.Long(t)
			}
			test(newBench(t, kinds[from](t), kinds[to](t)))
		})
	}
}

// newBench returns a bench with a sender and a receiver. In their databases, the first
// message was sent and handled five hours ago.
func newBench(t *testing.T, from, to kit.Database) *bench {
	t.Helper()
	b := &bench{T: t, start: floorMinute(time.Now().Add(-5 * time.Hour))}
	b.sender, b.receiver = newPlace(t, from), newPlace(t, to)
	b.sender.sent(topic, b.start, "first")
	b.receiver.handled(billed, b.start, "first")
	return b
}

func (p place) exec(query string, args ...any) {
	p.t.Helper()
	kit.Exec(p.t, p, query, args...)
}

// at returns the query parameter for the time t, in the form that the time columns of
// the database need.
func (p place) at(t time.Time) any {
	if p.config.Dialect == schema.SQLite {
		return t.UnixMilli()
	}
	return t.UTC()
}

// each executes a statement for every id, in one transaction. The database parses the
// statement once.
func (p place) each(query string, ids []string, args ...any) {
	p.t.Helper()
	tx := kit.Begin(p.t, p)
	defer func() { _ = tx.Rollback() }()
	statement, err := tx.PrepareContext(p.t.Context(), query)
	kit.OK(p.t, err)
	defer statement.Close()
	for _, id := range ids {
		kit.OK(p.t, kit.Err(statement.ExecContext(p.t.Context(), append([]any{id}, args...)...)))
	}
	kit.OK(p.t, tx.Commit())
}

func (p place) sent(topic string, at time.Time, ids ...string) {
	p.t.Helper()
	p.each(`INSERT INTO once_outbox_sent (message_id, topic, sent_at, created_at, position, payload, metadata)
		VALUES ($1, $2, $3, $3, 1, 'x', '{}')`, ids, topic, p.at(at))
}

func (p place) handled(consumer string, at time.Time, ids ...string) {
	p.t.Helper()
	p.each(`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ($1, $2, $3, 'x')`, ids, consumer, p.at(at))
}

func (p place) parked(state string, at time.Time, ids ...string) {
	p.t.Helper()
	p.each(`INSERT INTO once_parked (message_id, consumer, topic, state, created_at, due_at, digest, envelope)
		VALUES ($1, $2, '`+topic+`', $3, $4, $4, 'x', 'x')`, ids, billed, state, p.at(at))
}

func (b *bench) newSender(config SenderConfig) *Sender {
	b.Helper()
	config.Schema = b.sender.config
	if config.Topics == nil {
		config.Topics = []string{topic}
	}
	s, err := NewSender(b.sender.DB, config)
	kit.OK(b, err)
	return s
}

func (b *bench) newReceiver(config ReceiverConfig) *Receiver {
	b.Helper()
	config.Schema = b.receiver.config
	if config.Consumers == nil {
		config.Consumers = []string{billed}
	}
	r, err := NewReceiver(b.receiver.DB, config)
	kit.OK(b, err)
	return r
}

func (b *bench) compare() Report {
	b.Helper()
	reports, err := Compare(b.Context(), b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{}))
	kit.OK(b, err)
	if len(reports) != 1 {
		b.Fatalf("%d reports, want 1: %+v", len(reports), reports)
	}
	return reports[0]
}

func missingIDs(r Report) []string {
	ids := []string{}
	for _, m := range r.Missing {
		ids = append(ids, m.MessageID)
	}
	return ids
}

func phantomIDs(r Report) []string {
	ids := []string{}
	for _, p := range r.Phantoms {
		ids = append(ids, p.MessageID)
	}
	return ids
}

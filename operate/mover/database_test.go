package mover_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	stockforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

const patience = time.Minute

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	kit.Eventually(t, patience, what, cond)
}

// stock simulates a service that uses Watermill's own forwarder and its tables.
type stock struct {
	db      *sql.DB
	topic   string
	group   string
	tables  wsql.DefaultPostgreSQLSchema
	offsets wsql.DefaultPostgreSQLOffsetsAdapter
}

// withDefaults returns a service that uses Watermill's own forwarder with default
// settings. Its database also contains the outbox.
func withDefaults(t *testing.T, db *sql.DB) stock {
	t.Helper()
	s := stock{db: db, topic: "forwarder_topic"}
	s.create(t)
	return s
}

func (s stock) subscriber(t *testing.T) *wsql.Subscriber {
	t.Helper()
	sub, err := wsql.NewSubscriber(s.db, wsql.SubscriberConfig{
		ConsumerGroup: s.group, SchemaAdapter: s.tables, OffsetsAdapter: s.offsets,
		PollInterval: 10 * time.Millisecond, RetryInterval: 10 * time.Millisecond, ResendInterval: 10 * time.Millisecond,
	}, nil)
	kit.OK(t, err)
	return sub
}

func (s stock) create(t *testing.T) {
	t.Helper()
	kit.OK(t, schema.Up(t.Context(), s.db, schema.Config{}))
	kit.OK(t, s.subscriber(t).SubscribeInitialize(s.topic))
}

// publish writes messages in a transaction with the publisher of Watermill's own
// forwarder.
func (s stock) publish(t *testing.T, tx *sql.Tx, topic string, msgs ...*message.Message) {
	t.Helper()
	stored, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: s.tables}, nil)
	kit.OK(t, err)
	events := stockforwarder.NewPublisher(stored, stockforwarder.PublisherConfig{ForwarderTopic: s.topic})
	kit.OK(t, events.Publish(topic, msgs...))
}

// open begins a transaction, writes messages in it, and leaves it open.
func (s stock) open(t *testing.T, topic string, msgs ...*message.Message) *sql.Tx {
	t.Helper()
	tx, release, err := dialect.Begin(t.Context(), s.db, nil)
	kit.OK(t, err)
	t.Cleanup(release)
	s.publish(t, tx, topic, msgs...)
	return tx
}

// put writes messages in a transaction, and commits it.
func (s stock) put(t *testing.T, topic string, msgs ...*message.Message) {
	t.Helper()
	tx, release, err := dialect.Begin(t.Context(), s.db, nil)
	kit.OK(t, err)
	defer release()
	s.publish(t, tx, topic, msgs...)
	kit.OK(t, tx.Commit())
}

// forward runs Watermill's own forwarder until the test calls stop.
func (s stock) forward(t *testing.T, publisher message.Publisher) (stop func()) {
	t.Helper()
	fwd, err := stockforwarder.NewForwarder(s.subscriber(t), publisher, watermill.NopLogger{},
		stockforwarder.Config{ForwarderTopic: s.topic})
	kit.OK(t, err)
	ended := kit.Go(func() error { return fwd.Run(context.Background()) })
	<-fwd.Running()
	stop = sync.OnceFunc(func() {
		kit.OK(t, fwd.Close())
		kit.OK(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// inbox is a publisher that records the ids of the published messages.
type inbox struct {
	mu  sync.Mutex
	all []string
}

func (i *inbox) Publish(_ string, msgs ...*message.Message) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, msg := range msgs {
		i.all = append(i.all, msg.UUID)
	}
	return nil
}

func (i *inbox) Close() error { return nil }

func (i *inbox) ids() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.all...)
}

func newMover(t *testing.T, db *sql.DB, config mover.Config) *mover.Mover {
	t.Helper()
	m, err := mover.New(db, config)
	kit.OK(t, err)
	return m
}

// moves waits until the given number of rows was moved. An open transaction of another
// test on the same server may delay this.
func moves(t *testing.T, m *mover.Mover, rows int) {
	t.Helper()
	moved := 0
	eventually(t, "the rows are moved", func() bool {
		n, err := m.Move(t.Context())
		kit.OK(t, err)
		moved += n
		return moved >= rows
	})
	if moved != rows {
		t.Fatalf("moved is %d, want %d", moved, rows)
	}
}

// ids returns the only column of the rows that query returns.
func ids(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	return kit.Lines(t, db, query)
}

func outboxIDs(t *testing.T, db *sql.DB) []string {
	t.Helper()
	return ids(t, db, `SELECT message_id FROM once_outbox ORDER BY position`)
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	kit.Exec(t, db, query, args...)
}

func count(t *testing.T, db *sql.DB, query string) int {
	t.Helper()
	return kit.One[int](t, db, query)
}

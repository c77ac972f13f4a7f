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
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = time.Minute

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	testkit.Eventually(t, patience, what, cond)
}

// stock simulates a service that uses Watermill's own forwarder and its tables.
type stock struct {
	db      *sql.DB
	topic   string
	group   string
	tables  wsql.DefaultPostgreSQLSchema
	offsets wsql.DefaultPostgreSQLOffsetsAdapter
}

// withDefaults returns a stock service with default settings. Its database also
// contains the outbox.
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
	require.NoError(t, err)
	return sub
}

func (s stock) create(t *testing.T) {
	t.Helper()
	require.NoError(t, schema.Up(t.Context(), s.db, schema.Config{}))
	require.NoError(t, s.subscriber(t).SubscribeInitialize(s.topic))
}

// publish writes messages in a transaction, as a stock writer does.
func (s stock) publish(t *testing.T, tx *sql.Tx, topic string, msgs ...*message.Message) {
	t.Helper()
	stored, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: s.tables}, nil)
	require.NoError(t, err)
	events := stockforwarder.NewPublisher(stored, stockforwarder.PublisherConfig{ForwarderTopic: s.topic})
	require.NoError(t, events.Publish(topic, msgs...))
}

// open begins a transaction, writes messages in it, and leaves it open.
func (s stock) open(t *testing.T, topic string, msgs ...*message.Message) *sql.Tx {
	t.Helper()
	tx, release, err := dialect.Begin(t.Context(), s.db, nil)
	require.NoError(t, err)
	t.Cleanup(release)
	s.publish(t, tx, topic, msgs...)
	return tx
}

// put writes messages in a transaction, and commits it.
func (s stock) put(t *testing.T, topic string, msgs ...*message.Message) {
	t.Helper()
	tx, release, err := dialect.Begin(t.Context(), s.db, nil)
	require.NoError(t, err)
	defer release()
	s.publish(t, tx, topic, msgs...)
	require.NoError(t, tx.Commit())
}

// forward runs the stock forwarder until the test calls stop.
func (s stock) forward(t *testing.T, publisher message.Publisher) (stop func()) {
	t.Helper()
	fwd, err := stockforwarder.NewForwarder(s.subscriber(t), publisher, watermill.NopLogger{},
		stockforwarder.Config{ForwarderTopic: s.topic})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(context.Background()) }()
	<-fwd.Running()
	stop = sync.OnceFunc(func() {
		require.NoError(t, fwd.Close())
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// inbox is a publisher that records the ids of the messages.
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
	require.NoError(t, err)
	return m
}

// moves waits until the given number of rows was moved. An open transaction of another
// test on the same server may delay this.
func moves(t *testing.T, m *mover.Mover, rows int) {
	t.Helper()
	moved := 0
	eventually(t, "the rows are moved", func() bool {
		n, err := m.Move(t.Context())
		require.NoError(t, err)
		moved += n
		return moved >= rows
	})
	require.Equal(t, rows, moved)
}

// ids returns the only column of the rows that query returns.
func ids(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		all = append(all, id)
	}
	require.NoError(t, rows.Err())
	return all
}

func outboxIDs(t *testing.T, db *sql.DB) []string {
	t.Helper()
	return ids(t, db, `SELECT message_id FROM once_outbox ORDER BY position`)
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

func count(t *testing.T, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestForwardsInOrderAndDeletes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const many = 1500
		var msgs []*message.Message
		var want []string
		for i := range many {
			m := msg(fmt.Sprintf("id-%04d", i), "")
			outbox.SetTenant(m, "acme")
			msgs = append(msgs, m)
			want = append(want, m.UUID)
		}
		put(t, db, config, "orders/placed", msgs...)
		b := newBroker()
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)

		require.True(t, slices.Equal(want, b.ids(nil)), "in the order of their positions")
		require.Len(t, b.stored, many, "each once")
		require.Equal(t, "orders/placed", b.stored[0].topic)
		require.Equal(t, "payload of id-0000", b.stored[0].payload)
		metadata := maps.Clone(b.stored[0].metadata)
		delete(metadata, meta.CreatedAt)
		delete(metadata, meta.PublishedAt)
		require.Equal(t, message.Metadata{outbox.TenantID: "acme"}, metadata)
	})
}

func TestForwardsToAnyPublisher(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var msgs []*message.Message
		for i := range 500 {
			msgs = append(msgs, msg(fmt.Sprint(i), ""))
		}
		put(t, db, config, "t", msgs...)
		b := newBroker().answering(func(delivery) error { takes(time.Millisecond); return nil })
		cfg := quick(config)
		cfg.Workers = 7
		start(t, db, b, cfg)
		drained(t, db)
		require.Len(t, b.stored, 500)
		require.LessOrEqual(t, b.most, 7)
		require.Greater(t, b.most, 1)
	})
}

func TestHintWakes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
		b := newBroker()
		f := start(t, db, b, cfg)
		meanwhile(200 * time.Millisecond) // the forwarder reads once when it starts
		put(t, db, config, "t", msg("1", ""))
		f.Hint()
		eventually(t, "it is sent", func() bool { return b.has("1") })
	})
}

func TestDelayedByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		due := time.Now().Add(300 * time.Millisecond)
		var early atomic.Bool
		b := newBroker().answering(func(d delivery) error {
			if d.id == "later" && time.Now().Before(due) {
				early.Store(true)
			}
			return nil
		})
		start(t, db, b, quick(config))
		later, never := msg("later", ""), msg("never", "")
		outbox.SetDueAt(later, due)
		outbox.SetDueAt(never, time.Now().Add(time.Hour))
		put(t, db, config, "t", later, never, msg("now", ""))
		eventually(t, "what is not delayed is sent", func() bool { return b.has("now") })
		eventually(t, "what is due is sent", func() bool { return b.has("later") })
		require.False(t, early.Load(), "not before it is due")
		require.False(t, b.has("never"))
		eventually(t, "only that one is left", func() bool { return pending(t, db) == 1 })
	})
}

func TestBytesAreBounded(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		for i := range 30 {
			m := msg(fmt.Sprint(i), "")
			m.Payload = []byte(strings.Repeat("x", 100<<10))
			put(t, db, config, "t", m)
		}
		release := make(chan struct{})
		b := newBroker().answering(func(delivery) error { <-release; return nil })
		cfg := quick(config)
		cfg.BufferBytes = 1 << 20
		start(t, db, &pipelined{broker: b}, cfg)
		inFlight := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.flying }
		eventually(t, "the buffer is full", func() bool { return inFlight() >= 8 })
		meanwhile(50 * time.Millisecond) // time to read more, which it must not do
		require.LessOrEqual(t, inFlight(), 12, "1 MiB and at most one message more")
		close(release)
		drained(t, db)
		require.Len(t, b.stored, 30)
	})
}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyPostgres(t).DB
	f, err := forwarder.New(db, newBroker(), forwarder.Config{})
	require.NoError(t, err)
	err = f.Run(t.Context())
	require.ErrorIs(t, err, schema.ErrMissing)
	require.ErrorContains(t, err, "forwarder: ")
	require.ErrorContains(t, err, "schema.Up")
	require.NoError(t, f.Close())
}

// With a database of another kind, Run must return an error, because waiting cannot
// help.
func TestADatabaseOfTheOtherKind(t *testing.T) {
	f, err := forwarder.New(testkit.SQLite(t).DB, newBroker(), forwarder.Config{})
	require.NoError(t, err)
	require.ErrorIs(t, f.Run(t.Context()), schema.ErrDialect)
}

func TestRunAndCloseInAnyOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		f, err := forwarder.New(db, newBroker(), quick(config))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
		require.ErrorIs(t, f.Run(t.Context()), forwarder.ErrClosed)

		f, err = forwarder.New(db, newBroker(), quick(config))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		<-f.Running()
		require.ErrorIs(t, f.Run(t.Context()), forwarder.ErrRunTwice)
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
		require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner IS NOT NULL`), "the lease is given back")
	})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	_, err := forwarder.New(nil, nil, forwarder.Config{
		BatchSize: -1, Window: -1, BufferBytes: -1, Workers: -1, MaxAttempts: -1, PollMin: -1, PollMax: -1,
		Lease: time.Millisecond, CloseTimeout: -1, AfterDead: 7, Schema: schema.Config{Prefix: "-"},
	})
	for _, name := range []string{
		"db", "publisher", "BatchSize", "Window", "BufferBytes", "Workers", "MaxAttempts", "PollMin",
		"Lease", "CloseTimeout", "AfterDead", "Prefix",
	} {
		require.ErrorContains(t, err, name)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		f, err := forwarder.New(db, newBroker(), quick(config))
		require.NoError(t, err)
		stats, err := f.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, forwarder.Stats{}, stats)

		later := msg("later", "")
		outbox.SetDueAt(later, time.Now().Add(time.Hour))
		put(t, db, config, "t", msg("1", ""), msg("2", "k"), later)
		exec(t, db, `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 2, 2, 'refused')`)
		meanwhile(20 * time.Millisecond) // so that the message has an age
		stats, err = f.Stats(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, stats.Oldest, 20*time.Millisecond)
		require.Less(t, stats.Oldest, time.Minute)
		stats.Oldest = 0
		require.Equal(t, forwarder.Stats{Pending: 3, Deferred: 1, BlockedKeys: 1}, stats)
	})
}

// A forwarded message says when it was stored and when it was published, whatever a
// handler has copied from another message. The row has neither.
func TestForwardedMessagesHaveTheirTimes(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		began := time.Now().Truncate(time.Millisecond)
		m := msg("1", "")
		m.Metadata.Set(meta.CreatedAt, "2001-01-01T00:00:00.000Z")
		m.Metadata.Set(meta.PublishedAt, "2001-01-01T00:00:00.000Z")
		put(t, db, config, "t", m)
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE CAST(metadata AS text) = '{}'`))
		b := newBroker()
		start(t, db, b, quick(config))
		drained(t, db)

		created, ok := meta.Stamped(b.stored[0].metadata[meta.CreatedAt])
		require.True(t, ok, "%v", b.stored[0].metadata)
		published, ok := meta.Stamped(b.stored[0].metadata[meta.PublishedAt])
		require.True(t, ok, "%v", b.stored[0].metadata)
		require.False(t, created.Before(began), "stored at %v, began at %v", created, began)
		require.False(t, published.Before(created), "stored at %v, published at %v", created, published)
		require.False(t, published.After(time.Now()))
	})
}

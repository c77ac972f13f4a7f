package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// All messages must be sent although connections to the database are killed while the
// forwarder reads and deletes.
func TestConnectionsThatAreKilled(t *testing.T) {
	t.Parallel()
	database := testkit.Postgres(t)
	db, killer := database.DB, again(t, database) // the test kills the forwarder's connections, but not its own
	require.NoError(t, schema.Up(t.Context(), db, schema.Config{}))
	var flowing atomic.Bool
	flowing.Store(true)
	b := newBroker()
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 20, 10
	start(t, db, &pipelined{broker: b}, cfg)

	var killed atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for flowing.Load() {
			var n int
			if err := killer.QueryRow(`SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND query NOT LIKE '%terminate%'
				  AND (query LIKE 'DELETE FROM "once_outbox"%' OR query LIKE '%"once_outbox" AS o%'
				       OR query LIKE 'UPDATE "once_slots"%')`).Scan(&n); err != nil {
				t.Error(err)
				return
			}
			killed.Add(int64(n))
			takes(10 * time.Millisecond)
		}
	}()
	sent := 0
	eventually(t, "many are killed", func() bool {
		if sent < 2000 || pending(t, killer) < 1000 { // writes nothing while the forwarder pauses after a kill
			var msgs []*message.Message
			for range 100 {
				msgs = append(msgs, msg(fmt.Sprintf("%06d", sent), fmt.Sprint("key", sent%9)))
				sent++
			}
			put(t, killer, schema.Config{}, "t", msgs...)
		}
		return killed.Load() > 10 && sent >= 2000
	})
	flowing.Store(false)
	<-done
	drained(t, killer)
	require.Len(t, b.ids(nil), sent)
	require.Zero(t, count(t, killer, `SELECT COUNT(*) FROM once_outbox_dead`))
}

// private returns a pool on a server that no other test uses, with the tables created.
func private(t *testing.T) (*servers.Postgres, *sql.DB) {
	t.Helper()
	server := testkit.PrivatePostgres(t, "autovacuum=off") // autovacuum would take transaction ids
	db, err := sql.Open("postgres", server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	require.NoError(t, schema.Up(t.Context(), db, schema.Config{}))
	return server, db
}

func TestADatabaseThatIsKilled(t *testing.T) {
	t.Parallel()
	server, db := private(t)
	release := make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		if d.id == "in flight" {
			<-release
		}
		return nil
	})
	log := &testkit.Logs{}
	cfg := quick(schema.Config{})
	cfg.Logger = log
	start(t, db, &pipelined{broker: b}, cfg)
	put(t, db, schema.Config{}, "t", msg("in flight", "key"), msg("behind", "key"))
	eventually(t, "it is in flight", func() bool { return b.tries("in flight") == 1 })

	server.Kill()
	eventually(t, "it has been noticed", func() bool { return log.Has("could not be read") })
	close(release)
	eventually(t, "it could not be deleted", func() bool { return log.Has("could not be recorded") })
	meanwhile(200 * time.Millisecond) // so that there are some more failures
	require.NoError(t, server.Restart(t.Context()))
	put(t, db, schema.Config{}, "t", msg("after", ""))
	drained(t, db)
	require.True(t, b.has("in flight", "behind", "after"))
	require.Equal(t, 1, b.tries("in flight"))
	eventually(t, "it says that it is over", func() bool { return log.Has("could be read again") })
	require.Equal(t, 1, log.Count("could not be read"), "once, not at every try")
	require.Equal(t, 1, log.Count("could not be recorded"))
}

func TestADatabaseThatIsFrozen(t *testing.T) {
	t.Parallel()
	server, db := private(t)
	b := newBroker()
	cfg := quick(schema.Config{})
	cfg.Lease = time.Minute // a read that has begun waits this long for its result
	cfg.CloseTimeout = 300 * time.Millisecond
	f, err := forwarder.New(db, b, cfg)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	put(t, db, schema.Config{}, "t", msg("1", ""))
	drained(t, db)

	server.Freeze()
	defer server.Thaw()
	meanwhile(100 * time.Millisecond) // so that a read has begun
	began := time.Now()
	_ = f.Close()
	require.NoError(t, <-ended)
	require.Less(t, time.Since(began), 3*cfg.CloseTimeout+slack)
}

func TestADatabaseThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	server, db := private(t)
	put(t, db, schema.Config{}, "t", msg("1", ""))
	server.Kill()
	b := newBroker()
	f, err := forwarder.New(db, b, quick(schema.Config{}))
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	select {
	case <-f.Running():
		require.Fail(t, "runs without a database")
	case err := <-ended:
		require.Fail(t, "gives up", err)
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, server.Restart(t.Context()))
	<-f.Running()
	drained(t, db)
	require.NoError(t, f.Close())
	require.NoError(t, <-ended)
}

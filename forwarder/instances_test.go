package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// again opens a database once more, with a pool of its own.
func again(t *testing.T, db testkit.Database) *sql.DB {
	t.Helper()
	pool, err := sql.Open(db.Dialect, db.DSN)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func TestTrap18_TheSecondInstanceWaits(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		first, second := newBroker(), newBroker()
		one := start(t, db, first, quick(config))
		start(t, db, second, quick(config))
		for i := range 50 {
			put(t, db, config, "t", msg(fmt.Sprint(i), ""))
		}
		drained(t, db)
		require.Len(t, first.stored, 50)
		require.Empty(t, second.stored)

		require.NoError(t, one.Close())
		put(t, db, config, "t", msg("next", ""))
		closed := time.Now()
		eventually(t, "the second takes over", func() bool { return second.has("next") })
		require.Less(t, time.Since(closed), 2*time.Second, "without waiting for the lease")
	})
}

// A process that dies gives nothing back. Here its database connections die.
func TestTheSecondInstanceTakesOverFromADeadOne(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		cfg := quick(config)
		cfg.Lease = time.Second
		cfg.CloseTimeout = 100 * time.Millisecond

		pool := again(t, db)
		release := make(chan struct{})
		first := newBroker().answering(func(delivery) error { <-release; return nil })
		doomed, err := forwarder.New(pool, &pipelined{broker: first}, cfg)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- doomed.Run(context.Background()) }()
		put(t, db.DB, config, "t", msg("1", "key"), msg("2", "key"), msg("3", ""))
		eventually(t, "messages are in flight", func() bool { return first.tries("1") == 1 && first.tries("3") == 1 })

		require.NoError(t, pool.Close())
		died := time.Now()
		second := newBroker()
		start(t, db.DB, second, cfg)
		drained(t, db.DB)
		require.Less(t, time.Since(died), cfg.Lease+2*time.Second)
		require.True(t, second.has("1", "2", "3"))

		close(release) // they were stored after all, and cannot be deleted
		require.ErrorContains(t, doomed.Close(), "2 confirmed messages")
		require.NoError(t, <-ended)
		require.Zero(t, first.tries("2"), "nothing is sent without the lease")
	})
}

func TestALostLease(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		early, late := make(chan struct{}), make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			switch {
			case d.attempt == 1 && d.id == "refused":
				<-early
				return refusal{errors.New("no")}
			case d.attempt == 1 && d.id == "unsure":
				<-late
				return unsure{errors.New("who knows")}
			case d.id == "sure":
				<-late
			}
			return nil
		})
		log := &logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		put(t, db, config, "t", msg("unsure", "key"), msg("behind", "key"), msg("refused", ""), msg("sure", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("unsure")+b.tries("refused")+b.tries("sure") == 3 })

		forever := `now() + interval '1 hour'`
		if config.Dialect == schema.SQLite {
			forever = `unixepoch() * 1000 + 3600000`
		}
		exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = `+forever)
		stolen := time.Now()
		eventually(t, "it notices", func() bool { return log.has("taken over") })
		require.Less(t, time.Since(stolen), cfg.Lease, "at the next renewal")
		close(early)
		put(t, db, config, "t", msg("new", ""))
		meanwhile(100 * time.Millisecond) // it would do what it should not
		require.Zero(t, b.tries("behind")+b.tries("new"))
		require.Equal(t, 0, attempts(t, db, "refused"), "the new owner decides about it")

		exec(t, db, `UPDATE once_slots SET owner = NULL`)
		eventually(t, "it is the owner again", func() bool { return log.count("INFO Forwarding") == 2 })
		meanwhile(100 * time.Millisecond) // it would do what it should not
		require.Zero(t, b.tries("behind"), "its predecessor is still in flight")
		close(late)
		drained(t, db)
		require.Equal(t, 1, b.tries("sure"), "what was confirmed is deleted")
		require.Equal(t, []string{"unsure", "behind"}, b.ids(func(d delivery) bool { return d.key == "key" }))
		require.True(t, b.has("new", "refused"))
		require.Empty(t, b.overlaps)
	})
}

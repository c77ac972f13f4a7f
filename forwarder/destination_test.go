package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// named is a publisher that returns the name of its destination.
type named struct {
	*broker

	destination string
}

func (n named) Destination() string { return n.destination }

// to returns a publisher whose destination is the given one. If destination is "", the
// publisher does not name its destination.
func to(b *broker, destination string) message.Publisher {
	if destination == "" {
		return b
	}
	return named{b, destination}
}

// background runs a forwarder in the background and returns a channel with the result
// of Run.
func background(t *testing.T, db *sql.DB, publisher message.Publisher, config forwarder.Config) <-chan error {
	t.Helper()
	f, err := forwarder.New(db, publisher, config)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return ended
}

func ends(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		require.Fail(t, "Run does not end")
		return nil
	}
}

// atWork inserts the row of an instance that seems to run, without an actual instance.
func atWork(t *testing.T, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, lite bool, destination string, seconds int,
) {
	t.Helper()
	until := fmt.Sprintf(`now() + interval '%d second'`, seconds)
	if lite {
		until = fmt.Sprintf(`unixepoch() * 1000 + %d`, seconds*1000)
	}
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO once_forwarders (owner, lease_until, destination)
		VALUES ('another', %s, '%s') ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until`, until, destination))
	require.NoError(t, err)
}

// Trap 88. Run of an instance with another destination must return an error.
func TestAnInstanceWithAnotherDestinationDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, second, text string }{
		"known": {
			"rabbit a", "rabbit b",
			`forwarder: another destination: instance "another" sends this outbox to "rabbit a", ` +
				`and this instance would send it to "rabbit b"; ` +
				`to change the broker, stop all forwarders of the outbox, then start them with the new one; ` +
				`if both are the same broker, set forwarder.Config.Destination to "rabbit a" here`,
		},
		"the first does not name its own": {
			"", "rabbit b",
			`forwarder: another destination: instance "another" sends this outbox to a destination that its publisher does not name, ` +
				`and this instance would send it to "rabbit b"; ` +
				`to change the broker, stop all forwarders of the outbox, then start them with the new one; ` +
				`if both are the same broker, set forwarder.Config.Destination of both to the same name`,
		},
		"the second does not name its own": {
			"rabbit a", "",
			`forwarder: another destination: instance "another" sends this outbox to "rabbit a", ` +
				`and this instance would send it to a destination that its publisher does not name; ` +
				`to change the broker, stop all forwarders of the outbox, then start them with the new one; ` +
				`if both are the same broker, set forwarder.Config.Destination to "rabbit a" here`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				cfg := quick(config)
				log := &testkit.Logs{}
				cfg.Logger = log
				atWork(t, db, isSQLite(t, db), c.first, 3600)
				b := newBroker()
				ended := background(t, db, to(b, c.second), cfg)
				put(t, db, config, "t", msg("1", ""))
				eventually(t, "it sees the other", func() bool { return log.Has("INFO Another instance has another destination, waiting") })
				require.Equal(t, c.second == "", log.Has("INFO The publisher does not name its destination"))

				atWork(t, db, isSQLite(t, db), c.first, 3602) // like an instance that renews its lease
				err := ends(t, ended)
				require.ErrorIs(t, err, forwarder.ErrOtherDestination)
				require.EqualError(t, err, c.text)
				require.Equal(t, 1, log.Count("ERROR Another instance forwards to another destination, forwarding ends"))
				require.Equal(t, 1, log.Count("Another instance has another destination, waiting"))
				require.Zero(t, b.tries("1"))
				require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_forwarders`), "it is not among those at work")
			})
		})
	}
}

// When the name of the broker changes, an instance that was stopped or has died does
// not keep a new instance from running.
func TestTheDestinationChangesWhenNobodyElseIsAtWork(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		old := start(t, db, to(newBroker(), "rabbit a"), cfg)
		require.NoError(t, old.Close())

		log := &testkit.Logs{}
		cfg.Logger = log
		second := start(t, db, to(newBroker(), "rabbit b"), cfg)
		require.Equal(t, 1, log.Count("INFO The destination of the outbox has changed", "from=rabbit a", "to=rabbit b"))
		start(t, db, to(newBroker(), "rabbit b"), cfg)
		require.Equal(t, 1, log.Count("has changed"))
		require.NoError(t, second.Close())
		require.Equal(t, 1, log.Count("has changed"))
	})
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		atWork(t, db, isSQLite(t, db), "rabbit a", 3) // like a process that has died
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.Logger = log
		start(t, db, to(newBroker(), "rabbit b"), cfg)
		require.Equal(t, 1, log.Count("INFO Another instance has another destination, waiting", "other_instance=another",
			"other_destination=rabbit a", "destination=rabbit b"))
		require.Equal(t, 1, log.Count("INFO The destination of the outbox has changed", "from=rabbit a", "to=rabbit b"))
	})
}

// If two publishers return different names for the same broker, the configured
// Destination is used instead.
func TestTheConfiguredDestinationCounts(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.Lease = 9 * time.Second
		cfg.Destination = "the cluster"
		start(t, db, to(newBroker(), "rabbit a"), cfg)
		start(t, db, to(newBroker(), "rabbit b"), cfg)
		shares(t, db, 32, 32)
		cfg.Destination = ""
		start(t, db, to(newBroker(), "the cluster"), cfg)
		shares(t, db, 20, 22, 22)
	})
}

// If two instances with different destinations start at the same moment, only one of
// them may run. In PostgreSQL, the first one is stopped before it commits its row, so
// that the second one cannot see the row.
func TestTwoDestinationsStartAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := func() {}
		if !isSQLite(t, db) {
			lock, err := db.Begin()
			require.NoError(t, err)
			defer func() { _ = lock.Rollback() }()
			_, err = lock.Exec(`SELECT FROM once_slots FOR UPDATE`)
			require.NoError(t, err)
			release = func() { require.NoError(t, lock.Rollback()) }
		}
		waits := func(n int) {
			if !isSQLite(t, db) {
				eventually(t, fmt.Sprint(n, " wait for a lock"), func() bool {
					return n <= count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
						WHERE wait_event_type = 'Lock' AND datname = current_database()`)
				})
			}
		}
		cfg := quick(config)
		cfg.Lease = 9 * time.Second
		here, there := newBroker(), newBroker()
		first := background(t, db, to(here, "rabbit a"), cfg)
		waits(1)
		second := background(t, db, to(there, "rabbit b"), cfg)
		waits(2)
		release()
		var err error
		select {
		case err = <-first:
		case err = <-second:
		case <-time.After(patience):
		}
		require.ErrorIs(t, err, forwarder.ErrOtherDestination)
		for i := range 100 {
			put(t, db, config, "t", msg(fmt.Sprint(i), ""))
		}
		drained(t, db)
		require.NotEqual(t, len(here.ids(nil)) == 0, len(there.ids(nil)) == 0, "one of them gets all")
	})
}

// If an instance with an ended lease renews it at the moment when an instance with
// another destination joins, the new instance must not run.
func TestADestinationThatComesBackAtThisMoment(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	atWork(t, db, false, "rabbit a", -1)
	renewal, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = renewal.Rollback() }()
	atWork(t, renewal, false, "rabbit a", 3600)
	log := &testkit.Logs{}
	cfg := quick(schema.Config{})
	cfg.Logger = log
	ended := background(t, db, to(newBroker(), "rabbit b"), cfg)
	eventually(t, "it waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 1
	})
	require.NoError(t, renewal.Commit())
	eventually(t, "it sees the other", func() bool { return log.Has("Another instance has another destination, waiting") })
	atWork(t, db, false, "rabbit a", 3601)
	require.ErrorIs(t, ends(t, ended), forwarder.ErrOtherDestination)
}

// A process that was suspended for longer than its lease must stop when another
// instance with another destination has taken over.
func TestAnInstanceThatComesBackGivesWay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.Logger = log
		b := newBroker()
		ended := background(t, db, to(b, "rabbit a"), cfg)
		put(t, db, config, "t", msg("before", ""))
		drained(t, db)

		taken, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = taken.Rollback() }()
		_, err = taken.ExecContext(t.Context(), `DELETE FROM once_forwarders`)
		require.NoError(t, err)
		atWork(t, taken, isSQLite(t, db), "rabbit b", 3600)
		require.NoError(t, taken.Commit())
		eventually(t, "it sees the other", func() bool { return log.Has("Another instance has another destination, waiting") })
		put(t, db, config, "t", msg("after", ""))
		atWork(t, db, isSQLite(t, db), "rabbit b", 3602)
		require.ErrorIs(t, ends(t, ended), forwarder.ErrOtherDestination)
		require.Zero(t, b.tries("after"))
		require.Equal(t, 1, pending(t, db))
		require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner IS NOT NULL`), "the other one can have them")
	})
}

func TestADestinationIsChecked(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	for destination, text := range map[string]string{
		"amqp://ann:secret@rabbit/": `forwarder: Destination contains a user name or a password (not shown here); leave it out`,
		"a\x00b":                    `forwarder: Destination is "a\x00b": not UTF-8 without NUL of at most 1000 bytes`,
		strings.Repeat("x", 1001): `forwarder: Destination is "` + strings.Repeat("x", 100) +
			`": not UTF-8 without NUL of at most 1000 bytes`,
	} {
		_, err := forwarder.New(db, newBroker(), forwarder.Config{Destination: destination})
		require.EqualError(t, err, text)
		_, err = forwarder.New(db, to(newBroker(), destination), forwarder.Config{})
		require.EqualError(t, err, strings.Replace(text, "Destination", "the publisher's Destination", 1))
	}
}

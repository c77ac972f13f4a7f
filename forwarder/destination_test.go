package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// named is a publisher that returns the name of its destination.
type named struct {
	*broker

	destination string
}

func (n named) Destination() string { return n.destination }

// sendingTo returns a publisher with the given destination. If destination is "", the
// publisher does not name its destination.
func sendingTo(b *broker, destination string) message.Publisher {
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
	kit.OK(t, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	t.Cleanup(func() {
		kit.OK(t, f.Close())
	})
	return ended
}

func ends(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("Run does not end")
		return nil
	}
}

// atWork inserts the row of an instance that seems to run, without an actual instance.
func atWork(t *testing.T, db kit.Querier, lite bool, destination string, seconds int) {
	t.Helper()
	until := fmt.Sprintf(`now() + interval '%d second'`, seconds)
	if lite {
		until = fmt.Sprintf(`unixepoch() * 1000 + %d`, seconds*1000)
	}
	kit.Exec(t, db, fmt.Sprintf(`INSERT INTO once_forwarders (owner, lease_until, destination)
		VALUES ('another', %s, '%s') ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until`, until, destination))
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
				log := &kit.Logs{}
				cfg.Logger = log
				atWork(t, db, isSQLite(t, db), c.first, 3600)
				b := newBroker()
				ended := background(t, db, sendingTo(b, c.second), cfg)
				put(t, db, config, "t", msg("1", ""))
				eventually(t, "it sees the other", func() bool { return log.Has("INFO Another instance has another destination, waiting") })
				unnamed := log.CountLine("INFO The publisher does not name its destination, so a forwarder to another broker is not noticed; " +
					"set forwarder.Config.Destination")
				if unnamed != map[string]int{"": 1}[c.second] {
					t.Fatalf("the missing name is logged %d times: %q", unnamed, log.Lines())
				}

				atWork(t, db, isSQLite(t, db), c.first, 3602) // like an instance that renews its lease
				err := ends(t, ended)
				if !errors.Is(err, forwarder.ErrOtherDestination) {
					t.Fatalf("got %v, want ErrOtherDestination", err)
				}
				if err == nil || err.Error() != c.text {
					t.Fatalf("got %v, want %q", err, c.text)
				}
				for _, line := range []string{
					"ERROR Another instance forwards to another destination, forwarding ends err=" + c.text,
					"INFO Another instance has another destination, waiting until its lease is renewed or ends destination=" + c.second +
						" other_destination=" + c.first + " other_instance=another",
				} {
					if got := log.CountLine(line); got != 1 {
						t.Fatalf("%q is logged %d times, want once: %q", line, got, log.Lines())
					}
				}
				b.triedTimes(t, "1", 0)
				if got := count(t, db, `SELECT COUNT(*) FROM once_forwarders`); got != 1 {
					t.Fatalf("count is %d, want 1: it is not among those at work", got)
				}
			})
		})
	}
}

// When the name of the broker changes, an instance that was stopped or has died does
// not keep a new instance from running.
func TestTheDestinationChangesWhenNobodyElseIsAtWork(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		old := start(t, db, sendingTo(newBroker(), "rabbit a"), cfg)
		kit.OK(t, old.Close())

		log := &kit.Logs{}
		cfg.Logger = log
		second := start(t, db, sendingTo(newBroker(), "rabbit b"), cfg)
		if got := log.CountLine("INFO The destination of the outbox has changed from=rabbit a to=rabbit b"); got != 1 {
			t.Fatalf(`log.CountLine("INFO The destination of the outbox has changed from=rabbit a to=rabbit b") is %d, want 1`, got)
		}
		start(t, db, sendingTo(newBroker(), "rabbit b"), cfg)
		if got := log.Count("has changed"); got != 1 {
			t.Fatalf(`log.Count("has changed") is %d, want 1`, got)
		}
		kit.OK(t, second.Close())
		if got := log.Count("has changed"); got != 1 {
			t.Fatalf(`log.Count("has changed") is %d, want 1`, got)
		}
	})
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		atWork(t, db, isSQLite(t, db), "rabbit a", 3) // like a process that has died
		log := &kit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.Logger = log
		start(t, db, sendingTo(newBroker(), "rabbit b"), cfg)
		const waits = "INFO Another instance has another destination, waiting until its lease is renewed or ends " +
			"destination=rabbit b other_destination=rabbit a other_instance=another"
		if got := log.CountLine(waits); got != 1 {
			t.Fatalf("%q is logged %d times, want once: %q", waits, got, log.Lines())
		}
		if got := log.CountLine("INFO The destination of the outbox has changed from=rabbit a to=rabbit b"); got != 1 {
			t.Fatalf(`log.CountLine("INFO The destination of the outbox has changed from=rabbit a to=rabbit b") is %d, want 1`, got)
		}
	})
}

// If two publishers return different names for the same broker, the configured
// Destination is used instead.
func TestTheConfiguredDestinationCounts(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.Lease = 9 * time.Second
		cfg.Destination = "the cluster"
		start(t, db, sendingTo(newBroker(), "rabbit a"), cfg)
		start(t, db, sendingTo(newBroker(), "rabbit b"), cfg)
		shares(t, db, 32, 32)
		cfg.Destination = ""
		start(t, db, sendingTo(newBroker(), "the cluster"), cfg)
		shares(t, db, 20, 22, 22)
	})
}

// If two instances with different destinations start at the same moment, only one of
// them may run. In PostgreSQL, the test delays the commit of the first instance, so
// that the second instance cannot see its row.
func TestTwoDestinationsStartAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := func() {}
		if !isSQLite(t, db) {
			lock := kit.Begin(t, db)
			defer func() { _ = lock.Rollback() }()
			kit.OK(t, kit.Err(lock.Exec(`SELECT FROM once_slots FOR UPDATE`)))
			release = func() {
				kit.OK(t, lock.Rollback())
			}
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
		first := background(t, db, sendingTo(here, "rabbit a"), cfg)
		waits(1)
		second := background(t, db, sendingTo(there, "rabbit b"), cfg)
		waits(2)
		release()
		var err error
		select {
		case err = <-first:
		case err = <-second:
		case <-time.After(patience):
		}
		if !errors.Is(err, forwarder.ErrOtherDestination) {
			t.Fatalf("got %v, want ErrOtherDestination", err)
		}
		for i := range 100 {
			put(t, db, config, "t", msg(fmt.Sprint(i), ""))
		}
		drained(t, db)
		if got, want := len(there.ids(nil)) == 0, len(here.ids(nil)) == 0; got == want {
			t.Fatalf("len(there.ids(nil)) == 0 is %v, want another: one of them gets all", got)
		}
	})
}

// An instance may renew its lease after the lease has ended. If an instance with
// another destination joins at this moment, the joining instance must not run.
func TestADestinationThatComesBackAtThisMoment(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	atWork(t, db, false, "rabbit a", -1)
	renewal := kit.Begin(t, db)
	defer func() { _ = renewal.Rollback() }()
	atWork(t, renewal, false, "rabbit a", 3600)
	log := &kit.Logs{}
	cfg := quick(schema.Config{})
	cfg.Logger = log
	ended := background(t, db, sendingTo(newBroker(), "rabbit b"), cfg)
	eventually(t, "it waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 1
	})
	kit.OK(t, renewal.Commit())
	eventually(t, "it sees the other", func() bool { return log.Has("Another instance has another destination, waiting") })
	atWork(t, db, false, "rabbit a", 3601)
	if err := ends(t, ended); !errors.Is(err, forwarder.ErrOtherDestination) {
		t.Fatalf("ends: got %v, want ErrOtherDestination", err)
	}
}

// A process that was suspended for longer than its lease must stop when another
// instance with another destination has taken over.
func TestAnInstanceThatComesBackGivesWay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		log := &kit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.Logger = log
		b := newBroker()
		ended := background(t, db, sendingTo(b, "rabbit a"), cfg)
		put(t, db, config, "t", msg("before", ""))
		drained(t, db)

		taken := kit.Begin(t, db)
		defer func() { _ = taken.Rollback() }()
		kit.Exec(t, taken, `DELETE FROM once_forwarders`)
		atWork(t, taken, isSQLite(t, db), "rabbit b", 3600)
		kit.OK(t, taken.Commit())
		eventually(t, "it sees the other", func() bool { return log.Has("Another instance has another destination, waiting") })
		put(t, db, config, "t", msg("after", ""))
		atWork(t, db, isSQLite(t, db), "rabbit b", 3602)
		if err := ends(t, ended); !errors.Is(err, forwarder.ErrOtherDestination) {
			t.Fatalf("ends: got %v, want ErrOtherDestination", err)
		}
		b.triedTimes(t, "after", 0)
		if got := pending(t, db); got != 1 {
			t.Fatalf("pending is %d, want 1", got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner IS NOT NULL`); got != 0 {
			t.Fatalf("count is %d, want 0: the other one can have them", got)
		}
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
		if err == nil || err.Error() != text {
			t.Fatalf("got %v, want %q", err, text)
		}
		want := strings.Replace(text, "Destination", "the publisher's Destination", 1)
		if _, err := forwarder.New(db, sendingTo(newBroker(), destination), forwarder.Config{}); err == nil || err.Error() != want {
			t.Fatalf("New: got %v, want %q", err, want)
		}
	}
}

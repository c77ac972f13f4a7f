package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// secondPool opens another pool of connections to the same database.
func secondPool(t *testing.T, db kit.Database) *sql.DB {
	t.Helper()
	pool, err := sql.Open(db.Dialect, db.DSN)
	kit.OK(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func slotsOf(t *testing.T, db *sql.DB) (shares []int) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT COUNT(owner) FROM once_slots WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1`)
	kit.OK(t, err)
	defer rows.Close()
	for rows.Next() {
		var share int
		kit.OK(t, rows.Scan(&share))
		shares = append(shares, share)
	}
	kit.OK(t, rows.Err())
	return shares
}

func shares(t *testing.T, db *sql.DB, want ...int) {
	t.Helper()
	eventually(t, fmt.Sprint("slots are shared as ", want), func() bool { return slices.Equal(want, slotsOf(t, db)) })
}

// punctual reports whether no lease was lost, according to the log. If the machine is
// too slow to renew a lease in time, the lease is lost, and messages may be sent twice.
func punctual(log *kit.Logs) bool { return !log.Has("has run out") && !log.Has("taken over") }

func TestTrap18_InstancesShareTheSlots(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.Lease = 9 * time.Second
		log := &kit.Logs{}
		cfg.Logger = log
		first, second := newBroker(), newBroker()
		one := start(t, db, first, cfg)
		shares(t, db, 64)
		start(t, db, second, cfg)
		shares(t, db, 32, 32)
		for i := range 200 {
			put(t, db, config, "t", msg(fmt.Sprint(i), ""))
		}
		drained(t, db)
		if punctual(log) {
			if got := append(first.ids(nil), second.ids(nil)...); len(got) != 200 {
				t.Fatalf("len(append) is %d, want 200: each is sent by one of them: %q", len(got), got)
			}
		}
		if got := first.ids(nil); len(got) == 0 {
			t.Fatal("first.ids(nil) is empty")
		}
		if got := second.ids(nil); len(got) == 0 {
			t.Fatal("second.ids(nil) is empty")
		}

		kit.OK(t, one.Close())
		if got := slotsOf(t, db); len(got) != 1 {
			t.Fatalf("len(slotsOf) is %d, want 1: nobody has to wait for its lease: %v", len(got), got)
		}
		for i := range 50 {
			put(t, db, config, "t", msg(fmt.Sprint("next", i), ""))
		}
		drained(t, db)
		shares(t, db, 64)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_forwarders`)
	})
}

// Instances start and stop while messages are written. If nothing fails, a slot changes
// its owner only while none of its messages is in flight, so that no message is sent
// twice.
func TestInstancesComeAndGo(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const keys = 20
		b := newBroker().answering(func(d delivery) error {
			if strings.HasSuffix(d.id, "0") {
				takeTime(200 * time.Millisecond) // so that some message is always in flight
			}
			return nil
		})
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		log := &kit.Logs{}
		cfg.Logger = log

		box, err := outbox.New(outbox.Config{Schema: config})
		kit.OK(t, err)
		written, stop := make(chan int), make(chan struct{})
		go func() {
			n := 0
			defer func() { written <- n }()
			for ; ; n++ {
				var msgs []*message.Message
				for key := range keys {
					msgs = append(msgs, msg(fmt.Sprintf("%d/%d", key, n), fmt.Sprint("key", key)))
				}
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				err := box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
					return events.Publish("t", msgs...)
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		start(t, db, &pipelined{broker: b}, cfg)
		for range 2 {
			more := start(t, db, &pipelined{broker: b}, cfg)
			shares(t, db, 32, 32)
			third := start(t, db, &pipelined{broker: b}, cfg)
			shares(t, db, 20, 22, 22)
			kit.OK(t, more.Close())
			kit.OK(t, third.Close())
			shares(t, db, 64)
		}
		close(stop)
		n := <-written
		drained(t, db)
		if punctual(log) {
			if len(b.overlaps) != 0 {
				t.Fatalf("b.overlaps are %q, want none", b.overlaps)
			}
			if len(b.stored) != n*keys {
				t.Fatalf("len(b.stored) is %d, want %d: nothing went twice: %+v", len(b.stored), n*keys, b.stored)
			}
		}
		for key := range keys {
			var want []string
			for i := range n {
				want = append(want, fmt.Sprintf("%d/%d", key, i))
			}
			if got := b.ids(func(d delivery) bool { return d.key == fmt.Sprint("key", key) }); !reflect.DeepEqual(got, want) {
				t.Fatalf("b.ids is %q, want %q", got, want)
			}
		}
	})
}

// An instance that dies does not give its slots back. Another instance must take over
// when the lease has ended. Here the connections of the instance are cut.
func TestTheSecondInstanceTakesOverFromADeadOne(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		cfg := quick(config)
		cfg.Lease = time.Second
		cfg.CloseTimeout = 100 * time.Millisecond

		pool := secondPool(t, db)
		release := make(chan struct{})
		first := &pipelined{broker: newBroker().answering(func(delivery) error { <-release; return nil })}
		doomed, err := forwarder.New(pool, first, cfg)
		kit.OK(t, err)
		ended := kit.Go(func() error { return doomed.Run(context.Background()) })
		put(t, db.DB, config, "t", msg("1", "key"), msg("2", "key"), msg("3", ""))
		eventually(t, "messages are in flight", func() bool { return first.tries("1") == 1 && first.tries("3") == 1 })

		kit.OK(t, pool.Close())
		died := time.Now()
		second := newBroker()
		cfg.CloseTimeout = patience
		start(t, db.DB, second, cfg)
		drained(t, db.DB)
		if got := time.Since(died); got >= cfg.Lease+2*time.Second+slack {
			t.Fatalf("time.Since(died) is %v, want less than %v", got, cfg.Lease+2*time.Second+slack)
		}
		if !second.has("1", "2", "3") {
			t.Fatal(`second.has("1", "2", "3") returned false`)
		}

		close(release) // the broker has stored these messages after all, but their rows cannot be deleted
		first.answering.Wait()
		if err := doomed.Close(); err == nil || !strings.Contains(err.Error(), "2 confirmed messages") {
			t.Fatalf(`Close: got %v, want an error with "2 confirmed messages"`, err)
		}
		kit.OK(t, <-ended)
		if got := first.tries("2"); got != 0 {
			t.Fatalf(`first.tries("2") is %d, want 0: nothing is sent without the lease`, got)
		}
	})
}

// Trap 18. Instances that die when they have just started are not given any slots.
func TestTrap18_AnInstanceThatDiesAtItsStartGetsNoSlots(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		cfg := quick(kit.Tables(t, db))
		cfg.Lease = 6 * time.Second
		cfg.CloseTimeout = 100 * time.Millisecond
		start(t, db.DB, newBroker(), cfg)
		shares(t, db.DB, 64)
		for n := range 3 {
			pool := secondPool(t, db)
			doomed, err := forwarder.New(pool, newBroker(), cfg)
			kit.OK(t, err)
			ended := kit.Go(func() error { return doomed.Run(context.Background()) })
			eventually(t, "it has started", func() bool { return kit.One[int](t, db, `SELECT COUNT(*) FROM once_forwarders`) == n+2 })
			kit.OK(t, pool.Close())
			t.Cleanup(func() { _, _ = doomed.Close(), <-ended })
		}
		renewals, last := 0, ""
		eventually(t, "the lease is renewed twice", func() bool {
			if got := slotsOf(t, db.DB); !slices.Equal(got, []int{64}) {
				t.Fatalf("slots are shared as %d, want all 64 with the instance that lives", got)
			}
			if until := kit.One[string](t, db, `SELECT MAX(lease_until) FROM once_slots`); until != last {
				renewals, last = renewals+1, until
			}
			return renewals > 2
		})
	})
}

// Another instance may take a slot after this instance has found the slot free, and
// before its update. This instance must then not take the slot.
func TestASlotIsTakenAtTheSameMoment(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	other := kit.Begin(t, db)
	defer func() { _ = other.Rollback() }()
	kit.OK(t, kit.Err(other.Exec(`UPDATE once_slots SET owner = 'another', lease_until = now() + interval '1 hour' WHERE slot = 7`)))
	cfg := quick(schema.Config{})
	f, err := forwarder.New(db, newBroker(), cfg)
	kit.OK(t, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	defer func() {
		kit.OK(t, f.Close())
		kit.OK(t, <-ended)
	}()
	eventually(t, "it waits for the slot", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 1
	})
	kit.OK(t, other.Commit())
	<-f.Running()
	kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_slots WHERE slot = 7 AND owner = 'another'`)
	kit.WantNumber(t, db, 63, `SELECT COUNT(*) FROM once_slots WHERE owner <> 'another'`)
}

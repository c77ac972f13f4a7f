package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/slot"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// again opens another pool for the same database.
func again(t *testing.T, db testkit.Database) *sql.DB {
	t.Helper()
	pool, err := sql.Open(db.Dialect, db.DSN)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func slotsOf(t *testing.T, db *sql.DB) (shares []int) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT COUNT(owner) FROM once_slots WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var share int
		require.NoError(t, rows.Scan(&share))
		shares = append(shares, share)
	}
	require.NoError(t, rows.Err())
	return shares
}

func shares(t *testing.T, db *sql.DB, want ...int) {
	t.Helper()
	eventually(t, fmt.Sprint("slots are shared as ", want), func() bool { return slices.Equal(want, slotsOf(t, db)) })
}

// punctual reports that no lease was lost. On a machine that is too slow to renew it in
// time, a lease is lost, and messages are sent twice.
func punctual(log *testkit.Logs) bool { return !log.Has("has run out") && !log.Has("taken over") }

func TestTrap18_InstancesShareTheSlots(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.Lease = 9 * time.Second
		log := &testkit.Logs{}
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
			require.Len(t, append(first.ids(nil), second.ids(nil)...), 200, "each is sent by one of them")
		}
		require.NotEmpty(t, first.ids(nil))
		require.NotEmpty(t, second.ids(nil))

		require.NoError(t, one.Close())
		require.Len(t, slotsOf(t, db), 1, "nobody has to wait for its lease")
		for i := range 50 {
			put(t, db, config, "t", msg(fmt.Sprint("next", i), ""))
		}
		drained(t, db)
		shares(t, db, 64)
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_forwarders`))
	})
}

// Instances start and stop while messages are written. If nothing fails, a slot changes
// its owner only while none of its messages is in flight, so that no message is sent
// twice.
func TestInstancesComeAndGo(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const keys = 20
		b := newBroker().answering(func(d delivery) error {
			if strings.HasSuffix(d.id, "0") {
				takes(200 * time.Millisecond) // so that some message is always in flight
			}
			return nil
		})
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		log := &testkit.Logs{}
		cfg.Logger = log

		box, err := outbox.New(outbox.Config{Schema: config})
		require.NoError(t, err)
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
				if !assert.NoError(t, box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
					return events.Publish("t", msgs...)
				})) {
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
			require.NoError(t, more.Close())
			require.NoError(t, third.Close())
			shares(t, db, 64)
		}
		close(stop)
		n := <-written
		drained(t, db)
		if punctual(log) {
			require.Empty(t, b.overlaps)
			require.Len(t, b.stored, n*keys, "nothing went twice")
		}
		for key := range keys {
			var want []string
			for i := range n {
				want = append(want, fmt.Sprintf("%d/%d", key, i))
			}
			require.Equal(t, want, b.ids(func(d delivery) bool { return d.key == fmt.Sprint("key", key) }))
		}
	})
}

// An instance that dies does not give its slots back, and another one must take over
// when the lease has ended. Here the connections of the instance are cut.
func TestTheSecondInstanceTakesOverFromADeadOne(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		cfg := quick(config)
		cfg.Lease = time.Second
		cfg.CloseTimeout = 100 * time.Millisecond

		pool := again(t, db)
		release := make(chan struct{})
		first := &pipelined{broker: newBroker().answering(func(delivery) error { <-release; return nil })}
		doomed, err := forwarder.New(pool, first, cfg)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- doomed.Run(context.Background()) }()
		put(t, db.DB, config, "t", msg("1", "key"), msg("2", "key"), msg("3", ""))
		eventually(t, "messages are in flight", func() bool { return first.tries("1") == 1 && first.tries("3") == 1 })

		require.NoError(t, pool.Close())
		died := time.Now()
		second := newBroker()
		cfg.CloseTimeout = patience
		start(t, db.DB, second, cfg)
		drained(t, db.DB)
		require.Less(t, time.Since(died), cfg.Lease+2*time.Second+slack)
		require.True(t, second.has("1", "2", "3"))

		close(release) // the broker has stored these messages after all, but their rows cannot be deleted
		first.answering.Wait()
		require.ErrorContains(t, doomed.Close(), "2 confirmed messages")
		require.NoError(t, <-ended)
		require.Zero(t, first.tries("2"), "nothing is sent without the lease")
	})
}

func TestALostLease(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
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
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 15 * time.Second // long, because a busy machine may renew it late
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		put(t, db, config, "t", msg("unsure", "key"), msg("behind", "key"), msg("refused", ""), msg("sure", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("unsure")+b.tries("refused")+b.tries("sure") == 3 })

		forever := `now() + interval '1 hour'`
		if config.Dialect == schema.SQLite {
			forever = `unixepoch() * 1000 + 3600000`
		}
		exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = `+forever)
		eventually(t, "it notices", func() bool { return log.Has("taken over") })
		require.False(t, log.Has("has run out"), "at the next renewal")
		close(early)
		put(t, db, config, "t", msg("new", ""))
		meanwhile(100 * time.Millisecond) // time to send something, which it must not do
		require.Zero(t, b.tries("behind")+b.tries("new"))
		require.Equal(t, 0, attempts(t, db, "refused"), "the new owner decides about it")

		exec(t, db, `UPDATE once_slots SET owner = NULL`)
		meanwhile(1500 * time.Millisecond) // time to send something, which it must not do
		require.Zero(t, b.tries("behind"), "its predecessor is still in flight")
		close(late)
		drained(t, db)
		require.Equal(t, 1, b.tries("sure"), "what was confirmed is deleted")
		require.GreaterOrEqual(t, log.Count("INFO Forwarding"), 2, "it is the owner again")
		require.Equal(t, []string{"unsure", "behind"}, b.ids(func(d delivery) bool { return d.key == "key" }))
		require.True(t, b.has("new", "refused"))
		require.Empty(t, b.overlaps)
	})
}

// After a lost lease the instance must take its slots again, except the slot with a
// message in flight whose topic does not confirm.
func TestALostLeaseWhileATopicDoesNotAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		answer := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.id == "silent" {
				<-answer
			}
			return nil
		})
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.StallTimeout = time.Second
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		proceed := sync.OnceFunc(func() { close(answer) })
		t.Cleanup(proceed)
		put(t, db, config, "stuck", msg("silent", "key"))
		eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=stuck") })
		exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = `+now(t, db))
		eventually(t, "it notices", func() bool { return !punctual(log) })
		put(t, db, config, "t", msg("behind", "key"))
		var others []*message.Message
		for i := range 20 {
			id := fmt.Sprint("other", i)
			if slot.Of(id, "") != slot.Of("", "key") {
				others = append(others, msg(id, ""))
			}
		}
		put(t, db, config, "t", others...)
		eventually(t, "the others are sent", func() bool { return pending(t, db) == 2 })
		require.Zero(t, b.tries("behind"))
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner = 'another'`),
			"another instance could have the slot in which a message is unsettled")
		proceed()
		drained(t, db)
		require.Equal(t, []string{"silent", "behind"}, b.ids(func(d delivery) bool { return d.key == "key" }))
		require.Equal(t, 1, b.tries("silent"))
		shares(t, db, 64)
	})
}

// If another instance takes a slot at the moment between the check that the slot is
// free and the update, this instance must not take it.
func TestASlotIsTakenAtTheSameMoment(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	other, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = other.Rollback() }()
	_, err = other.Exec(`UPDATE once_slots SET owner = 'another', lease_until = now() + interval '1 hour' WHERE slot = 7`)
	require.NoError(t, err)
	cfg := quick(schema.Config{})
	f, err := forwarder.New(db, newBroker(), cfg)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	defer func() { require.NoError(t, f.Close()); require.NoError(t, <-ended) }()
	eventually(t, "it waits for the slot", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 1
	})
	require.NoError(t, other.Commit())
	<-f.Running()
	require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_slots WHERE slot = 7 AND owner = 'another'`))
	require.Equal(t, 63, count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner <> 'another'`))
}

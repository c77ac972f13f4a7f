package forwarding

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// Log lines of the forwarder. Each kind of work has one line for its failure, and one
// for its first success after that.
const (
	notRead, readAgain         = "The outbox could not be read, trying again", "The outbox could be read again"
	notRecorded, recordedAgain = "Outcomes could not be recorded, trying again", "Outcomes could be recorded again"
	notRenewed, renewedAgain   = "The lease could not be renewed, trying again", "The lease could be renewed again"
)

// told waits until each failure that was logged has ended. It fails the test if a
// failure was logged more than once, or if one of the given failures was not logged.
func (f *flow) told(failures ...string) {
	f.Helper()
	for _, pair := range [][2]string{{notRead, readAgain}, {notRecorded, recordedAgain}, {notRenewed, renewedAgain}} {
		n := f.log.Count(pair[0])
		if n > 1 || n == 0 && slices.Contains(failures, pair[0]) {
			f.Errorf("%q was logged %d times:\n%s", pair[0], n, strings.Join(f.log.Lines(), "\n"))
		}
		f.eventually(pair[1], func() bool { return f.log.Count(pair[1]) == n })
	}
}

// silent fails the test if a failure or the end of a failure was logged.
func (f *flow) silent() {
	f.Helper()
	for _, line := range []string{notRead, readAgain, notRecorded, recordedAgain, notRenewed, renewedAgain} {
		if n := f.log.Count(line); n != 0 {
			f.Errorf("%q was logged %d times", line, n)
		}
	}
}

// lock locks rows of the outbox until the test calls unlock.
func (f *flow) lock(ids ...int) (unlock func()) {
	f.Helper()
	tx, release, err := dialect.Begin(f.Context(), f.db, nil)
	must(f.T, err)
	f.Cleanup(release)
	for _, id := range ids {
		_, err = tx.ExecContext(f.Context(), `SELECT FROM once_outbox WHERE message_id = $1 FOR UPDATE`, fmt.Sprintf("%06d", id))
		must(f.T, err)
	}
	return release
}

const deleteWaits = `pg_stat_activity
	WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DELETE FROM "once_outbox"%'`

// Another transaction locks rows in a different order than the forwarder deletes them. The
// forwarder backs off, tries again, and logs nothing.
func TestForwarderBacksOffAfterADeadlock(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	f.put(50)
	first := f.lock(0) // more and more confirmed messages wait for the locked row
	tx, release, err := dialect.Begin(t.Context(), f.db, nil)
	must(t, err)
	defer release()
	_, err = tx.ExecContext(t.Context(), `SET LOCAL deadlock_timeout = '1min'`)
	must(t, err)
	_, err = tx.ExecContext(t.Context(), `SELECT FROM once_outbox WHERE message_id IN ('000024', '000049') FOR UPDATE`)
	must(t, err)

	f.forward(openDB(t, database.DSN+"&deadlock_timeout=2s"), toQueues(f.url), unhurried(f.log))
	f.eventually("the forwarder waits", func() bool { return f.count(deleteWaits) > 0 })
	channel := f.admin()
	f.eventually("every message without an unconfirmed predecessor is in the queue", func() bool {
		return f.waiting(channel, f.queue) > 20
	})
	first()
	f.eventually("the forwarder waits for the other transaction", func() bool {
		return f.count(`once_outbox`) < 50 && f.count(deleteWaits) > 0 ||
			f.count(deleteWaits+` AND query_start < now() - interval '1 second'`) > 0
	})
	_, err = tx.ExecContext(t.Context(), `SELECT FROM once_outbox FOR UPDATE`)
	must(t, err)
	f.eventually("the database has found the deadlock", func() bool {
		return f.count(`pg_stat_database WHERE datname = current_database() AND deadlocks > 0`) > 0
	})
	release()
	if copies := f.complete(); copies != 0 {
		t.Errorf("%d duplicates of confirmed messages", copies)
	}
	f.silent()
}

// Deletions fail because of contention first, and then because the connection is lost.
// Only the lost connection is logged.
func TestContentionHidesNoOutage(t *testing.T) {
	t.Parallel()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	f.put(10)
	unlock := f.lock(0)
	f.forward(openDB(t, database.DSN+"&lock_timeout=100ms"), toQueues(f.url), unhurried(f.log))
	for range 3 {
		f.eventually("the deletion waits", func() bool { return f.count(deleteWaits) > 0 })
		f.eventually("the deletion backs off", func() bool { return f.count(deleteWaits) == 0 })
	}
	f.silent()
	f.eventually("it is terminated", func() bool { return f.count(`(SELECT pg_terminate_backend(pid) FROM `+deleteWaits+`) AS killed`) > 0 })
	f.eventually("the lost connection is logged", func() bool { return f.log.Count(notRecorded) == 1 })
	unlock()
	f.complete()
	f.told(notRecorded)
}

// Two forwarders use a database whose default isolation level is serializable, while
// other transactions change their rows all the time. The forwarders get no errors.
func TestSerializableIsolation(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	address, p := through(t, database.DSN, func(server string) *proxy { return newProxy(t, server, postgresMessage) })
	var conflicts atomic.Int64
	p.cut(func(m relayed) action {
		if !m.toServer && m.bytes[0] == 'E' && bytes.Contains(m.bytes, []byte("C40001\x00")) {
			conflicts.Add(1)
		}
		return pass
	})
	cfg := quick(f.log)
	cfg.Lease = 15 * time.Second // after a third of the lease, the instances have shared the slots
	for range 2 {
		f.forward(openDB(t, address+"&default_transaction_isolation=serializable"), toQueues(f.url), cfg)
	}
	changes := 0
	f.during(func() {
		f.eventually("other transactions make many changes", func() bool {
			tx, release, err := dialect.Begin(t.Context(), f.db, nil)
			must(t, err)
			defer release()
			for _, query := range []string{`UPDATE once_outbox SET last_error = 'seen'`, `UPDATE once_slots SET owner = owner WHERE slot < 5`} {
				if _, err := tx.ExecContext(t.Context(), query); err != nil {
					return false // this transaction failed because of contention; try again
				}
			}
			<-time.After(20 * time.Millisecond)
			must(t, tx.Commit())
			changes++
			return changes == 100
		})
	})
	f.complete()
	f.silent()
	if n := conflicts.Load(); n > 0 {
		t.Errorf("%d conflicts", n)
	}
}

// If a handler keeps the only connection for longer than the lease, the forwarder
// continues afterwards.
func TestForwarderSurvivesAnExhaustedPool(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	pool := openDB(t, database.DSN)
	pool.SetMaxOpenConns(1)
	cfg := quick(f.log)
	cfg.Lease = 3 * time.Second
	f.forward(pool, toQueues(f.url), cfg)
	f.put(10)
	f.drained()
	f.during(func() {
		conn, err := pool.Conn(t.Context())
		must(t, err)
		defer conn.Close()
		f.eventually("the lease has run out", func() bool { return f.log.Count("The lease has run out") > 0 })
		<-time.After(cfg.Lease) // so that the forwarder fails several times
	})
	f.complete()
	f.told(notRenewed)
}

// Trap 27. The server becomes a replica, and another server is promoted. Connections
// that were opened before the address changes stay with the replica, which accepts no
// writes. The forwarder must close them, because new connections reach the primary.
func TestForwarderLeavesAReplicaAtTheOldAddress(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	old, promoted := kit.PrivatePostgres(t), kit.PrivatePostgres(t)
	f := newFlow(t, openDB(t, promoted.DSN("postgres")), kit.Rabbit(t).URL)
	other := openDB(t, old.DSN("postgres"))
	must(t, schema.Up(t.Context(), other, schema.Config{}))
	var data string
	must(t, other.QueryRowContext(t.Context(), `SHOW data_directory`).Scan(&data))
	must(t, other.Close())

	address, p := through(t, old.DSN("postgres"), func(server string) *proxy { return newProxy(t, server, postgresMessage) })
	cfg := quick(f.log)
	cfg.Lease = 3 * time.Second
	f.forward(openDB(t, address), toQueues(f.url), cfg)
	old.Stop()
	must(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	restart(t, old)
	f.eventually("the lease has run out", func() bool { return f.log.Count("The lease has run out") > 0 })
	<-time.After(time.Second) // so that the forwarder connects to the replica

	p.lead(promoted.Address())
	f.put(100)
	f.complete()
	f.told(notRenewed)
}

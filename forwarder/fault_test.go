package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/schema"
)

// All messages must be sent although connections to the database are killed while the
// forwarder reads and deletes.
func TestConnectionsThatAreKilled(t *testing.T) {
	t.Parallel()
	database := kit.Postgres(t)
	db, killer := database.DB, secondPool(t, database) // the test kills the forwarder's connections, but not its own
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
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
			takeTime(10 * time.Millisecond)
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
	if got := b.ids(nil); len(got) != sent {
		t.Fatalf("len(b.ids(nil)) is %d, want %d: %q", len(got), sent, got)
	}
	kit.WantNumber(t, killer, 0, `SELECT COUNT(*) FROM once_outbox_dead`)
}

// private returns a server that no other test uses, and a pool of connections to it. It
// creates the tables.
func private(t *testing.T) (*servers.Postgres, *sql.DB) {
	t.Helper()
	server := kit.PrivatePostgres(t, stillServer)
	return server, pool(t, server, "postgres")
}

const stillServer = "autovacuum=off" // autovacuum would take transaction ids

// twoServers contains the servers of alone that no test uses now. Nil is a server that is not
// started yet.
var twoServers = func() chan *servers.Postgres {
	all := make(chan *servers.Postgres, 2)
	all <- nil
	all <- nil
	return all
}()

// alone returns a pool of connections to a new database with tables. Until the test has
// ended, no other test uses the server, so nobody else takes transaction ids there.
// Tests with alone use two servers in turn, because the start of a server takes more than a
// second of CPU time. So a test must not stop the server.
func alone(t *testing.T) *sql.DB {
	t.Helper()
	server := <-twoServers
	t.Cleanup(func() { twoServers <- server })
	if server == nil {
		var err error
		server, err = servers.StartPostgres(context.WithoutCancel(t.Context()), servers.PostgresConfig{Settings: []string{stillServer}})
		if errors.Is(err, servers.ErrNotInstalled) {
			kit.Without(t, err)
		}
		kit.OK(t, err)
		kit.AtEnd(server.Close)
	}
	admin, err := sql.Open("postgres", server.DSN("postgres"))
	kit.OK(t, err)
	defer admin.Close()
	name := fmt.Sprint("test", lastAlone.Add(1))
	exec(t, admin, `CREATE DATABASE `+name)
	return pool(t, server, name)
}

// lastAlone numbers the databases of alone.
var lastAlone atomic.Int64

// pool opens a database of a server, and creates the tables.
func pool(t *testing.T, server *servers.Postgres, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", server.DSN(database))
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	return db
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
	log := &kit.Logs{}
	cfg := quick(schema.Config{})
	cfg.Logger = log
	start(t, db, &pipelined{broker: b}, cfg)
	put(t, db, schema.Config{}, "t", msg("in flight", "key"), msg("behind", "key"))
	eventually(t, "it is in flight", func() bool { return b.tries("in flight") == 1 })

	server.Kill()
	eventually(t, "it has been noticed", func() bool { return log.Has("could not be read") })
	close(release)
	eventually(t, "it could not be deleted", func() bool { return log.Has("could not be recorded") })
	giveTime(200 * time.Millisecond) // so that there are some more failures
	kit.OK(t, server.Restart(t.Context()))
	put(t, db, schema.Config{}, "t", msg("after", ""))
	drained(t, db)
	if !b.has("in flight", "behind", "after") {
		t.Fatal(`b.has("in flight", "behind", "after") returned false`)
	}
	b.triedTimes(t, "in flight", 1)
	eventually(t, "it says that it is over", func() bool { return log.Has("could be read again") })
	if got := log.Count("could not be read"); got != 1 {
		t.Fatalf(`log.Count("could not be read") is %d, want 1: once, not at every try`, got)
	}
	if got := log.Count("could not be recorded"); got != 1 {
		t.Fatalf(`log.Count("could not be recorded") is %d, want 1`, got)
	}
}

func TestADatabaseThatIsFrozen(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server, db := private(t)
	b := newBroker()
	cfg := quick(schema.Config{})
	cfg.Lease = time.Minute // a read that has begun waits this long for its result
	cfg.CloseTimeout = 300 * time.Millisecond
	f, err := forwarder.New(db, b, cfg)
	kit.OK(t, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	put(t, db, schema.Config{}, "t", msg("1", ""))
	drained(t, db)

	server.Freeze()
	defer server.Thaw()
	giveTime(100 * time.Millisecond) // so that a read has begun
	began := time.Now()
	_ = f.Close()
	kit.OK(t, <-ended)
	if got := time.Since(began); got >= 3*cfg.CloseTimeout+slack {
		t.Fatalf("time.Since(began) is %v, want less than %v", got, 3*cfg.CloseTimeout+slack)
	}
}

func TestADatabaseThatIsNotThereYet(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server, db := private(t)
	put(t, db, schema.Config{}, "t", msg("1", ""))
	server.Kill()
	b := newBroker()
	f, err := forwarder.New(db, b, quick(schema.Config{}))
	kit.OK(t, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	select {
	case <-f.Running():
		t.Fatal("runs without a database")
	case err := <-ended:
		t.Fatalf("Run gives up: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	kit.OK(t, server.Restart(t.Context()))
	<-f.Running()
	drained(t, db)
	kit.OK(t, f.Close())
	kit.OK(t, <-ended)
}

// eachDatabase runs test with each kind of database, after it has created the tables.
func eachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB, config schema.Config)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		test(t, db.DB, config)
	})
}

// postgres returns a PostgreSQL database with the tables.
func postgres(t testing.TB) *sql.DB {
	t.Helper()
	db := kit.Postgres(t).DB
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	return db
}

// Stats ends with its context, also while its statement waits for a lock.
func TestALostLease(t *testing.T) {
	kit.Long(t)
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
		log := &kit.Logs{}
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
		if log.Has("has run out") {
			t.Fatal(`log.Has("has run out") returned true: at the next renewal`)
		}
		close(early)
		put(t, db, config, "t", msg("new", ""))
		giveTime(100 * time.Millisecond) // time to send something, which it must not do
		b.triedTimes(t, "behind", 0)
		b.triedTimes(t, "new", 0)
		if got := attempts(t, db, "refused"); got != 0 {
			t.Fatalf(`attempts("refused") is %d, want 0: the new owner decides about it`, got)
		}

		exec(t, db, `UPDATE once_slots SET owner = NULL`)
		giveTime(1500 * time.Millisecond) // time to send something, which it must not do
		if got := b.tries("behind"); got != 0 {
			t.Fatalf(`b.tries("behind") is %d, want 0: its predecessor is still in flight`, got)
		}
		close(late)
		drained(t, db)
		if got := b.tries("sure"); got != 1 {
			t.Fatalf(`b.tries("sure") is %d, want 1: what was confirmed is deleted`, got)
		}
		if got := log.Count("INFO Forwarding"); got < 2 {
			t.Fatalf(`log.Count("INFO Forwarding") is %d, want at least 2: it is the owner again`, got)
		}
		if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"unsure", "behind"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids is %q, want %q", got, want)
		}
		if !b.has("new", "refused") {
			t.Fatal(`b.has("new", "refused") returned false`)
		}
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
	})
}

// After a lost lease the instance must take its slots again, except the slot with a
// message in flight whose topic does not confirm.
func TestALostLeaseWhileATopicDoesNotAnswer(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		answer := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.id == "silent" {
				<-answer
			}
			return nil
		})
		log := &kit.Logs{}
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
			if outboxrow.SlotOf(id, "") != outboxrow.SlotOf("", "key") {
				others = append(others, msg(id, ""))
			}
		}
		put(t, db, config, "t", others...)
		eventually(t, "the others are sent", func() bool { return pending(t, db) == 2 })
		b.triedTimes(t, "behind", 0)
		if got := count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner = 'another'`); got != 1 {
			t.Fatalf("count is %d, want 1: another instance could have the slot in which a message is unsettled", got)
		}
		proceed()
		drained(t, db)
		if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"silent", "behind"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids is %q, want %q", got, want)
		}
		b.triedTimes(t, "silent", 1)
		shares(t, db, 64)
	})
}

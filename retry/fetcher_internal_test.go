package retry

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// idleFetcher returns a fetcher for two handlers that is not running. The test calls its
// methods. The fetcher has its own gate, so crashed messages of other tests do not stop it.
func idleFetcher(t *testing.T, db testkit.Database) *fetcher {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	r, err := New(db.DB, Config{Schema: config, Concurrency: 2, PollInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", nil, 0)
	f.queue, f.gate = newFairQueue(nil), &isolationGate{}
	return f
}

// If the database does not answer, the renewal of the leases ends when the lease ends. A
// later result would be useless, and Close waits for the renewal.
func TestRenewalEndsWithTheLease(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	f := idleFetcher(t, db)
	if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage("m1", nil)); err != nil {
		t.Fatal(err)
	}
	f.fetch(t.Context())
	if len(f.inFlight) != 1 {
		t.Fatalf("%d claims, want one", len(f.inFlight))
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `LOCK TABLE once_parked IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	f.config.Lease = 100 * time.Millisecond
	ended := make(chan struct{})
	go func() {
		f.renew(t.Context())
		close(ended)
	}()
	testkit.Eventually(t, time.Minute, "the renewal ends", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if !f.failing {
		t.Error("its error is not reported")
	}
}

// A reused result of findDue comes from an earlier query. After this query, messages of
// other tenants may have arrived, and heads of keys may have been settled. The new
// messages, and the next messages of these keys, must not wait for the next poll.
func TestReusedLookIsFollowedByNewLook(t *testing.T) {
	testkit.Long(t)
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := idleFetcher(t, db)
		deliver := func(tenant string, ids ...string) {
			t.Helper()
			for _, id := range ids {
				msg := message.NewMessage(id, nil)
				msg.Metadata[meta.TenantID] = tenant
				if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg); err != nil {
					t.Fatal(err)
				}
			}
		}
		// finish resolves the claimed rows and returns their ids.
		finish := func() (ids string) {
			t.Helper()
			for f.queue.len() > 0 {
				c, _ := f.queue.next()
				ids += c.Message.UUID + " "
				if err := f.store.Resolve(t.Context(), c.Claim); err != nil {
					t.Fatal(err)
				}
				f.remove(c.Claim)
			}
			return ids
		}

		deliver("a", "a1", "a2", "a3", "a4", "a5")
		if again := f.fetch(t.Context()); !again || finish() != "a1 a2 " {
			t.Fatal("want a1 and a2, or a6 and a7, and another fetch")
		}
		deliver("b", "b1")
		f.dueAt = time.Now().Add(time.Hour) // the result can then be reused even on a slow machine
		if again := f.fetch(t.Context()); !again || finish() != "a3 a4 " {
			t.Fatal("want a3 and a4 from the reused look")
		}
		f.dueAt = time.Now().Add(time.Hour)
		if again := f.fetch(t.Context()); !again || !f.moreDue || finish() != "a5 " {
			t.Fatal("want a5 from the reused look, and another look")
		}
		if again := f.fetch(t.Context()); again || finish() != "b1 " {
			t.Fatal("want b1 from the new look")
		}

		// A result older than reuseDue must not be used again.
		deliver("a", "a6", "a7", "a8")
		if again := f.fetch(t.Context()); !again || finish() != "a6 a7 " {
			t.Fatal("want a1 and a2, or a6 and a7, and another fetch")
		}
		deliver("b", "b2")
		crashDue(t, f)
		f.dueAt = time.Now().Add(-reuseDue)
		f.fetch(t.Context())
		f.requestIsolation(false)
		if finish() == "" || len(f.inFlight) > 0 {
			t.Error("nothing was fetched")
		}
		if due, err := f.store.Due(t.Context(), parked.Select{Consumer: f.consumer, Topic: f.topic, Limit: 1}); err != nil || due.Crashed {
			t.Errorf("the crashed message was skipped, %v", err)
		}
	})
}

// If another process has locked the only due row, the fetcher must pause between fetches,
// so that it can renew leases.
func TestLockedRowsAreNotFetchedInALoop(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	f := idleFetcher(t, db)
	for n := range 100 {
		msg := message.NewMessage(fmt.Sprint(n), nil)
		msg.Metadata[meta.TenantID] = fmt.Sprint(n)
		if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg); err != nil {
			t.Fatal(err)
		}
	}
	later := `UPDATE once_parked SET priority_class = 'retry',
		due_at = now() + CASE WHEN message_id = '1' THEN interval '0' ELSE interval '1 hour' END`
	if _, err := db.ExecContext(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE once_parked SET error = 'locked' WHERE message_id = '1'`); err != nil {
		t.Fatal(err)
	}
	if again := f.fetch(t.Context()); again || f.queue.len() > 0 {
		t.Fatalf("%d messages fetched, fetch again is %v; want 0 and false", f.queue.len(), again)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if f.fetch(t.Context()); f.queue.len() != 1 {
		t.Fatalf("%d messages fetched, want 1", f.queue.len())
	}
	c, _ := f.queue.next()
	f.remove(c.Claim)
}

// If a context ends between two statements, lib/pq returns the error "bad connection".
// During a shutdown, this must not be logged as a failure.
func TestShutdownIsNotLoggedAsFailure(t *testing.T) {
	t.Parallel()
	log := watermill.NewCaptureLogger()
	f := newFetcher(&subscriber{retries: &Retries{config: Config{Logger: log}}}, "orders.placed", nil, 0)
	ended, end := context.WithCancel(t.Context())
	end()
	f.report(ended, driver.ErrBadConn)
	if got := log.Captured()[watermill.ErrorLogLevel]; len(got) != 0 {
		t.Errorf("logged %v", got)
	}
	f.report(t.Context(), driver.ErrBadConn)
	if got := log.Captured()[watermill.ErrorLogLevel]; len(got) != 1 {
		t.Errorf("logged %v for an unreachable database, want one line", got)
	}
}

// A failed fetch must be repeated soon, even if PollInterval is long.
func TestFailedFetchIsRepeated(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := idleFetcher(t, db)
		logs := &testkit.Logs{}
		closing, ended, out := make(chan struct{}), make(chan struct{}), make(chan *message.Message)
		f.config.Logger, f.closing = logs, closing
		if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage("1", nil)); err != nil {
			t.Fatal(err)
		}
		rename := func(from, to string) {
			if _, err := db.ExecContext(t.Context(), `ALTER TABLE `+from+` RENAME TO `+to); err != nil {
				t.Fatal(err)
			}
		}
		rename("once_parked", "away")
		go func() {
			defer close(ended)
			f.run(t.Context(), out)
		}()
		testkit.Eventually(t, time.Minute, "the fetch has failed", func() bool { return logs.Has("ERROR") })
		rename("away", "once_parked")
		select {
		case msg := <-out:
			msg.Ack()
		case <-time.After(time.Minute):
			t.Error("the message was not fetched")
		}
		close(closing)
		<-ended
	})
}

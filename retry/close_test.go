package retry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// A missing ack must not block Close without end. The message must not be lost, and no
// attempt may be counted.
func TestCloseEndsWithoutAckAfterCloseTimeout(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.CloseTimeout, c.Lease, c.Concurrency = 50*time.Millisecond, time.Minute, 2
		})
		b.put("received", "claimed")
		sub := b.retries.Subscriber(consumer, b.transport)
		messages, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		received := <-messages
		b.eventually("the other message is claimed", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 2 })

		if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
			t.Errorf("closed with %v", err)
		}
		if _, err := sub.Subscribe(t.Context(), topic); err == nil || err.Error() != "retry: the subscriber is closed" {
			t.Errorf("Subscribe after Close returned %v", err)
		}
		if received.Context().Err() == nil {
			t.Error("the context of the message has not ended")
		}
		received.Ack() // this ack is too late and must have no effect
		for _, entry := range b.entries(parked.Waiting) {
			if entry.Attempts != 0 || entry.Crashes != 0 {
				t.Errorf("%+v was charged", entry)
			}
			// The message is due only after a lease, because its handler may still be
			// running.
			if wait := time.Until(entry.DueAt); entry.MessageID == "received" && wait < 30*time.Second {
				t.Errorf("%+v is due in %v", entry, wait)
			}
		}
		if n := b.count(`once_parked WHERE token IS NULL`); n != 2 {
			t.Errorf("%d rows were released, want 2", n)
		}
	})
}

// Messages that wait for a free handler must be released at the beginning of Close. They
// must not wait until the running handlers have finished. (With SQLite, a handler may use
// the only writer.)
func TestCloseReleasesQueuedMessagesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), func(c *retry.Config) {
		c.KeyOrder, c.Concurrency, c.CloseTimeout = retry.BlockWhileRetried, 1, time.Minute
	})
	b.store("a", "b", "c")
	sub := b.retries.Subscriber(consumer, b.transport)
	messages, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	running := <-messages
	b.eventually("the others are claimed, too", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 3 })
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	b.eventually("the others are released", func() bool {
		return b.count(`once_parked WHERE token IS NULL AND crashes = 0 AND due_at <= now()`) == 2
	})
	running.Ack()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if rows := b.entries(parked.Waiting); len(rows) != 2 {
		t.Errorf("the rows are %+v, want two", rows)
	}
}

// Close must end even if a table is locked, or the database does not respond.
func TestCloseEndsWhileTableIsLocked(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{
		"looking for due messages waits": "ACCESS EXCLUSIVE", "claiming them waits": "SHARE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closeWhileLocked(t, lock)
		})
	}
}

func closeWhileLocked(t *testing.T, lock string) {
	t.Helper()
	db := testkit.Postgres(t)
	b := newBench(t, db, func(c *retry.Config) { c.CloseTimeout, c.Lease = 50*time.Millisecond, 500*time.Millisecond })
	b.put("m1")
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `LOCK TABLE once_parked IN `+lock+` MODE`); err != nil {
		t.Fatal(err)
	}
	sub := b.retries.Subscriber(consumer, b.transport)
	if _, err := sub.Subscribe(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	b.eventually("the fetcher waits for the table", func() bool {
		return b.count(`pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT granted AND datname = current_database()`) == 1
	})
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	select {
	case err = <-closed:
	case <-time.After(10 * time.Second):
		t.Error("Close does not return while the table is locked")
		defer func() {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}()
	}
	if err := errors.Join(err, tx.Rollback()); err != nil {
		t.Fatal(err)
	}
}

// When the process shuts down, a message in flight must become due immediately for the
// next process, even if the first release fails.
func TestMessageReleasedLateInShutdownIsDueAtOnce(t *testing.T) {
	b := newBench(t, testkit.Postgres(t), func(c *retry.Config) { c.Policy.Base, c.Policy.Max = time.Hour, time.Hour })
	b.put("m1")
	for _, query := range []string{
		`CREATE SEQUENCE tries`,
		`CREATE FUNCTION once_away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('tries') = 1 THEN RAISE EXCEPTION 'away'; END IF; RETURN NEW; END $$`,
		`CREATE TRIGGER once_away BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (NEW.token IS NULL) EXECUTE FUNCTION once_away()`,
	} {
		if _, err := b.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	running := make(chan struct{})
	b.run(func(*message.Message) error {
		close(running)
		b.eventually("the consumer shuts down", b.transport.closed.Load)
		return errHandler
	})
	<-running
	if err := b.subscriber.Close(); err != nil {
		t.Fatal(err)
	}
	due, err := b.parked.Due(t.Context(), parked.Select{Consumer: consumer, Topic: topic})
	if entries := b.entries(parked.Waiting); err != nil || !due.Fresh() || b.count(`once_parked WHERE token IS NULL AND crashes = 0`) != 1 {
		t.Errorf("%+v, %v", entries, err)
	}
}

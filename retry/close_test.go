package retry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// Somebody who does not answer does not keep a subscriber from being closed,
// and the message is not lost, nor charged.
func TestCloseWaitsForAnswersAndNotForEver(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.CloseTimeout, c.Lease, c.Concurrency = 50*time.Millisecond, time.Minute, 2
		})
		b.put("taken", "refused")
		sub := b.retries.Subscriber(consumer, b.transport)
		messages, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		taken := <-messages
		b.eventually("the other waits to be taken", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 2 })

		if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
			t.Errorf("closed with %v", err)
		}
		if taken.Context().Err() == nil {
			t.Error("its context has not ended")
		}
		taken.Ack() // nobody listens any more
		for _, entry := range b.entries(parked.Waiting) {
			if entry.Attempts != 0 || entry.Crashes != 0 {
				t.Errorf("%+v was charged", entry)
			}
			// Its handler may still be at work.
			if wait := time.Until(entry.DueAt); entry.MessageID == "taken" && wait < 30*time.Second {
				t.Errorf("%+v is due in %v", entry, wait)
			}
		}
		if n := b.count(`once_parked WHERE token IS NULL`); n != 2 {
			t.Errorf("%d rows were given back, not 2", n)
		}
	})
}

// Nor does a table that somebody has locked, or a database that does not answer.
func TestCloseDoesNotWaitForTheDatabaseForEver(t *testing.T) {
	db := testkit.Postgres(t)
	b := newBench(t, db, func(c *retry.Config) { c.CloseTimeout, c.Lease = 50*time.Millisecond, 200*time.Millisecond })
	sub := b.retries.Subscriber(consumer, b.transport)
	if _, err := sub.Subscribe(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `LOCK TABLE once_parked`); err != nil {
		t.Fatal(err)
	}
	b.eventually("it waits for the table", func() bool {
		return b.count(`pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT granted AND datname = current_database()`) == 1
	})
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	select {
	case err = <-closed:
	case <-time.After(10 * time.Second):
		t.Error("it does not end while the table is locked")
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

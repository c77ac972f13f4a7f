package parked_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

var third = disposition.Turn{AggregateType: "account", AggregateID: "a", Sequence: "7:accounta", Version: 3}

// apply writes the last version of the aggregate, as sequence does.
func apply(t *testing.T, db testkit.Database, tx *sql.Tx, version int) {
	t.Helper()
	now := "now()"
	if db.Dialect == "sqlite" {
		now = "unixepoch() * 1000"
	}
	_, err := tx.ExecContext(t.Context(), `
		INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
		VALUES ('c', 'account', 'a', $1, 1, `+now+`)
		ON CONFLICT (consumer, aggregate_type, aggregate_id) DO UPDATE SET version = excluded.version`, version)
	if err != nil {
		t.Fatal(err)
	}
}

func begin(t *testing.T, db testkit.Database) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// waiting returns the number of transactions that wait for another transaction.
func waiting(t *testing.T, db testkit.Database) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Another transaction applies the missing version before the early message is parked,
// or at the same time. It does not see the message, so ParkEarly must see the version,
// and make the message due.
func TestParkEarlySeesVersionAppliedMeanwhile(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		for _, c := range []struct {
			before, meanwhile int // the last version; 0 means that no version exists
			commits, due      bool
		}{
			{1, 2, true, true},
			{1, 2, false, false},
			{0, 2, true, true},
			{0, 2, false, false},
			{0, 1, true, false},
			{0, 0, true, false},
			{1, 1, true, false},
			{1, 9, true, true}, // the missing version was skipped, so the message is now stale
		} {
			for _, claimed := range []bool{true, false} {
				t.Run(fmt.Sprintf("%+v,claimed %v", c, claimed), func(t *testing.T) {
					for _, table := range []string{"once_parked", "once_versions"} {
						if _, err := db.ExecContext(t.Context(), `DELETE FROM `+table); err != nil {
							t.Fatal(err)
						}
					}
					seesMeanwhile(t, db, s, c.before, c.meanwhile, c.commits, c.due, claimed)
				})
			}
		}
	})
}

func seesMeanwhile(t *testing.T, db testkit.Database, s *parked.Store, before, meanwhile int, commits, due, claimed bool) {
	t.Helper()
	msg := message.NewMessage("a3", nil)
	woken := 0
	d := &parked.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Wake: func() { woken++ }}
	if claimed {
		deliver(t, s, "a3")
		d.Claim = claim(t, s, selection)[0].Claim
	}
	if before > 0 {
		tx := begin(t, db)
		apply(t, db, tx, before)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	tx := begin(t, db)
	if meanwhile > 0 {
		apply(t, db, tx, meanwhile)
	}
	end := tx.Rollback
	if commits {
		end = tx.Commit
	}
	parking := make(chan error, 1)
	park := func() { parking <- s.ParkEarly(t.Context(), d, msg, third, time.Hour) }
	if db.Dialect == "postgres" && meanwhile > 0 {
		go park()
		testkit.Eventually(t, 20*time.Second, "parking waits for the version", func() bool { return waiting(t, db) == 1 })
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if db.Dialect != "postgres" || meanwhile == 0 {
		park()
	}
	if err := <-parking; err != nil {
		t.Fatal(err)
	}
	again := claim(t, s, selection)
	if got := len(again) == 1; got != due || (woken == 1) != due {
		t.Errorf("due %v, woken %d times, want %v", got, woken, due)
	}
	var versions, want int
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_versions`).Scan(&versions); err != nil {
		t.Fatal(err)
	}
	if before > 0 || meanwhile > 0 && commits {
		want = 1
	}
	if versions != want {
		t.Errorf("%d last versions, want %d", versions, want)
	}
}

// A transaction that applies a version waits for the transaction that parks an early
// message, and then finds the message. SQLite is not tested, because it has one writer.
func TestApplyingAVersionWaitsForParkEarly(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 1} {
		t.Run(fmt.Sprintf("after version %d", before), func(t *testing.T) {
			db := testkit.Postgres(t)
			s := newStore(t, db)
			deliver(t, s, "a3")
			d := &parked.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Claim: claim(t, s, selection)[0].Claim}
			if before > 0 {
				tx := begin(t, db)
				apply(t, db, tx, before)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			blocker := begin(t, db)
			if _, err := blocker.ExecContext(t.Context(), `SELECT FROM once_parked FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			parking, applying := make(chan error, 1), make(chan error, 1)
			go func() { parking <- s.ParkEarly(t.Context(), d, nil, third, time.Hour) }()
			testkit.Eventually(t, 20*time.Second, "it is being parked", func() bool { return waiting(t, db) == 1 })
			tx := begin(t, db)
			go func() {
				_, err := tx.ExecContext(t.Context(), `
		INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
					VALUES ('c', 'account', 'a', 2, 1, now())
					ON CONFLICT (consumer, aggregate_type, aggregate_id) DO UPDATE SET version = 2`)
				applying <- err
			}()
			testkit.Eventually(t, 20*time.Second, "who applies waits", func() bool { return waiting(t, db) == 2 })
			if err := blocker.Rollback(); err != nil {
				t.Fatal(err)
			}
			for _, done := range []chan error{parking, applying} {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			var found int
			err := tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked
				WHERE early_of = $1 AND early_version = $2 AND token IS NULL`, third.Sequence, third.Version).Scan(&found)
			if err != nil || found != 1 {
				t.Errorf("found %d, %v", found, err)
			}
		})
	}
}

// A row that waits for its turn leaves the order of its key, because the missing version
// may be behind it. If it is early again, its wait continues.
func TestEarlyRowLeavesItsKeyAndKeepsItsWait(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a3", "a"), keyed("a2", "a")); err != nil {
			t.Fatal(err)
		}
		early := func(waited time.Duration) {
			t.Helper()
			c := claim(t, s, selection)[0]
			if c.Message.UUID != "a3" || c.Waited.Round(time.Hour) != waited {
				t.Errorf("%s has waited for %v, want a3 and %v", c.Message.UUID, c.Waited, waited)
			}
			d := &parked.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Claim: c.Claim}
			if err := s.ParkEarly(t.Context(), d, c.Message, third, time.Hour); err != nil {
				t.Fatal(err)
			}
			if all := rows.Parked(t, s); all[0].BlocksKey || all[0].PriorityClass != "retry" || all[1].State != parked.Waiting || !all[1].BlocksKey {
				t.Errorf("the rows are %+v", all)
			}
		}
		early(0)
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id = 'a2'`, time.Hour.Milliseconds())
		exec(t, s, `UPDATE {parked} SET due_at = {now}, early_since = {after $1} WHERE message_id = 'a3'`, -2*time.Hour.Milliseconds())
		early(2 * time.Hour)
		exec(t, s, `UPDATE {parked} SET due_at = {now} WHERE message_id = 'a3'`)
		early(2 * time.Hour)
	})
}

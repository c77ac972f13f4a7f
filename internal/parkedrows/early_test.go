package parkedrows_test

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

var third = chain.Turn{AggregateType: "account", AggregateID: "a", Sequence: "7:accounta", Version: 3}

// apply writes the last version of the aggregate, as sequence does.
func apply(t *testing.T, db kit.Database, tx *sql.Tx, version int) {
	t.Helper()
	now := "now()"
	if db.Dialect == "sqlite" {
		now = "unixepoch() * 1000"
	}
	kit.Exec(t, tx, `
		INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
		VALUES ('c', 'account', 'a', $1, 1, `+now+`)
		ON CONFLICT (consumer, aggregate_type, aggregate_id) DO UPDATE SET version = excluded.version`, version)
}

func begin(t *testing.T, db kit.Database) *sql.Tx {
	t.Helper()
	tx := kit.Begin(t, db)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// waiting returns the number of transactions that wait for another transaction.
func waiting(t *testing.T, db kit.Database) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
	return n
}

// Another transaction applies the missing version before the early message is parked,
// or at the same time. It does not see the message, so ParkEarly must see the version,
// and make the message due.
func TestParkEarlySeesVersionAppliedMeanwhile(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
						kit.Exec(t, db, `DELETE FROM `+table)
					}
					seesMeanwhile(t, db, s, c.before, c.meanwhile, c.commits, c.due, claimed)
				})
			}
		}
	})
}

func seesMeanwhile(t *testing.T, db kit.Database, s *parkedrows.Store, before, meanwhile int, commits, due, claimed bool) {
	t.Helper()
	msg := message.NewMessage("a3", nil)
	woken := 0
	d := &parkedrows.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Wake: func() { woken++ }}
	if claimed {
		deliver(t, s, "a3")
		d.Claim = claim(t, s, selection)[0].Claim
	}
	if before > 0 {
		tx := begin(t, db)
		apply(t, db, tx, before)
		kit.OK(t, tx.Commit())
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
		kit.Eventually(t, 20*time.Second, "parking waits for the version", func() bool { return waiting(t, db) == 1 })
	}
	kit.OK(t, end())
	if db.Dialect != "postgres" || meanwhile == 0 {
		park()
	}
	kit.OK(t, <-parking)
	again := claim(t, s, selection)
	if got := len(again) == 1; got != due || (woken == 1) != due {
		t.Errorf("due %v, woken %d times, want %v", got, woken, due)
	}
	var versions, want int
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_versions`).Scan(&versions))
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
			db := kit.Postgres(t)
			s := newStore(t, db)
			deliver(t, s, "a3")
			d := &parkedrows.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Claim: claim(t, s, selection)[0].Claim}
			if before > 0 {
				tx := begin(t, db)
				apply(t, db, tx, before)
				kit.OK(t, tx.Commit())
			}
			blocker := begin(t, db)
			kit.Exec(t, blocker, `SELECT FROM once_parked FOR UPDATE`)
			parking, applying := make(chan error, 1), make(chan error, 1)
			go func() { parking <- s.ParkEarly(t.Context(), d, nil, third, time.Hour) }()
			kit.Eventually(t, 20*time.Second, "it is being parked", func() bool { return waiting(t, db) == 1 })
			tx := begin(t, db)
			go func() {
				_, err := tx.ExecContext(t.Context(), `
		INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
					VALUES ('c', 'account', 'a', 2, 1, now())
					ON CONFLICT (consumer, aggregate_type, aggregate_id) DO UPDATE SET version = 2`)
				applying <- err
			}()
			kit.Eventually(t, 20*time.Second, "who applies waits", func() bool { return waiting(t, db) == 2 })
			kit.OK(t, blocker.Rollback())
			for _, done := range []chan error{parking, applying} {
				kit.OK(t, <-done)
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
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a3", "a"), keyed("a2", "a")))
		early := func(waited time.Duration) {
			t.Helper()
			c := claim(t, s, selection)[0]
			if c.Message.UUID != "a3" || c.Waited.Round(time.Hour) != waited {
				t.Errorf("%s has waited for %v, want a3 and %v", c.Message.UUID, c.Waited, waited)
			}
			d := &parkedrows.Delivery{Consumer: "c", Topic: "t", Subscribed: true, Claim: c.Claim}
			kit.OK(t, s.ParkEarly(t.Context(), d, c.Message, third, time.Hour))
			if all := rows.Parked(t, s); all[0].BlocksKey || all[0].PriorityClass != "retry" || all[1].State != parkedrows.Waiting ||
				!all[1].BlocksKey {
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

// Two subscriptions with the same ordering key have separate orders, if their consumers
// or their topics differ.
func TestKeyOrderOfEachSubscriptionIsSeparate(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		subscriptions := [][2]string{{"c", "t"}, {"c", "u"}, {"d", "t"}}
		for n := 1; n <= 3; n++ {
			for _, sub := range subscriptions {
				to := []parkedrows.Subscription{{Consumer: sub[0], KeyOrder: true}}
				kit.OK(t, s.DeliverTo(t.Context(), sub[1], to, keyed(fmt.Sprintf("%s/%s %d", sub[0], sub[1], n), "key")))
			}
		}
		states := map[string]string{}
		expect := func(when string) {
			t.Helper()
			for _, row := range rows.Parked(t, s) {
				if row.State != states[row.MessageID] {
					t.Errorf("%s: %s is %s, want %s", when, row.MessageID, row.State, states[row.MessageID])
				}
			}
		}
		for _, sub := range subscriptions {
			for n := 1; n <= 3; n++ {
				states[fmt.Sprintf("%s/%s %d", sub[0], sub[1], n)] = map[bool]string{true: parkedrows.Waiting, false: parkedrows.Held}[n == 1]
			}
		}
		expect("after the delivery")
		for _, sub := range slices.Backward(subscriptions) {
			sel, name := selection, sub[0]+"/"+sub[1]
			sel.Consumer, sel.Topic = sub[0], sub[1]
			kit.OK(t, s.Resolve(t.Context(), claim(t, s, sel)[0].Claim))
			states[name+" 2"] = parkedrows.Waiting
			expect("after the head of " + name)
		}
	})
}

// If somebody has deleted a head, a new message does not overtake the messages that are
// still held.
func TestKeyOrderNewMessageWaitsBehindHeldMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a")))
		exec(t, s, `DELETE FROM {parked} WHERE message_id = 'a1'`)
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a3", "a")))
		if claimed := claim(t, s, selection); len(claimed) != 0 {
			t.Errorf("%s was claimed before a2", claimed[0].Message.UUID)
		}
		if n, err := s.RepairKeys(t.Context(), "c", "t", parkedrows.BlockWhileRetried); n != 1 || err != nil {
			t.Errorf("%d keys are repaired, %v", n, err)
		}
		if claimed := claim(t, s, selection); len(claimed) != 1 || claimed[0].Message.UUID != "a2" {
			t.Errorf("claimed %+v, want a2", claimed)
		}
	})
}

// The cost of a message does not depend on the number of messages of its key that are
// stored, or that were handled and are kept, whatever statistics PostgreSQL has.
func TestKeyOrderCostDoesNotGrowWithTheLengthOfTheKey(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	db.SetMaxOpenConns(1) // see kit.RowsRead
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, db, query)
	}
	const rows, rounds = 10_000, 10
	exec(`ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	exec(fmt.Sprintf(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, ordering_key, state, due_at)
		SELECT 'c', 't', 'm' || i, '', '', 'k', 'held', now() FROM generate_series(1, %d) AS i`, rows))
	exec(`ANALYZE once_parked`)
	exec(fmt.Sprintf(`UPDATE once_parked SET finished_at = now(), state = CASE WHEN message_id = 'm%[1]d' THEN 'waiting' ELSE 'resolved' END
		WHERE id IN (SELECT id FROM once_parked ORDER BY id LIMIT %[1]d)`, rows/2))
	exec(`VACUUM once_parked`) // removes the index entries of the earlier versions, and leaves the statistics of the columns

	before := kit.RowsRead(t, db, "once_parked")
	for n := range rounds {
		behind, other := keyed(fmt.Sprint("behind", n), "k"), keyed(fmt.Sprint("new", n), fmt.Sprint(n))
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, behind, other))
		claimed := claim(t, s, selection)
		if len(claimed) != 2 {
			t.Fatalf("round %d: claimed %d messages, want the head of the long key and of the new one", n, len(claimed))
		}
		for _, c := range claimed {
			c.Keep = true
			kit.OK(t, s.Resolve(t.Context(), c.Claim))
		}
	}
	if read := kit.RowsRead(t, db, "once_parked") - before; read > 100*rounds {
		t.Errorf("%d rows and index entries were read in %d rounds", read, rounds)
	}
}

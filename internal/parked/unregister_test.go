package parked_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// A consumer that does not run can be removed, together with the messages that wait for
// it. Messages in quarantine, claimed messages and replayed messages stay.
func TestUnregisterDeletesWhatWaits(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		for _, c := range []parked.Consumer{
			{Consumer: "c", Topic: "t", Owner: "host/1/a"},
			{Consumer: "c", Topic: "u", Owner: "host/1/b"},
			{Consumer: "d", Topic: "t", Owner: "host/1/c"},
		} {
			if _, err := s.Register(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		var running *parked.RunningError
		const says = "s ago as host/1/a: stop it, wait until that is 2m0s ago, and call again"
		if _, err := s.Unregister(t.Context(), "c", "t"); !errors.As(err, &running) || !strings.HasSuffix(running.Error(), says) {
			t.Errorf("got %v, want %s", err, says)
		}
		exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())

		deliver(t, s, "waits", "quarantined", "claimed", "replayed", "resolved")
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("head", "k"), keyed("held", "k")); err != nil {
			t.Fatal(err)
		}
		if err := s.Deliver(t.Context(), "u", []string{"c"}, message.NewMessage("of another topic", nil)); err != nil {
			t.Fatal(err)
		}
		if err := s.Deliver(t.Context(), "t", []string{"d"}, message.NewMessage("of another", nil)); err != nil {
			t.Fatal(err)
		}
		for id, set := range map[string]string{
			"quarantined": `state = 'quarantined'`, "claimed": `token = 'x'`, "replayed": `replays = 1`, "resolved": `state = 'resolved'`,
		} {
			exec(t, s, `UPDATE {parked} SET `+set+` WHERE message_id = $1`, id)
		}
		if n, err := s.Unregister(t.Context(), "c", "t"); n != 3 || err != nil {
			t.Errorf("%d messages are deleted, %v; want 3", n, err)
		}
		left := ids(t, s)
		for _, id := range []string{"quarantined", "claimed", "replayed", "resolved", "of another topic", "of another"} {
			if !left[id] {
				t.Errorf("%q is gone", id)
			}
		}
		if len(left) != 6 {
			t.Errorf("%v are left", left)
		}
		var names []string
		for _, table := range []string{"consumers", "consumer_instances"} {
			for _, name := range []string{"c", "d"} {
				var n int
				q := s.Dialect().SQL(`SELECT COUNT(*) FROM {` + table + `} WHERE consumer = $1`)
				if err := db.QueryRowContext(t.Context(), q, name).Scan(&n); err != nil {
					t.Fatal(err)
				}
				for range n {
					names = append(names, name)
				}
			}
		}
		if !slices.Equal(names, []string{"c", "d", "c", "d"}) { // c for topic u
			t.Errorf("registered are %v", names)
		}
		if n, err := s.Unregister(t.Context(), "nobody", "t"); n != 0 || err != nil {
			t.Errorf("nobody: %d, %v", n, err)
		}
	})
}

// If there are more messages than one transaction may delete, several transactions
// delete them.
func TestUnregisterDeletesInBatches(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		fill(t, db, "live", "", 4000) // two full batches
		if n, err := s.Unregister(t.Context(), "c", "t"); n != 4000 || err != nil {
			t.Errorf("%d messages are deleted, %v; want 4000", n, err)
		}
	})
}

// If a consumer registers again while Remove waits, Remove notices that the consumer is
// running.
func TestRemoveNoticesAConsumerThatHasJustRegistered(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newStore(t, db)
	register := func() error {
		_, err := s.Register(t.Context(), parked.Consumer{Consumer: "c", Topic: "t", Owner: "host/1/a"})
		return err
	}
	if err := register(); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())
	registering, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = registering.Rollback() }()
	if _, err := registering.ExecContext(t.Context(), `UPDATE once_consumers SET seen_at = now()`); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() {
		removed <- s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			existed, err := s.Remove(t.Context(), tx, "c", "t", false)
			if !existed {
				t.Error("the consumer is not known")
			}
			return err
		})
	}()
	testkit.Eventually(t, 20*time.Second, "the removal waits", func() bool { return waitingForLocks(t, db) == 1 })
	if err := registering.Commit(); err != nil {
		t.Fatal(err)
	}
	var running *parked.RunningError
	if err := <-removed; !errors.As(err, &running) || running.Consumer.Absent() {
		t.Errorf("got %v, want a RunningError", err)
	}
}

// If a key cannot be repaired, the keys before it are repaired and counted.
func TestFailedRepairCountsTheRepairedKeys(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newStore(t, db)
	for _, key := range []string{"a", "b"} {
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed(key+" 1", key), keyed(key+" 2", key)); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, s, `DELETE FROM {parked} WHERE message_id IN ('a 1', 'b 1')`)
	exec(t, s, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	exec(t, s, `CREATE TRIGGER refuse BEFORE UPDATE ON {parked} FOR EACH ROW WHEN (OLD.message_id = 'b 2') EXECUTE FUNCTION refuse()`)
	n, err := s.RepairKeys(t.Context(), "c", "t", parked.BlockWhileRetried)
	if n != 1 || err == nil || !strings.Contains(err.Error(), "repair ordering keys: ") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%d keys are repaired, %v; want one key and an error", n, err)
	}
	if claimed := claim(t, s, selection); len(claimed) != 1 || claimed[0].Message.UUID != "a 2" {
		t.Errorf("%d messages are due, want a 2 alone", len(claimed))
	}
}

// RepairKeys repairs keys without a head. It repairs keys with a quarantined head only
// if the KeyOrder of the consumer says that such a head does not block its key.
func TestRepairReleasesKeysThatNoHeadWillRelease(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		for order, want := range map[parked.KeyOrder]int{
			parked.Unordered: 3, parked.BlockWhileRetried: 3, parked.BlockWhileQuarantined: 2, parked.BlockWhileRunning: 3,
		} {
			s := newStore(t, db)
			exec(t, s, `DELETE FROM {parked}`)
			for _, key := range []string{"fine", "no head", "no head either", "blocked"} {
				if err := s.DeliverTo(t.Context(), "t", inOrder, keyed(key+" 1", key), keyed(key+" 2", key)); err != nil {
					t.Fatal(err)
				}
			}
			for consumer, topic := range map[string]string{"c": "u", "d": "t"} { // these keys belong to others
				for _, key := range []string{"no head", "blocked", "fine and theirs"} {
					to := []parked.Subscription{{Consumer: consumer, KeyOrder: true}}
					if err := s.DeliverTo(t.Context(), topic, to, keyed("other "+key+" 1", key), keyed("other "+key+" 2", key)); err != nil {
						t.Fatal(err)
					}
				}
			}
			exec(t, s, `DELETE FROM {parked} WHERE message_id IN ('no head 1', 'no head either 1', 'other no head 1')`)
			exec(t, s, `UPDATE {parked} SET state = 'quarantined' WHERE message_id IN ('blocked 1', 'other blocked 1')`)
			if n, err := s.RepairKeys(t.Context(), "c", "t", order); n != want || err != nil {
				t.Errorf("order %d: %d keys are repaired, %v; want %d", order, n, err, want)
			}
			var claimed []string
			for _, c := range claim(t, s, selection) {
				claimed = append(claimed, c.Message.UUID)
			}
			wanted := []string{"fine 1", "no head 2", "no head either 2", "blocked 2"}[:want+1]
			if !slices.Equal(claimed, wanted) {
				t.Errorf("order %d: %q are due, want %q", order, claimed, wanted)
			}
			if n, err := s.RepairKeys(t.Context(), "c", "t", order); n != 0 || err != nil {
				t.Errorf("order %d: %d keys are repaired again, %v", order, n, err)
			}
			var others int
			err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked WHERE message_id LIKE 'other %'
				AND (state = 'held' OR state = 'quarantined' AND ordering_key IS NOT NULL)`).Scan(&others)
			if err != nil || others != 8 {
				t.Errorf("order %d: %d of 8 messages of others are as before, %v", order, others, err)
			}
		}
	})
}

package parkedrows_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

// If a consumer of the embedded transport registers again through another transport,
// its registration still says that it is embedded.
func TestRegistrationKeepsTheEmbeddedTransport(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, store *parkedrows.Store) {
		see := func(c parkedrows.Consumer) *parkedrows.Consumer {
			t.Helper()
			before, err := store.Register(t.Context(), c)
			kit.OK(t, err)
			return before
		}
		const topic = "orders"
		if before := see(parkedrows.Consumer{Consumer: "broker's", Topic: topic, Owner: "a"}); before != nil {
			t.Errorf("it is new, and there is %+v", before)
		}
		see(parkedrows.Consumer{Consumer: "payments", Topic: topic, Embedded: true, KeyOrder: true, Owner: "a"})
		before := see(parkedrows.Consumer{Consumer: "payments", Topic: topic, KeyOrder: true, Owner: "b"})
		if before == nil || before.Owner != "a" || !before.Embedded || before.Program == "" || before.Absent() {
			t.Errorf("it was %+v", before)
		}
		to, err := store.Publish(t.Context(), topic, message.NewMessage("m1", nil))
		if err != nil || len(to) != 1 || to[0].Consumer != "payments" || !to[0].KeyOrder || to[0].Owner != "b" {
			t.Errorf("published to %+v, %v", to, err)
		}
		if to, err := store.Publish(t.Context(), "else", message.NewMessage("m1", nil)); err != nil || len(to) != 0 {
			t.Errorf("of another topic to %+v, %v", to, err)
		}
	})
}

// If the encoding of the database cannot store a message, Publish tries again with
// escapes, and returns each consumer once. A trigger simulates such an encoding.
func TestPublishReturnsEachConsumerOnce(t *testing.T) {
	t.Parallel()
	store := newStore(t, kit.Postgres(t))
	exec(t, store, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'no such character' USING ERRCODE = '22P05'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON once_parked FOR EACH ROW WHEN (NEW.tenant = 'ü') EXECUTE FUNCTION refuse()`)
	if _, err := store.Register(t.Context(), parkedrows.Consumer{
		Consumer: "payments", Topic: "orders", Embedded: true,
		Owner: "a",
	}); err != nil {
		t.Fatal(err)
	}
	to, err := store.Publish(t.Context(), "orders", of("ü", "m1"))
	if err != nil || len(to) != 1 {
		t.Errorf("published to %+v, %v", to, err)
	}
	if all := rows.Parked(t, store); len(all) != 1 || all[0].Tenant != "<U+00FC>" {
		t.Errorf("the rows are %+v", all)
	}
}

// A subscription knows the name of its handler only after its first message. Its next
// registration records the name.
func TestRegistrationRecordsTheHandlerLater(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		store := newStore(t, db)
		for _, handler := range []string{"", "handler-1"} {
			c := parkedrows.Consumer{Consumer: "payments", Topic: "orders", Owner: "a", Handler: handler}
			kit.OK(t, kit.Err(store.Register(t.Context(), c)))
			for _, table := range []string{"consumers", "consumer_instances"} {
				var recorded string
				if err := db.QueryRowContext(t.Context(), `SELECT handler FROM once_`+table).Scan(&recorded); err != nil || recorded != handler {
					t.Errorf("%s: %q, %v, want %q", table, recorded, err, handler)
				}
			}
		}
	})
}

// A consumer that does not run can be removed, together with the messages that wait for
// it. Messages in quarantine, claimed messages and replayed messages stay.
func TestUnregisterDeletesWhatWaits(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		for _, c := range []parkedrows.Consumer{
			{Consumer: "c", Topic: "t", Owner: "host/1/a"},
			{Consumer: "c", Topic: "u", Owner: "host/1/b"},
			{Consumer: "d", Topic: "t", Owner: "host/1/c"},
		} {
			kit.OK(t, kit.Err(s.Register(t.Context(), c)))
		}
		var running *parkedrows.RunningError
		const says = "s ago as host/1/a: stop it, wait until that is 2m0s ago, and call again"
		if _, err := s.Unregister(t.Context(), "c", "t"); !errors.As(err, &running) || !strings.HasSuffix(running.Error(), says) {
			t.Errorf("got %v, want %s", err, says)
		}
		exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())

		deliver(t, s, "waits", "quarantined", "claimed", "replayed", "resolved")
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("head", "k"), keyed("held", "k")))
		kit.OK(t, s.Deliver(t.Context(), "u", []string{"c"}, message.NewMessage("of another topic", nil)))
		kit.OK(t, s.Deliver(t.Context(), "t", []string{"d"}, message.NewMessage("of another", nil)))
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
				kit.OK(t, db.QueryRowContext(t.Context(), q, name).Scan(&n))
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
	db := kit.Postgres(t)
	s := newStore(t, db)
	register := func() error {
		_, err := s.Register(t.Context(), parkedrows.Consumer{Consumer: "c", Topic: "t", Owner: "host/1/a"})
		return err
	}
	kit.OK(t, register())
	exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())
	registering := kit.Begin(t, db)
	defer func() { _ = registering.Rollback() }()
	kit.Exec(t, registering, `UPDATE once_consumers SET seen_at = now()`)
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
	kit.Eventually(t, 20*time.Second, "the removal waits", func() bool { return waitingForLocks(t, db) == 1 })
	kit.OK(t, registering.Commit())
	var running *parkedrows.RunningError
	if err := <-removed; !errors.As(err, &running) || running.Consumer.Absent() {
		t.Errorf("got %v, want a RunningError", err)
	}
}

// If a key cannot be repaired, the keys before it are repaired and counted.
func TestFailedRepairCountsTheRepairedKeys(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	for _, key := range []string{"a", "b"} {
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed(key+" 1", key), keyed(key+" 2", key)))
	}
	exec(t, s, `DELETE FROM {parked} WHERE message_id IN ('a 1', 'b 1')`)
	exec(t, s, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	exec(t, s, `CREATE TRIGGER refuse BEFORE UPDATE ON {parked} FOR EACH ROW WHEN (OLD.message_id = 'b 2') EXECUTE FUNCTION refuse()`)
	n, err := s.RepairKeys(t.Context(), "c", "t", parkedrows.BlockWhileRetried)
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for order, want := range map[parkedrows.KeyOrder]int{
			parkedrows.Unordered: 3, parkedrows.BlockWhileRetried: 3, parkedrows.BlockWhileQuarantined: 2, parkedrows.BlockWhileRunning: 3,
		} {
			s := newStore(t, db)
			exec(t, s, `DELETE FROM {parked}`)
			for _, key := range []string{"fine", "no head", "no head either", "blocked"} {
				kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed(key+" 1", key), keyed(key+" 2", key)))
			}
			for consumer, topic := range map[string]string{"c": "u", "d": "t"} { // these keys belong to others
				for _, key := range []string{"no head", "blocked", "fine and theirs"} {
					to := []parkedrows.Subscription{{Consumer: consumer, KeyOrder: true}}
					kit.OK(t, s.DeliverTo(t.Context(), topic, to, keyed("other "+key+" 1", key), keyed("other "+key+" 2", key)))
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

// A name that a text column cannot store unchanged can be found again under the
// original name.
func TestUnusualNamesAreFoundAgain(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		name, topic, owner := "c\x00", strings.Repeat("t", 300), "o\xff"
		own := parkedrows.Consumer{Consumer: name, Topic: topic, Owner: owner, Embedded: true, KeyOrder: true}
		for n := range 2 {
			before, err := s.Register(t.Context(), own)
			if err != nil || (before != nil) != (n == 1) {
				t.Fatalf("registered before: %+v, %v", before, err)
			}
		}
		if to, err := s.Publish(t.Context(), topic, keyed("a1", "a"), keyed("a2", "a")); err != nil || len(to) != 1 {
			t.Fatalf("published to %+v, %v", to, err)
		}
		exec(t, s, `DELETE FROM {parked} WHERE message_id = 'a1'`)
		if n, err := s.RepairKeys(t.Context(), name, topic, parkedrows.BlockWhileRetried); err != nil || n != 1 {
			t.Errorf("%d keys are repaired, %v", n, err)
		}
		sel := selection
		sel.Consumer, sel.Topic, sel.Keep = "c\uFFFD", topic[:255], true
		claimed := claim(t, s, sel)
		if len(claimed) != 1 {
			t.Fatalf("claimed %+v", claimed)
		}
		kit.OK(t, s.Resolve(t.Context(), claimed[0].Claim))
		if n, err := s.Forget(t.Context(), topic, name, -time.Minute, 10); err != nil || n != 1 {
			t.Errorf("%d handled messages are deleted, %v", n, err)
		}
		kit.Check(t, s.Leave(t.Context(), name, topic, owner))
		var instances int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_consumer_instances`).Scan(&instances); err != nil || instances != 0 {
			t.Errorf("%d instances are left, %v", instances, err)
		}
		kit.OK(t, s.Deliver(t.Context(), topic, []string{name}, message.NewMessage("m", nil)))
		exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())
		if n, err := s.Unregister(t.Context(), name, topic); err != nil || n != 1 {
			t.Errorf("%d messages are deleted, %v", n, err)
		}
	})
}

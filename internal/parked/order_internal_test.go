package parked

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// For a message without an ordering key, no statement about the order of keys is sent.
func TestNoKeysNeedNoStatement(t *testing.T) {
	t.Parallel()
	var s Store
	if err := s.promote(t.Context(), nil, nil); err != nil { // a statement would panic, because there is no transaction
		t.Error(err)
	}
	s.sql.order.lock = "SELECT 1"
	if err := s.lockKeys(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}

// Keys that differ in the table, the consumer, the topic or the key do not wait for each
// other.
func TestEachKeyHasItsOwnLock(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	seen := map[int64]bool{}
	keys := []Key{{"c", "t", "k"}, {"d", "t", "k"}, {"c", "u", "k"}, {"c", "t", "l"}, {"ct", "", "k"}}
	for _, prefix := range []string{"once_", "other_"} {
		s, err := NewStore(db.DB, schema.Config{Dialect: schema.SQLite, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			seen[s.lockOf(k)] = true
		}
	}
	if len(seen) != 2*len(keys) {
		t.Errorf("%d locks for %d keys", len(seen), 2*len(keys))
	}
}

// A transaction that waits for the lock of one key has only lower locks, so that two
// transactions with the same keys cannot deadlock.
func TestKeysAreLockedInAscendingOrder(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(db.DB, schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b"}
	lock := func(name string) int64 { return s.lockOf(Key{"c", "t", name}) }
	if lock("a") < lock("b") {
		slices.Reverse(names) // the higher lock first
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock($1)`, lock(names[1])); err != nil {
		t.Fatal(err)
	}
	delivered := make(chan error, 1)
	go func() {
		var msgs []*message.Message
		for _, name := range names {
			msg := message.NewMessage(name, nil)
			msg.Metadata[meta.OrderingKey] = name
			msgs = append(msgs, msg)
		}
		delivered <- s.DeliverTo(t.Context(), "t", []Subscription{{Consumer: "c", KeyOrder: true}}, msgs...)
	}()
	testkit.Eventually(t, 20*time.Second, "the delivery waits", func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n == 1
	})
	var free bool
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_try_advisory_xact_lock($1)`, lock(names[0])).Scan(&free); err != nil || !free {
		t.Errorf("the higher lock is free: %t, %v", free, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-delivered; err != nil {
		t.Error(err)
	}
}

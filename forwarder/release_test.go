package forwarder_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Release reads the waiting messages of a key, and commits later. A message that is
// committed in between must be sent in order. Release does not see this message, and
// the forwarder has already read past it, because its key was blocked. So later
// messages of the key could be sent first.
func TestReleaseWhileAMessageOfTheKeyIsCommitted(t *testing.T) {
	t.Parallel()
	db := alone(t)
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" {
			return hopeless{errors.New("no")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.AfterDead = forwarder.BlockKey
	start(t, db, b, cfg)
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	eventually(t, "dead", func() bool { return dead(t, db) == 1 })
	box, err := outbox.New(outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	open, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Publisher(open).Publish("t", msg("late", "key")); err != nil {
		t.Fatal(err)
	}
	free := func(from int) {
		for i := range 5 {
			id := fmt.Sprint("free", from+i)
			put(t, db, schema.Config{}, "t", msg(id, ""))
			eventually(t, "free", func() bool { return b.has(id) })
			giveTime(50 * time.Millisecond)
		}
	}
	free(0)
	lock, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(`LOCK TABLE once_audit IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	letters := deadLetters(t, db, schema.Config{})
	go func() { released <- letters.Release(t.Context(), ann, "key") }()
	eventually(t, "waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND query LIKE '%once_audit%' AND datname = current_database()`) > 0
	})
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	free(10)
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	put(t, db, schema.Config{}, "t", msg("later", "key"))
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"late", "later"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}

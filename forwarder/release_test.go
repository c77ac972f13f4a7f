package forwarder_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// A message must be sent in order if it is committed between the read of Release and
// its commit. The forwarder has read past this message, because its key was blocked,
// and Release does not see it, so that later messages of the key could be sent before
// it.
func TestReleaseWhileAMessageOfTheKeyIsCommitted(t *testing.T) {
	t.Parallel()
	_, db := private(t)
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
	require.NoError(t, err)
	open, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, box.Publisher(open).Publish("t", msg("late", "key")))
	free := func(from int) {
		for i := range 5 {
			id := fmt.Sprint("free", from+i)
			put(t, db, schema.Config{}, "t", msg(id, ""))
			eventually(t, "free", func() bool { return b.has(id) })
			meanwhile(50 * time.Millisecond)
		}
	}
	free(0)
	lock, err := db.Begin()
	require.NoError(t, err)
	_, err = lock.Exec(`LOCK TABLE once_audit IN SHARE MODE`)
	require.NoError(t, err)
	released := make(chan error, 1)
	letters := deadLetters(t, db, schema.Config{})
	go func() { released <- letters.Release(t.Context(), ann, "key") }()
	eventually(t, "waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND query LIKE '%once_audit%' AND datname = current_database()`) > 0
	})
	require.NoError(t, open.Commit())
	free(10)
	require.NoError(t, lock.Rollback())
	require.NoError(t, <-released)
	put(t, db, schema.Config{}, "t", msg("later", "key"))
	drained(t, db)
	require.Equal(t, []string{"late", "later"}, b.ids(func(d delivery) bool { return d.key == "key" }))
}

package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// blocked inserts dead letters; the first of them blocks its key.
func (b *bench) blocked() {
	b.Helper()
	b.insertDead(msg("head", "key"), msg("other", ""), msg("not blocking", "key"))
	b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 1000, 1000, 'dead')`)
	b.publish("t", msg("next", "key"))
}

func (b *bench) blocking(reason string) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM once_blocked_keys WHERE reason = $1`, reason)
}

func TestDiscardDeletesAllLettersOrNone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.blocked()
		err := b.letters.Discard(b.Context(), ann, 1, 4711)
		require.ErrorIs(b, err, deadletter.ErrNotFound)
		require.EqualError(b, err, "deadletter: discard: dead letter 4711: not found")
		require.Equal(b, 3, b.dead())
		require.Empty(b, b.audits())

		require.NoError(b, b.letters.Discard(b.Context(), ann, 3, 2))
		require.Equal(b, 1, b.blocking("dead"), "another letter blocks the key")
		require.NoError(b, b.letters.Discard(b.Context(), ann, 1, 1))
		require.Zero(b, b.dead())
		require.Equal(b, 1, b.pending())
		require.Equal(b, 1, b.blocking("released"), "the message that waited is the head now")
		require.Equal(b, []string{
			"ann | discard | dead:2 | other | the queue is back",
			"ann | discard | dead:3 | not blocking | the queue is back",
			"ann | discard | dead:1 | head | the queue is back",
		}, b.audits())
	})
}

func TestDiscardOfMessagesThatMayHaveBeenSent(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("malformed", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1)`)
		b.exec(`UPDATE once_outbox_dead SET reason = 'malformed' WHERE message_id = 'malformed'`)
		b.age("once_outbox_dead", "died_at", 8*24*time.Hour, `1 = 1`)
		require.NoError(b, b.letters.Discard(b.Context(), ann, 1), "a discard needs no force")
		n, err := b.letters.DiscardMatching(b.Context(), ann, everything)
		require.NoError(b, err)
		require.Equal(b, 1, n)
	})
}

func TestDiscardMatchingInBatches(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(250)...)
		n, err := b.letters.DiscardMatching(b.Context(), ann, deadletter.Filter{Topic: "t", Limit: 120})
		require.NoError(b, err)
		require.Equal(b, 120, n)
		require.Equal(b, 130, b.dead())
		n, err = b.letters.DiscardMatching(b.Context(), ann, everything)
		require.NoError(b, err)
		require.Equal(b, 130, n)
		require.Len(b, b.audits(), 250)
		require.Zero(b, b.pending())
	})
}

func TestReleaseUnblocksTheKey(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.blocked()
		require.ErrorIs(b, b.letters.Release(b.Context(), ann, "another key"), deadletter.ErrNotBlocked)
		require.NoError(b, b.letters.Release(b.Context(), ann, "key"))
		require.Equal(b, 3, b.dead())
		require.Equal(b, 1, b.blocking("released"))
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_outbox WHERE message_id = 'next' AND due_at IS NOT NULL`))
		require.Equal(b, []string{"ann | release | key:key |  | the queue is back"}, b.audits())
		err := b.letters.Release(b.Context(), ann, "key")
		require.ErrorIs(b, err, deadletter.ErrNotBlocked)
		require.EqualError(b, err, `deadletter: release: no dead letter blocks this ordering key: "key"`)
	})
}

// TestDiscardAndReleaseAtTheSameTime shows that the two calls cannot deadlock: the
// second one finds that the key is not blocked any more.
func TestDiscardAndReleaseAtTheSameTime(t *testing.T) {
	b := newBench(t, testkit.Postgres(t).DB, schema.Config{})
	b.blocked()
	lock, err := b.db.Begin()
	require.NoError(t, err)
	defer func() { _ = lock.Rollback() }()
	_, err = lock.Exec(`SELECT FROM once_outbox FOR UPDATE`)
	require.NoError(t, err)
	wait := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "calls wait for a lock", func() bool {
			return n == b.count(`SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
		})
	}
	discarded, released := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := b.letters.DiscardMatching(t.Context(), ann, everything)
		discarded <- err
	}()
	wait(1)
	go func() { released <- b.letters.Release(t.Context(), ann, "key") }()
	wait(2)
	require.NoError(t, lock.Rollback())
	require.NoError(t, <-discarded)
	require.ErrorIs(t, <-released, deadletter.ErrNotBlocked)
	require.Zero(t, b.blocking("dead"))
}

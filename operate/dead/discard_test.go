package dead_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/schema"
)

// blocked inserts dead letters; the first of them blocks its key.
func (b *bench) blocked() {
	b.Helper()
	b.insertDead(msg("head", "key"), msg("other", ""), msg("not blocking", "key"))
	b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 1000, 1000, 'dead')`)
	b.publish("t", msg("next", "key"))
}

func (b *bench) blocking(reason string) int {
	b.Helper()
	return b.Number(`SELECT COUNT(*) FROM once_blocked_keys WHERE reason = $1`, reason)
}

func TestDiscardDeletesAllLettersOrNone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.blocked()
		err := b.letters.Discard(b.Context(), ann, 1, 4711)
		if !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if err == nil || err.Error() != "dead: discard: dead letter 4711: not found" {
			b.Fatalf(`got %v, want "deadletter: discard: dead letter 4711: not found"`, err)
		}
		b.wantDead(3)
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}

		kit.OK(b, b.letters.Discard(b.Context(), ann, 3, 2))
		if got := b.blocking("dead"); got != 1 {
			b.Fatalf(`blocking("dead") is %d, want 1: another letter blocks the key`, got)
		}
		kit.OK(b, b.letters.Discard(b.Context(), ann, 1, 1))
		b.wantDead(0)
		b.wantPending(1)
		if got := b.blocking("released"); got != 1 {
			b.Fatalf(`blocking("released") is %d, want 1: the message that waited is the head now`, got)
		}
		want := []string{
			"ann | discard | dead:2 | other | the queue is back",
			"ann | discard | dead:3 | not blocking | the queue is back",
			"ann | discard | dead:1 | head | the queue is back",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
	})
}

func TestDiscardOfMessagesThatMayHaveBeenSent(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("malformed", ""))
		b.Exec(`UPDATE once_outbox_dead SET unknown = (1 = 1)`)
		b.Exec(`UPDATE once_outbox_dead SET reason = 'malformed' WHERE message_id = 'malformed'`)
		b.age("once_outbox_dead", "died_at", 8*24*time.Hour, `1 = 1`)
		if err := b.letters.Discard(b.Context(), ann, 1); err != nil {
			b.Fatalf("%v: a discard needs no force", err)
		}
		n, err := b.letters.DiscardMatching(b.Context(), ann, everything)
		kit.OK(b, err)
		if n != 1 {
			b.Fatalf("n is %d, want 1", n)
		}
	})
}

func TestDiscardMatchingInBatches(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(250)...)
		n, err := b.letters.DiscardMatching(b.Context(), ann, operate.Filter{Topic: "t", Limit: 120})
		kit.OK(b, err)
		if n != 120 {
			b.Fatalf("n is %d, want 120", n)
		}
		b.wantDead(130)
		n, err = b.letters.DiscardMatching(b.Context(), ann, everything)
		kit.OK(b, err)
		if n != 130 {
			b.Fatalf("n is %d, want 130", n)
		}
		if got := b.Audits(); len(got) != 250 {
			b.Fatalf("%d audits, want 250: %q", len(got), got)
		}
		b.wantPending(0)
	})
}

func TestReleaseUnblocksTheKey(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.blocked()
		if err := b.letters.Release(b.Context(), ann, "another key"); !errors.Is(err, dead.ErrNotBlocked) {
			b.Fatalf("Release: got %v, want ErrNotBlocked", err)
		}
		kit.OK(b, b.letters.Release(b.Context(), ann, "key"))
		b.wantDead(3)
		if got := b.blocking("released"); got != 1 {
			b.Fatalf(`blocking("released") is %d, want 1`, got)
		}
		b.WantNumber(1, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'next' AND due_at IS NOT NULL`)
		if got, want := b.Audits(), []string{"ann | release | key:key |  | the queue is back"}; !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		err := b.letters.Release(b.Context(), ann, "key")
		if !errors.Is(err, dead.ErrNotBlocked) {
			b.Fatalf("got %v, want ErrNotBlocked", err)
		}
		if want := `dead: release: no dead letter blocks this ordering key: "key"`; err == nil || err.Error() != want {
			b.Fatalf("got %v, want %q", err, want)
		}
	})
}

// TestDiscardAndReleaseAtTheSameTime shows that the two calls cannot deadlock: the
// second one finds that the key is not blocked any more.
func TestDiscardAndReleaseAtTheSameTime(t *testing.T) {
	b := newBench(t, kit.Postgres(t), schema.Config{})
	b.blocked()
	lock := kit.Begin(t, b)
	defer func() { _ = lock.Rollback() }()
	kit.OK(t, kit.Err(lock.Exec(`SELECT FROM once_outbox FOR UPDATE`)))
	wait := func(n int) {
		t.Helper()
		kit.Eventually(t, time.Minute, "calls wait for a lock", func() bool {
			return n == b.Number(`SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
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
	kit.OK(t, lock.Rollback())
	kit.OK(t, <-discarded)
	if err := <-released; !errors.Is(err, dead.ErrNotBlocked) {
		t.Fatalf("got %v, want ErrNotBlocked", err)
	}
	if got := b.blocking("dead"); got != 0 {
		t.Fatalf(`b.blocking("dead") is %d, want 0`, got)
	}
}

package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// stuck is a test with one ordering key that is blocked: its first message is a dead
// letter, and the forwarder has already read past the following messages.
type stuck struct {
	*testing.T

	db      *sql.DB
	config  forwarder.Config
	broker  *broker
	healed  atomic.Bool
	letters *deadletter.Letters
	fwd     *forwarder.Forwarder
}

func newStuck(t *testing.T, db *sql.DB, config schema.Config) *stuck {
	t.Helper()
	s := &stuck{T: t, db: db, letters: deadLetters(t, db, config)}
	s.broker = newBroker().answering(func(d delivery) error {
		if d.id == "head" && !s.healed.Load() {
			return hopeless{errors.New("too large")}
		}
		return nil
	})
	s.config = quick(config)
	s.config.AfterDead = forwarder.BlockKey
	s.config.BatchSize, s.config.Window = 50, 20 // so that only few messages of the key are in memory
	put(t, db, config, "t", msg("head", "key"), msg("other", "other"))
	for i := range 30 {
		put(t, db, config, "t", msg(fmt.Sprint("next", i), "key"), msg(fmt.Sprint("free", i), ""))
	}
	s.begin()
	eventually(t, "it is dead, the others are sent", func() bool { return pending(t, db) == 30 && dead(t, db) == 1 })
	put(t, db, config, "t", msg("free30", ""))
	eventually(t, "the read goes on behind them", func() bool { return s.broker.has("free30") })
	require.Equal(t, 1, s.blockedKeys("dead"))
	return s
}

// begin starts a forwarder. It closes the one that ran before.
func (s *stuck) begin() {
	s.Helper()
	if s.fwd != nil {
		require.NoError(s, s.fwd.Close())
	}
	s.fwd = start(s.T, s.db, &pipelined{broker: s.broker}, s.config)
}

func (s *stuck) blockedKeys(reason string) int {
	s.Helper()
	return count(s.T, s.db, `SELECT COUNT(*) FROM once_blocked_keys WHERE reason = $1`, reason)
}

// drained waits until everything is sent, and checks that the messages of the key were
// sent in this order. It must not wait for the read of the whole outbox that happens
// once a minute.
func (s *stuck) drained(first ...string) {
	s.Helper()
	drained(s.T, s.db)
	want := first
	for i := range 30 {
		want = append(want, fmt.Sprint("next", i))
	}
	require.Equal(s, want, s.broker.ids(func(d delivery) bool { return d.key == "key" }))
	require.Empty(s, s.broker.overlaps)
	require.Zero(s, count(s.T, s.db, `SELECT COUNT(*) FROM once_blocked_keys`))
	require.Zero(s, inNoSweep(s.T, s.db))
}

func TestALetterGoesBackBeforeThoseThatWaitForIt(t *testing.T) {
	t.Parallel()
	for _, restart := range []string{"no restart", "before", "after", "while it is refused"} {
		t.Run(restart, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				s := newStuck(t, db, config)
				if restart == "before" || restart == "after" {
					require.NoError(t, s.fwd.Close())
				}
				if restart == "before" {
					s.begin()
				}
				if restart == "while it is refused" {
					s.broker.answering(func(d delivery) error {
						if d.id == "head" && !s.healed.Load() {
							return refusal{errors.New("not yet")}
						}
						return nil
					})
					s.config.Backoff = func(int) time.Duration { return 50 * time.Millisecond }
					s.config.MaxAttempts = 100_000 // so that no message becomes a dead letter during the test
					s.begin()
				} else {
					s.healed.Store(true)
				}
				report, err := s.letters.ReplayMatching(t.Context(), ann, deadletter.Filter{OrderingKey: "key"}, deadletter.Plan{})
				require.NoError(t, err)
				require.Equal(t, 1, report.Replayed)
				switch restart {
				case "after":
					require.Equal(t, 1, s.blockedKeys("replayed"))
					require.Zero(t, inNoSweep(t, db))
					s.begin()
				case "while it is refused":
					eventually(t, "it is refused again", func() bool { return attempts(t, db, "head") > 1 })
					require.Zero(t, inNoSweep(t, db))
					s.begin()
					eventually(t, "and again", func() bool { return attempts(t, db, "head") > 3 })
					require.False(t, s.broker.has("next0"))
					s.healed.Store(true)
				}
				s.drained("head")
				require.Zero(t, dead(t, db))
			})
		})
	}
}

// A dead letter that is replayed is sent before the waiting messages of its key, even
// if more messages wait than fit into one refill, and the topic confirms only later.
func TestALetterGoesBackWhileItsTopicDoesNotAnswer(t *testing.T) {
	t.Parallel()
	_, db := private(t) // nobody else takes transaction ids there
	var healed atomic.Bool
	answer := make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		switch {
		case d.id == "head" && !healed.Load():
			return hopeless{errors.New("too large")}
		case d.id == "silent":
			<-answer
		}
		return nil
	})
	log := &testkit.Logs{}
	cfg := quick(schema.Config{})
	cfg.AfterDead = forwarder.BlockKey
	cfg.BatchSize, cfg.Window = 50, 20
	cfg.StallTimeout = time.Second
	cfg.Logger = log
	start(t, db, &pipelined{broker: b}, cfg)
	proceed := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(proceed)
	put(t, db, schema.Config{}, "t", msg("head", "key"), msg("next", "key"))
	eventually(t, "it is dead", func() bool { return dead(t, db) == 1 })
	goBy(t, db, b, "free")

	put(t, db, schema.Config{}, "t", msg("silent", ""))
	eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=t") })
	healed.Store(true)
	_, err := deadLetters(t, db, schema.Config{}).ReplayMatching(t.Context(), ann, anybody, deadletter.Plan{})
	require.NoError(t, err)
	for i := range 60 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint("other", i), fmt.Sprint("other", i)))
	}
	put(t, db, schema.Config{}, "t", msg("later", "key"))
	put(t, db, schema.Config{}, "another", msg("behind", ""))
	eventually(t, "all of them were read", func() bool { return b.has("behind") })
	proceed()
	drained(t, db)
	require.Equal(t, []string{"head", "next", "later"}, b.ids(func(d delivery) bool { return d.key == "key" }))
}

func TestADeadLetterThatFailsAgainBlocksItsKeyAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		s := newStuck(t, db, config)
		_, err := s.letters.ReplayMatching(t.Context(), ann, anybody, deadletter.Plan{})
		require.NoError(t, err)
		eventually(t, "it died again", func() bool { return dead(t, db) == 1 && s.broker.tries("head") == 2 })
		require.Equal(t, 1, s.blockedKeys("dead"))
		require.Equal(t, 30, pending(t, db))
		s.healed.Store(true)
		_, err = s.letters.ReplayMatching(t.Context(), ann, anybody, deadletter.Plan{})
		require.NoError(t, err)
		s.drained("head")
	})
}

func TestAKeyGoesOnWithoutItsLetter(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(ctx context.Context, letters *deadletter.Letters) error{
		"discard": func(ctx context.Context, letters *deadletter.Letters) error {
			_, err := letters.DiscardMatching(ctx, ann, anybody)
			return err
		},
		"release": func(ctx context.Context, letters *deadletter.Letters) error {
			return letters.Release(ctx, ann, "key")
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				s := newStuck(t, db, config)
				require.NoError(t, act(t.Context(), s.letters))
				s.drained()
				if name == "discard" {
					require.Zero(t, dead(t, db))
					require.Equal(t, []string{"ann | discard | dead:1 | head | the queue is back"}, audits(t, db))
					return
				}
				require.Equal(t, 1, dead(t, db))
				require.Equal(t, []string{"ann | release | key:key |  | the queue is back"}, audits(t, db))
				require.ErrorIs(t, s.letters.Release(t.Context(), ann, "key"), deadletter.ErrNotBlocked)

				s.healed.Store(true)
				_, err := s.letters.ReplayMatching(t.Context(), ann, anybody, deadletter.Plan{})
				require.NoError(t, err)
				drained(t, db)
				require.True(t, s.broker.has("head"))
			})
		})
	}
}

// A key that was released while no forwarder ran is sent by the next forwarder. A
// blocked key without waiting messages is unblocked too.
func TestKeysGoOnWithoutAForwarder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		s := newStuck(t, db, config)
		require.NoError(t, s.fwd.Close())
		insertDead(t, db, msg("lonely", "lonely"), msg("not blocking", "key"))
		exec(t, db, `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('lonely', 1000, 1000, 'dead')`)
		_, err := s.letters.DiscardMatching(t.Context(), ann, deadletter.Filter{MessageID: "not blocking"})
		require.NoError(t, err)
		require.Equal(t, 2, s.blockedKeys("dead"), "another letter than the one that blocks the key")
		_, err = s.letters.DiscardMatching(t.Context(), ann, anybody)
		require.NoError(t, err)
		require.Equal(t, 1, s.blockedKeys("released"))
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_blocked_keys`))
		require.Zero(t, inNoSweep(t, db))
		s.begin()
		s.drained()
	})
}

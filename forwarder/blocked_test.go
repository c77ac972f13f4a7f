package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
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
	letters *dead.Letters
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
	eventually(t, "it is dead, the others are sent", func() bool { return pending(t, db) == 30 && countDead(t, db) == 1 })
	put(t, db, config, "t", msg("free30", ""))
	eventually(t, "the read goes on behind them", func() bool { return s.broker.has("free30") })
	if got := s.blockedKeys("dead"); got != 1 {
		t.Fatalf(`s.blockedKeys("dead") is %d, want 1`, got)
	}
	return s
}

// begin starts a forwarder. It first closes the forwarder that ran before.
func (s *stuck) begin() {
	s.Helper()
	if s.fwd != nil {
		kit.OK(s, s.fwd.Close())
	}
	s.fwd = start(s.T, s.db, &pipelined{broker: s.broker}, s.config)
}

func (s *stuck) blockedKeys(reason string) int {
	s.Helper()
	return count(s.T, s.db, `SELECT COUNT(*) FROM once_blocked_keys WHERE reason = $1`, reason)
}

// drained waits until everything is sent. It checks that the messages of the blocked key
// were sent in order: those in replayed, and then the waiting messages. It waits for less
// than a minute, so that the read of the whole outbox, which happens once a minute,
// cannot help.
func (s *stuck) drained(replayed ...string) {
	s.Helper()
	drained(s.T, s.db)
	want := replayed
	for i := range 30 {
		want = append(want, fmt.Sprint("next", i))
	}
	if got := s.broker.ids(func(d delivery) bool { return d.key == "key" }); !reflect.DeepEqual(got, want) {
		s.Fatalf("broker.ids is %q, want %q", got, want)
	}
	if len(s.broker.overlaps) != 0 {
		s.Fatalf("broker.overlaps are %q, want none", s.broker.overlaps)
	}
	kit.WantNumber(s.T, s.db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)
	if got := inNoSweep(s.T, s.db); got != 0 {
		s.Fatalf("inNoSweep(s.T, s.db) is %d, want 0", got)
	}
}

func TestALetterGoesBackBeforeThoseThatWaitForIt(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, restart := range []string{"no restart", "before", "after", "while it is refused"} {
		t.Run(restart, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				s := newStuck(t, db, config)
				if restart == "before" || restart == "after" {
					kit.OK(t, s.fwd.Close())
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
				report, err := s.letters.ReplayMatching(t.Context(), ann, operate.Filter{OrderingKey: "key"}, operate.Plan{})
				kit.OK(t, err)
				if report.Changed != 1 {
					t.Fatalf("report.Replayed is %d, want 1", report.Changed)
				}
				switch restart {
				case "after":
					if got := s.blockedKeys("replayed"); got != 1 {
						t.Fatalf(`s.blockedKeys("replayed") is %d, want 1`, got)
					}
					if got := inNoSweep(t, db); got != 0 {
						t.Fatalf("inNoSweep is %d, want 0", got)
					}
					s.begin()
				case "while it is refused":
					eventually(t, "it is refused again", func() bool { return attempts(t, db, "head") > 1 })
					if got := inNoSweep(t, db); got != 0 {
						t.Fatalf("inNoSweep is %d, want 0", got)
					}
					s.begin()
					eventually(t, "and again", func() bool { return attempts(t, db, "head") > 3 })
					if s.broker.has("next0") {
						t.Fatal(`s.broker.has("next0") returned true`)
					}
					s.healed.Store(true)
				}
				s.drained("head")
				if got := countDead(t, db); got != 0 {
					t.Fatalf("dead is %d, want 0", got)
				}
			})
		})
	}
}

// A dead letter that is replayed is sent before the waiting messages of its key, even if
// more messages wait than the forwarder reads at a time, and the topic does not confirm
// for some time.
func TestALetterGoesBackWhileItsTopicDoesNotAnswer(t *testing.T) {
	t.Parallel()
	db := alone(t)
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
	log := &kit.Logs{}
	cfg := quick(schema.Config{})
	cfg.AfterDead = forwarder.BlockKey
	cfg.BatchSize, cfg.Window = 50, 20
	cfg.StallTimeout = time.Second
	cfg.Logger = log
	start(t, db, &pipelined{broker: b}, cfg)
	proceed := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(proceed)
	put(t, db, schema.Config{}, "t", msg("head", "key"), msg("next", "key"))
	eventually(t, "it is dead", func() bool { return countDead(t, db) == 1 })
	goBy(t, db, b, "free")

	put(t, db, schema.Config{}, "t", msg("silent", ""))
	eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=t") })
	healed.Store(true)
	kit.OK(t, kit.Err(deadLetters(t, db, schema.Config{}).ReplayMatching(t.Context(), ann, anybody, operate.Plan{})))
	for i := range 60 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint("other", i), fmt.Sprint("other", i)))
	}
	put(t, db, schema.Config{}, "t", msg("later", "key"))
	put(t, db, schema.Config{}, "another", msg("behind", ""))
	eventually(t, "all of them were read", func() bool { return b.has("behind") })
	proceed()
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"head", "next", "later"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}

func TestADeadLetterThatFailsAgainBlocksItsKeyAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		s := newStuck(t, db, config)
		_, err := s.letters.ReplayMatching(t.Context(), ann, anybody, operate.Plan{})
		kit.OK(t, err)
		eventually(t, "it died again", func() bool { return countDead(t, db) == 1 && s.broker.tries("head") == 2 })
		if got := s.blockedKeys("dead"); got != 1 {
			t.Fatalf(`s.blockedKeys("dead") is %d, want 1`, got)
		}
		if got := pending(t, db); got != 30 {
			t.Fatalf("pending is %d, want 30", got)
		}
		s.healed.Store(true)
		kit.OK(t, kit.Err(s.letters.ReplayMatching(t.Context(), ann, anybody, operate.Plan{})))
		s.drained("head")
	})
}

func TestAKeyGoesOnWithoutItsLetter(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(ctx context.Context, letters *dead.Letters) error{
		"discard": func(ctx context.Context, letters *dead.Letters) error {
			_, err := letters.DiscardMatching(ctx, ann, anybody)
			return err
		},
		"release": func(ctx context.Context, letters *dead.Letters) error {
			return letters.Release(ctx, ann, "key")
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				s := newStuck(t, db, config)
				kit.OK(t, act(t.Context(), s.letters))
				s.drained()
				if name == "discard" {
					if got := countDead(t, db); got != 0 {
						t.Fatalf("dead is %d, want 0", got)
					}
					if got, want := audits(t, db), []string{"ann | discard | dead:1 | head | the queue is back"}; !slices.Equal(got, want) {
						t.Fatalf("audits are %q, want %q", got, want)
					}
					return
				}
				if got := countDead(t, db); got != 1 {
					t.Fatalf("dead is %d, want 1", got)
				}
				if got, want := audits(t, db), []string{"ann | release | key:key |  | the queue is back"}; !slices.Equal(got, want) {
					t.Fatalf("audits are %q, want %q", got, want)
				}
				if err := s.letters.Release(t.Context(), ann, "key"); !errors.Is(err, dead.ErrNotBlocked) {
					t.Fatalf("Release: got %v, want ErrNotBlocked", err)
				}

				s.healed.Store(true)
				kit.OK(t, kit.Err(s.letters.ReplayMatching(t.Context(), ann, anybody, operate.Plan{})))
				drained(t, db)
				if !s.broker.has("head") {
					t.Fatal(`s.broker.has("head") returned false`)
				}
			})
		})
	}
}

// If a key was released while no forwarder ran, the next forwarder sends its messages.
// A blocked key without waiting messages is unblocked too.
func TestKeysGoOnWithoutAForwarder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		s := newStuck(t, db, config)
		kit.OK(t, s.fwd.Close())
		insertDead(t, db, msg("lonely", "lonely"), msg("not blocking", "key"))
		exec(t, db, `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('lonely', 1000, 1000, 'dead')`)
		_, err := s.letters.DiscardMatching(t.Context(), ann, operate.Filter{MessageID: "not blocking"})
		kit.OK(t, err)
		if got := s.blockedKeys("dead"); got != 2 {
			t.Fatalf(`s.blockedKeys("dead") is %d, want 2: another letter than the one that blocks the key`, got)
		}
		kit.OK(t, kit.Err(s.letters.DiscardMatching(t.Context(), ann, anybody)))
		if got := s.blockedKeys("released"); got != 1 {
			t.Fatalf(`s.blockedKeys("released") is %d, want 1`, got)
		}
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_blocked_keys`)
		if got := inNoSweep(t, db); got != 0 {
			t.Fatalf("inNoSweep is %d, want 0", got)
		}
		s.begin()
		s.drained()
	})
}

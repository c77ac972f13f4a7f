package forwarder_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestClassify(t *testing.T) {
	plain := errors.New("plain")
	for want, errs := range map[forwarder.Outcome][]error{
		forwarder.Confirmed:    {nil},
		forwarder.Refused:      {refusal{plain}, fmt.Errorf("wrapped: %w", refusal{plain}), errors.Join(plain, refusal{plain})},
		forwarder.Unacceptable: {hopeless{plain}, fmt.Errorf("wrapped: %w", hopeless{plain})},
		forwarder.Unavailable:  {outage{plain}, fmt.Errorf("wrapped: %w", outage{plain})},
		forwarder.Unknown:      {plain, unsure{plain}, fmt.Errorf("wrapped: %w", plain)},
	} {
		for _, err := range errs {
			if got := forwarder.Classify(err); got != want {
				t.Fatalf("forwarder.Classify(err) is %v, want %v: %v", got, want, err)
			}
		}
		if got := want.String(); got == "invalid" {
			t.Fatalf("want.String is %q, want another", got)
		}
	}
}

// attempts returns the number of attempts that are counted for a message.
func attempts(t *testing.T, db *sql.DB, id string) int {
	t.Helper()
	return count(t, db, `SELECT COALESCE(MAX(attempts), -1) FROM once_outbox WHERE message_id = $1`, id)
}

func countDead(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox_dead`)
}

func TestRefusedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.id == "bad" && d.attempt < 4 {
				return refusal{errors.New("no \x00 \xff queue")}
			}
			return nil
		})
		cfg := quick(config)
		var asked atomic.Int64
		cfg.Backoff = func(attempt int) time.Duration {
			asked.Store(int64(attempt))
			return 20 * time.Millisecond
		}
		start(t, db, b, cfg)
		put(t, db, config, "t", msg("bad", ""), msg("good", ""))
		drained(t, db)
		if got, want := b.ids(nil), []string{"good", "bad"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids(nil) is %q, want %q", got, want)
		}
		b.triedTimes(t, "bad", 4)
		if got := asked.Load(); got != 3 {
			t.Fatalf("asked.Load is %d, want 3", got)
		}
		if got := countDead(t, db); got != 0 {
			t.Fatalf("dead is %d, want 0", got)
		}
	})
}

func TestTrap19_TheBackoffIsInTheRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error { return refusal{errors.New("no \x00 \xff queue")} })
		cfg := quick(config)
		cfg.Backoff = func(int) time.Duration { return time.Hour }
		put(t, db, config, "t", msg("bad", ""))
		for range 3 { // restarts must not change it
			f := start(t, db, b, cfg)
			eventually(t, "it was refused", func() bool { return attempts(t, db, "bad") == 1 })
			kit.OK(t, f.Close())
		}
		b.triedTimes(t, "bad", 1)
		if got := attempts(t, db, "bad"); got != 1 {
			t.Fatalf(`attempts("bad") is %d, want 1`, got)
		}
		var text string
		kit.OK(t, db.QueryRow(`SELECT last_error FROM once_outbox`).Scan(&text))
		if text != "no \uFFFD \uFFFD queue" {
			t.Fatalf(`text is %q, want "no � � queue"`, text)
		}
		soonest, latest := `now() + interval '40 minutes'`, `now() + interval '80 minutes'`
		if config.Dialect == schema.SQLite {
			soonest, latest = `unixepoch() * 1000 + 2400000`, `unixepoch() * 1000 + 4800000`
		}
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox WHERE due_at BETWEEN `+soonest+` AND `+latest)
	})
}

func TestTrap22_DeadAfterTheLastAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.id == "bad" {
				return refusal{errors.New("no queue")}
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 3
		start(t, db, &pipelined{broker: b}, cfg)
		bad := msg("bad", "key")
		bad.Payload = []byte{0, 255}
		bad.Metadata["a"] = "b"
		put(t, db, config, "t", bad, msg("next", "key"), msg("other", ""))
		drained(t, db)
		if !b.has("other", "next") {
			t.Fatal(`b.has("other", "next") returned false: the key goes on`)
		}
		b.triedTimes(t, "bad", 3)
		kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)

		var (
			id, topic, key, text, reason, metadata string
			payload                                []byte
			attempts                               int
			unknown                                bool
		)
		kit.OK(t, db.QueryRow(`SELECT message_id, topic, ordering_key, payload, CAST(metadata AS text), attempts,
			last_error, reason, unknown FROM once_outbox_dead`).
			Scan(&id, &topic, &key, &payload, &metadata, &attempts, &text, &reason, &unknown))
		want := []any{"bad", "t", "key", []byte{0, 255}, 3, "no queue", "exhausted", false}
		if got := []any{id, topic, key, payload, attempts, text, reason, unknown}; !reflect.DeepEqual(got, want) {
			t.Fatalf("id, topic, key, payload, attempts, text, reason, unknown are %v, want %v", got, want)
		}
		var fields map[string]string
		kit.OK(t, json.Unmarshal([]byte(metadata), &fields))
		if want := map[string]string{"a": "b", outbox.OrderingKey: "key"}; !maps.Equal(fields, want) {
			t.Fatalf("metadata is %q, want %q", fields, want)
		}
	})
}

func TestTrap11_UnacceptableDiesAtOnceAndAlone(t *testing.T) {
	t.Parallel()
	for _, after := range []forwarder.AfterDead{forwarder.SendSuccessors, forwarder.BlockKey} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				b := newBroker().answering(func(d delivery) error {
					if d.id == "bad" {
						return hopeless{errors.New("too large")}
					}
					return nil
				})
				cfg := quick(config)
				cfg.AfterDead = after
				f := start(t, db, &pipelined{broker: b}, cfg)
				put(t, db, config, "t", msg("first", "key"), msg("bad", "key"), msg("next", "key"), msg("other", "other"), msg("free", ""))
				eventually(t, "it is dead", func() bool { return countDead(t, db) == 1 })
				b.triedTimes(t, "bad", 1)
				if after == forwarder.BlockKey {
					eventually(t, "others are sent", func() bool { return b.has("first", "other", "free") && pending(t, db) == 1 })
					kit.OK(t, f.Close())
					f = start(t, db, &pipelined{broker: b}, cfg) // a restart must not unblock the key
					put(t, db, config, "t", msg("later", "key"), msg("more", ""))
					eventually(t, "others are sent", func() bool { return b.has("more") })
					if b.has("next") {
						t.Fatal(`b.has("next") returned true`)
					}
					if b.has("later") {
						t.Fatal(`b.has("later") returned true`)
					}

					exec(t, db, `DELETE FROM once_outbox_dead`)
					kit.OK(t, f.Close())
					start(t, db, &pipelined{broker: b}, cfg) // without a restart, this would take up to a minute
				}
				drained(t, db)
				kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)
				if !b.has("first", "next", "other", "free") {
					t.Fatal(`b.has("first", "next", "other", "free") returned false`)
				}
			})
		})
	}
}

func TestTrap12_AnOutageChargesNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		for name, failure := range map[string]error{
			"unavailable":         outage{errors.New("no connection")},
			"unknown":             unsure{errors.New("no answer")},
			"of another's making": errors.New("plain"),
		} {
			t.Run(name, func(t *testing.T) {
				var down atomic.Bool
				down.Store(true)
				b := newBroker().answering(func(delivery) error {
					if down.Load() {
						return failure
					}
					return nil
				})
				cfg := quick(config)
				cfg.MaxAttempts = 1
				f := start(t, db, &pipelined{broker: b}, cfg)
				var msgs []*message.Message
				for i := range 50 {
					key := ""
					if i%2 == 0 {
						key = fmt.Sprint("key", i%3)
					}
					msgs = append(msgs, msg(fmt.Sprint(name, i), key))
				}
				put(t, db, config, "t", msgs...)
				eventually(t, "several tries", func() bool {
					b.mu.Lock()
					defer b.mu.Unlock()
					tries := 0
					for _, n := range b.attempts {
						tries += n
					}
					return tries >= 4
				})
				kit.WantNumber(t, db, 50, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL`)
				down.Store(false)
				drained(t, db)
				if got := countDead(t, db); got != 0 {
					t.Fatalf("dead is %d, want 0", got)
				}
				if got := b.ids(nil); len(got) != 50 {
					t.Fatalf("len(b.ids(nil)) is %d, want 50: %q", len(got), got)
				}
				kit.OK(t, f.Close())
			})
		}
	})
}

func TestTrap67_TheCulpritIsFoundAndItsNeighboursAreNotCharged(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBreaker(t, func(id string) bool { return id == "20" || id == "33" })
		start(t, db, b, quick(config))
		var msgs []*message.Message
		for i := range 60 {
			key := ""
			if i%3 == 0 {
				key = fmt.Sprint("key", i%2)
			}
			msgs = append(msgs, msg(fmt.Sprint(i), key))
		}
		put(t, db, config, "t", msgs...)
		eventually(t, "the culprits are dead", func() bool { return countDead(t, db) == 2 })
		drained(t, db)
		if got := b.ids(nil); len(got) != 58 {
			t.Fatalf("len(b.ids(nil)) is %d, want 58: %q", len(got), got)
		}
		got := count(t, db, `SELECT COUNT(*) FROM once_outbox_dead
			WHERE message_id IN ('20', '33') AND attempts = 1 AND unknown`)
		if got != 2 {
			t.Fatalf("count is %d, want 2", got)
		}
	})
}

func TestForeignPoisonIsChargedWhenOthersGetThrough(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.id == "bad1" || d.id == "bad2" {
				return errors.New("some error")
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 2
		start(t, db, b, cfg)
		put(t, db, config, "t", msg("bad1", "a"), msg("bad2", "b"))
		eventually(t, "they are tried again and again", func() bool { return b.tries("bad1") > 1 && b.tries("bad2") > 1 })
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`); got != 2 {
			t.Fatalf("count is %d, want 2: it may be the broker", got)
		}
		sent := 0
		eventually(t, "it was not the broker", func() bool {
			put(t, db, config, "t", msg(fmt.Sprint(sent), ""))
			sent++
			return countDead(t, db) == 2
		})
		drained(t, db)
		if got := b.ids(nil); len(got) != sent {
			t.Fatalf("len(b.ids(nil)) is %d, want %d: %q", len(got), sent, got)
		}
		kit.WantNumber(t, db, 2, `SELECT COUNT(*) FROM once_outbox_dead WHERE attempts = 2`)
	})
}

// hostile is an error whose methods panic.
type hostile struct{}

func (h hostile) Error() string { panic(h) }
func (h hostile) Refused() bool { panic(h) }

// topicsError is an error whose method OneTopic panics. The forwarder calls this method after all others.
type topicsError struct{ error }

func (topicsError) Unavailable() bool { return true }
func (topicsError) OneTopic() bool    { panic(hostile{}) }

// Traps 108 and 109. A panic of the publisher, of a method of its error, of Backoff or
// of Classify, and a publisher that ends its goroutine, must stop neither the forwarder
// nor other messages.
func TestTrap109_PublisherThatPanicsOrEndsItsGoroutineStopsNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			switch {
			case d.attempt > 1 && d.id != "refused":
			case d.id == "panics":
				panic(hostile{})
			case d.id == "exits":
				runtime.Goexit()
			case d.id == "hostile":
				return hostile{}
			case d.id == "hostile to topics":
				return topicsError{errors.New("unavailable")}
			case d.id == "refused":
				return unclassified{}
			}
			return nil
		})
		c := quick(config)
		c.Workers, c.MaxAttempts = 1, 2
		c.Backoff = func(int) time.Duration { runtime.Goexit(); return 0 }
		c.Classify = func(err error) forwarder.Outcome {
			if _, panics := errors.AsType[unclassified](err); panics {
				panic(hostile{})
			}
			return forwarder.Classify(err)
		}
		start(t, db, b, c)
		ids := []string{"panics", "exits", "hostile", "hostile to topics", "good"}
		put(t, db, config, "t", msg("refused", ""))
		for _, id := range ids {
			put(t, db, config, "t", msg(id, ""))
		}
		eventually(t, "the others are sent", func() bool { return b.has(ids...) })
		more := 0
		eventually(t, "the message is dead", func() bool { // it is only refused if others are confirmed
			more++
			put(t, db, config, "t", msg(fmt.Sprint(more), ""))
			return countDead(t, db) == 1
		})
	})
}

// unclassified is an error for which the test's Classify panics.
type unclassified struct{}

func (unclassified) Error() string { return "unclassified" }

func TestMetadataThatIsNoMapDiesAlone(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('bad', 't', 1, '', '["x"]')`)
		put(t, db, config, "t", msg("good", ""))
		start(t, db, b, quick(config))
		drained(t, db)
		if got, want := b.ids(nil), []string{"good"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids(nil) is %q, want %q", got, want)
		}
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_dead WHERE reason = 'unacceptable'`)
	})
}

// The policy of a topic sets the number of attempts, and decides what happens to the
// later messages of a key.
func TestTopicHasItsOwnPolicy(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.id == "after-payment" || d.id == "after-mail" || d.id == "after-other" {
				return nil
			}
			return refusal{errors.New("no queue")}
		})
		cfg := quick(config)
		cfg.MaxAttempts = 3
		cfg.Policies = map[string]forwarder.Policy{
			"payments": {MaxAttempts: 5, AfterDead: forwarder.BlockKey},
			"mails":    {MaxAttempts: 1},
		}
		put(t, db, config, "payments", msg("payment", "p"))
		put(t, db, config, "mails", msg("mail", "m"), msg("after-mail", "m"))
		put(t, db, config, "others", msg("after-payment", "p"), msg("other", "o"), msg("after-other", "o"))
		start(t, db, &pipelined{broker: b}, cfg)
		eventually(t, "three are dead", func() bool { return count(t, db, `SELECT COUNT(*) FROM once_outbox_dead`) == 3 })
		eventually(t, "the others are sent", func() bool { return b.has("after-mail", "after-other") })
		b.triedTimes(t, "payment", 5)
		b.triedTimes(t, "mail", 1)
		if got := b.tries("other"); got != 3 {
			t.Fatalf(`b.tries("other") is %d, want 3: as without a policy`, got)
		}
		giveTime(50 * time.Millisecond)
		if b.has("after-payment") {
			t.Fatal(`b.has("after-payment") returned true: its key is blocked`)
		}
		if got := pending(t, db); got != 1 {
			t.Fatalf("pending is %d, want 1", got)
		}
	})
}

// A topic can have its own pauses between attempts.
func TestTopicHasItsOwnBackoff(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error { return refusal{errors.New("no queue")} })
		cfg := quick(config)
		cfg.Backoff = func(int) time.Duration { return time.Hour }
		cfg.Policies = map[string]forwarder.Policy{"quick": {Backoff: func(int) time.Duration { return time.Millisecond }}}
		put(t, db, config, "slow", msg("slow", ""))
		put(t, db, config, "quick", msg("quick", ""))
		start(t, db, &pipelined{broker: b}, cfg)
		eventually(t, "the quick one has had all attempts", func() bool { return b.tries("quick") == 20 })
		b.triedTimes(t, "slow", 1)
	})
}

func TestPolicyErrorNamesTopicAndField(t *testing.T) {
	_, err := forwarder.New(nil, nil, forwarder.Config{Policies: map[string]forwarder.Policy{
		"":  {},
		"a": {MaxAttempts: -1},
		"b": {AfterDead: 7},
	}})
	for _, text := range []string{`topic ""`, `Policies["a"].MaxAttempts is -1`, `Policies["b"].AfterDead is 7`} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("got %v, want an error with %q", err, text)
		}
	}
}

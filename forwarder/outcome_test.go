package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
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
			require.Equal(t, want, forwarder.Classify(err), "%v", err)
		}
		require.NotEqual(t, "invalid", want.String())
	}
}

// attempts returns the number of attempts that are counted for a message.
func attempts(t *testing.T, db *sql.DB, id string) int {
	t.Helper()
	return count(t, db, `SELECT COALESCE(MAX(attempts), -1) FROM once_outbox WHERE message_id = $1`, id)
}

func dead(t *testing.T, db *sql.DB) int {
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
		require.Equal(t, []string{"good", "bad"}, b.ids(nil))
		require.Equal(t, 4, b.tries("bad"))
		require.EqualValues(t, 3, asked.Load())
		require.Zero(t, dead(t, db))
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
			require.NoError(t, f.Close())
		}
		require.Equal(t, 1, b.tries("bad"))
		require.Equal(t, 1, attempts(t, db, "bad"))
		var text string
		require.NoError(t, db.QueryRow(`SELECT last_error FROM once_outbox`).Scan(&text))
		require.Equal(t, "no \uFFFD \uFFFD queue", text)
		soonest, latest := `now() + interval '40 minutes'`, `now() + interval '80 minutes'`
		if config.Dialect == schema.SQLite {
			soonest, latest = `unixepoch() * 1000 + 2400000`, `unixepoch() * 1000 + 4800000`
		}
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE due_at BETWEEN `+soonest+` AND `+latest))
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
		require.True(t, b.has("other", "next"), "the key goes on")
		require.Equal(t, 3, b.tries("bad"))
		require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_blocked_keys`))

		var (
			id, topic, key, text, reason, metadata string
			payload                                []byte
			attempts                               int
			unknown                                bool
		)
		require.NoError(t, db.QueryRow(`SELECT message_id, topic, ordering_key, payload, CAST(metadata AS text), attempts,
			last_error, reason, unknown FROM once_outbox_dead`).
			Scan(&id, &topic, &key, &payload, &metadata, &attempts, &text, &reason, &unknown))
		require.Equal(t, []any{"bad", "t", "key", []byte{0, 255}, 3, "no queue", "exhausted", false},
			[]any{id, topic, key, payload, attempts, text, reason, unknown})
		require.JSONEq(t, `{"a":"b","once_ordering_key":"key"}`, metadata)
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
				eventually(t, "it is dead", func() bool { return dead(t, db) == 1 })
				require.Equal(t, 1, b.tries("bad"))
				if after == forwarder.BlockKey {
					eventually(t, "others are sent", func() bool { return b.has("first", "other", "free") && pending(t, db) == 1 })
					require.NoError(t, f.Close())
					f = start(t, db, &pipelined{broker: b}, cfg) // a restart must not unblock the key
					put(t, db, config, "t", msg("later", "key"), msg("more", ""))
					eventually(t, "others are sent", func() bool { return b.has("more") })
					require.False(t, b.has("next"))
					require.False(t, b.has("later"))

					exec(t, db, `DELETE FROM once_outbox_dead`)
					require.NoError(t, f.Close())
					start(t, db, &pipelined{broker: b}, cfg) // without a restart, this would take up to a minute
				}
				drained(t, db)
				require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_blocked_keys`))
				require.True(t, b.has("first", "next", "other", "free"))
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
				require.Equal(t, 50, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL`))
				down.Store(false)
				drained(t, db)
				require.Zero(t, dead(t, db))
				require.Len(t, b.ids(nil), 50)
				require.NoError(t, f.Close())
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
		eventually(t, "the culprits are dead", func() bool { return dead(t, db) == 2 })
		drained(t, db)
		require.Len(t, b.ids(nil), 58)
		require.Equal(t, 2, count(t, db, `SELECT COUNT(*) FROM once_outbox_dead
			WHERE message_id IN ('20', '33') AND attempts = 1 AND unknown`))
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
		require.Equal(t, 2, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`), "it may be the broker")
		sent := 0
		eventually(t, "it was not the broker", func() bool {
			put(t, db, config, "t", msg(fmt.Sprint(sent), ""))
			sent++
			return dead(t, db) == 2
		})
		drained(t, db)
		require.Len(t, b.ids(nil), sent)
		require.Equal(t, 2, count(t, db, `SELECT COUNT(*) FROM once_outbox_dead WHERE attempts = 2`))
	})
}

func TestAPublisherThatPanics(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.attempt == 1 {
				panic("boom")
			}
			return nil
		})
		start(t, db, b, quick(config))
		put(t, db, config, "t", msg("1", ""), msg("2", ""))
		drained(t, db)
		require.True(t, b.has("1", "2"))
	})
}

func TestOnlyTheFirstAnswerCounts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := twice{newBroker().answering(func(d delivery) error {
			if d.attempt == 1 {
				return refusal{errors.New("no")}
			}
			return nil
		})}
		start(t, db, b, quick(config))
		for i := range 20 {
			put(t, db, config, "t", msg(fmt.Sprint(i), "key"))
		}
		drained(t, db)
		require.Len(t, b.ids(nil), 20)
		require.Zero(t, dead(t, db))
	})
}

// twice reports a second and a third result after the first one.
type twice struct{ *broker }

func (b twice) PublishAsync(topic string, m *message.Message, done func(error)) {
	done(b.Publish(topic, m))
	done(nil)
	done(hopeless{errors.New("no")})
}

// A second result for the first attempt must not be taken for the result of the second
// attempt. Here the publisher confirms the first attempt late, while the second one is
// in flight, and then refuses the second one.
func TestALateAnswerIsNotThatOfTheNextAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := &late{broker: newBroker()}
		start(t, db, b, quick(config))
		put(t, db, config, "t", msg("1", ""))
		drained(t, db)
		require.Equal(t, 3, b.tries("1"), "it was tried again after the refusal")
	})
}

// late is the publisher of this test.
type late struct {
	*broker

	first func(error)
}

func (b *late) PublishAsync(topic string, m *message.Message, done func(error)) {
	err := b.Publish(topic, m)
	switch b.tries(m.UUID) {
	case 1:
		b.first, err = done, outage{errors.New("no connection")}
	case 2:
		b.first(nil)
		err = refusal{errors.New("no")}
	}
	done(err)
}

func TestMetadataThatIsNoMapDiesAlone(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('bad', 't', 1, '', '["x"]')`)
		put(t, db, config, "t", msg("good", ""))
		start(t, db, b, quick(config))
		drained(t, db)
		require.Equal(t, []string{"good"}, b.ids(nil))
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox_dead WHERE reason = 'unacceptable'`))
	})
}

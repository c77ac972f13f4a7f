package forwarder_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/schema"
)

// A topic has its own number of attempts, and decides what happens to the later messages
// of a key.
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
		require.Equal(t, 5, b.tries("payment"))
		require.Equal(t, 1, b.tries("mail"))
		require.Equal(t, 3, b.tries("other"), "as without a policy")
		meanwhile(50 * time.Millisecond)
		require.False(t, b.has("after-payment"), "its key is blocked")
		require.Equal(t, 1, pending(t, db))
	})
}

// A topic can have pauses of its own.
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
		require.Equal(t, 1, b.tries("slow"))
	})
}

func TestPolicyErrorNamesTopicAndField(t *testing.T) {
	_, err := forwarder.New(nil, nil, forwarder.Config{Policies: map[string]forwarder.Policy{
		"":  {},
		"a": {MaxAttempts: -1},
		"b": {AfterDead: 7},
	}})
	for _, text := range []string{`topic ""`, `Policies["a"].MaxAttempts is -1`, `Policies["b"].AfterDead is 7`} {
		require.ErrorContains(t, err, text)
	}
}

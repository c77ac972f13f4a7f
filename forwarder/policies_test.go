package forwarder_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/schema"
)

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
		if got := b.tries("payment"); got != 5 {
			t.Fatalf(`b.tries("payment") is %d, want 5`, got)
		}
		if got := b.tries("mail"); got != 1 {
			t.Fatalf(`b.tries("mail") is %d, want 1`, got)
		}
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
		if got := b.tries("slow"); got != 1 {
			t.Fatalf(`b.tries("slow") is %d, want 1`, got)
		}
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

package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/schema"
)

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
		if got := b.ids(nil); len(got) != 20 {
			t.Fatalf("len(b.ids(nil)) is %d, want 20: %q", len(got), got)
		}
		if got := dead(t, db); got != 0 {
			t.Fatalf("dead is %d, want 0", got)
		}
	})
}

// twice is a publisher that reports three results for each message.
type twice struct{ *broker }

func (b twice) PublishAsync(topic string, m *message.Message, done func(error)) {
	done(b.Publish(topic, m))
	done(nil)
	done(hopeless{errors.New("no")})
}

// A second result for the first attempt must not be taken for the result of the second
// attempt. Here the publisher confirms the first attempt late, while the second attempt
// is in flight, and then refuses the second attempt.
func TestALateAnswerIsNotThatOfTheNextAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := &late{broker: newBroker()}
		start(t, db, b, quick(config))
		put(t, db, config, "t", msg("1", ""))
		drained(t, db)
		if got := b.tries("1"); got != 3 {
			t.Fatalf(`b.tries("1") is %d, want 3: it was tried again after the refusal`, got)
		}
	})
}

// late is the publisher that TestALateAnswerIsNotThatOfTheNextAttempt describes.
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

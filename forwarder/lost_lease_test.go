package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/slot"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestALostLease(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		early, late := make(chan struct{}), make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			switch {
			case d.attempt == 1 && d.id == "refused":
				<-early
				return refusal{errors.New("no")}
			case d.attempt == 1 && d.id == "unsure":
				<-late
				return unsure{errors.New("who knows")}
			case d.id == "sure":
				<-late
			}
			return nil
		})
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 15 * time.Second // long, because a busy machine may renew it late
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		put(t, db, config, "t", msg("unsure", "key"), msg("behind", "key"), msg("refused", ""), msg("sure", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("unsure")+b.tries("refused")+b.tries("sure") == 3 })

		forever := `now() + interval '1 hour'`
		if config.Dialect == schema.SQLite {
			forever = `unixepoch() * 1000 + 3600000`
		}
		exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = `+forever)
		eventually(t, "it notices", func() bool { return log.Has("taken over") })
		if log.Has("has run out") {
			t.Fatal(`log.Has("has run out") returned true: at the next renewal`)
		}
		close(early)
		put(t, db, config, "t", msg("new", ""))
		giveTime(100 * time.Millisecond) // time to send something, which it must not do
		if got := b.tries("behind") + b.tries("new"); got != 0 {
			t.Fatalf(`b.tries("behind")+b.tries("new") is %d, want 0`, got)
		}
		if got := attempts(t, db, "refused"); got != 0 {
			t.Fatalf(`attempts("refused") is %d, want 0: the new owner decides about it`, got)
		}

		exec(t, db, `UPDATE once_slots SET owner = NULL`)
		giveTime(1500 * time.Millisecond) // time to send something, which it must not do
		if got := b.tries("behind"); got != 0 {
			t.Fatalf(`b.tries("behind") is %d, want 0: its predecessor is still in flight`, got)
		}
		close(late)
		drained(t, db)
		if got := b.tries("sure"); got != 1 {
			t.Fatalf(`b.tries("sure") is %d, want 1: what was confirmed is deleted`, got)
		}
		if got := log.Count("INFO Forwarding"); got < 2 {
			t.Fatalf(`log.Count("INFO Forwarding") is %d, want at least 2: it is the owner again`, got)
		}
		if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"unsure", "behind"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids is %q, want %q", got, want)
		}
		if !b.has("new", "refused") {
			t.Fatal(`b.has("new", "refused") returned false`)
		}
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
	})
}

// After a lost lease the instance must take its slots again, except the slot with a
// message in flight whose topic does not confirm.
func TestALostLeaseWhileATopicDoesNotAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		answer := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.id == "silent" {
				<-answer
			}
			return nil
		})
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Lease = 3 * time.Second
		cfg.StallTimeout = time.Second
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		proceed := sync.OnceFunc(func() { close(answer) })
		t.Cleanup(proceed)
		put(t, db, config, "stuck", msg("silent", "key"))
		eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=stuck") })
		exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = `+now(t, db))
		eventually(t, "it notices", func() bool { return !punctual(log) })
		put(t, db, config, "t", msg("behind", "key"))
		var others []*message.Message
		for i := range 20 {
			id := fmt.Sprint("other", i)
			if slot.Of(id, "") != slot.Of("", "key") {
				others = append(others, msg(id, ""))
			}
		}
		put(t, db, config, "t", others...)
		eventually(t, "the others are sent", func() bool { return pending(t, db) == 2 })
		if got := b.tries("behind"); got != 0 {
			t.Fatalf(`b.tries("behind") is %d, want 0`, got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner = 'another'`); got != 1 {
			t.Fatalf("count is %d, want 1: another instance could have the slot in which a message is unsettled", got)
		}
		proceed()
		drained(t, db)
		if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"silent", "behind"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids is %q, want %q", got, want)
		}
		if got := b.tries("silent"); got != 1 {
			t.Fatalf(`b.tries("silent") is %d, want 1`, got)
		}
		shares(t, db, 64)
	})
}

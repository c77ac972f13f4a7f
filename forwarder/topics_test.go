package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// A queue that has lost its majority does not confirm. Other topics must continue. The
// publisher reports the messages of the queue as unknown after a timeout.
func TestTrap76_ATopicThatDoesNotAnswer(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		healed, deadline := make(chan struct{}), make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.topic != "stuck" {
				return nil
			}
			select {
			case <-healed:
				return nil
			case <-deadline:
			}
			select {
			case <-healed:
				return nil
			default:
				return unsure{errors.New("no confirm in time")}
			}
		})
		const stuck, free = 400, 200
		var first []*message.Message
		for i := range stuck {
			key := ""
			if i%4 == 0 {
				key = "shared"
			}
			first = append(first, msg(fmt.Sprintf("%04d", i), key))
		}
		put(t, db, config, "stuck", first...)
		var others []*message.Message
		for i := range free {
			others = append(others, msg(fmt.Sprint("free-", i), ""))
		}
		others = append(others, msg("9999", "shared"))
		put(t, db, config, "free", others...)

		log := &kit.Logs{}
		cfg := quick(config)
		cfg.BatchSize, cfg.Window = 40, 20 // so that one batch cannot fill the window before the forwarder sees that the topic is stuck
		cfg.StallTimeout = 3 * time.Second
		cfg.Logger = log
		start(t, db, &pipelined{broker: b}, cfg)
		eventually(t, "the other topic's are sent", func() bool { return pending(t, db) == stuck+1 })
		if b.has("9999") {
			t.Fatal(`b.has("9999") returned true: it shares a key with what is stuck`)
		}

		close(deadline)
		eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=stuck") })
		giveTime(50 * time.Millisecond) // time to handle the messages with an unknown outcome
		put(t, db, config, "free", msg("more", ""))
		eventually(t, "the other topic goes on", func() bool { return b.has("more") })

		close(healed)
		drained(t, db)
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
		if got := b.ids(nil); len(got) != stuck+free+2 {
			t.Fatalf("len(b.ids(nil)) is %d, want %d: %q", len(got), stuck+free+2, got)
		}
		if got := countDead(t, db); got != 0 {
			t.Fatalf("dead is %d, want 0", got)
		}
		kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)
		shared := b.ids(func(d delivery) bool { return d.key == "shared" })
		if !slices.IsSorted(shared) {
			t.Fatalf("shared is not sorted: %v", shared)
		}
		if got := log.Count("does not answer", "topic=stuck"); got != 1 {
			t.Fatalf(`log.Count("does not answer", "topic=stuck") is %d, want 1`, got)
		}
		if got := log.Count("answers again", "topic=stuck"); got != 1 {
			t.Fatalf(`log.Count("answers again", "topic=stuck") is %d, want 1`, got)
		}
	})
}

// After an unknown outcome, messages are published one at a time, and each waits until
// no other message is in flight. They must not wait for the messages of a topic that
// does not confirm.
func TestTrap76_ATopicThatDoesNotAnswerWhileAnotherFails(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"unknown": unsure{errors.New("no confirm in time")}, "unavailable": outage{errors.New("no connection")},
		"not said": errors.New("no"),
	} {
		t.Run(name, func(t *testing.T) {
			db := postgres(t)
			answer := make(chan struct{})
			b := newBroker().answering(func(d delivery) error {
				switch {
				case d.topic == "stuck":
					<-answer
				case d.id == "failing" && d.attempt == 1:
					return failure
				}
				return nil
			})
			log := &kit.Logs{}
			cfg := quick(schema.Config{})
			cfg.StallTimeout = time.Second
			cfg.Logger = log
			start(t, db, &pipelined{broker: b}, cfg)
			proceed := sync.OnceFunc(func() { close(answer) })
			t.Cleanup(proceed)
			put(t, db, schema.Config{}, "stuck", msg("1", ""), msg("2", ""))
			eventually(t, "the topic is stalled", func() bool { return log.Has("does not answer", "topic=stuck") })
			put(t, db, schema.Config{}, "free", msg("failing", ""), msg("other", ""))
			eventually(t, "the other topic's are sent", func() bool { return pending(t, db) == 2 })
			proceed()
			drained(t, db)
		})
	}
}

// numbers matches the counts in a log line.
var numbers = regexp.MustCompile(`=\d+`)

// The broker refuses the messages of one topic several times, and accepts those of
// another topic. The forwarder must log one error for the first refusal, and one line
// when the topic works again. Stats must count the refused messages.
func TestATopicWhoseMessagesAreRefused(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		healed := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			select {
			case <-healed:
				return nil
			default:
			}
			if d.topic != "fine" {
				return refusal{errors.New("no queue is bound")}
			}
			return nil
		})
		log := &kit.Logs{}
		cfg := quick(config)
		cfg.MaxAttempts = 1_000_000
		cfg.Logger = log
		start(t, db, b, cfg)
		put(t, db, config, "refused", msg("1", ""), msg("2", ""), msg("3", "key"))
		put(t, db, config, "denied", msg("4", ""))
		put(t, db, config, "fine", msg("5", ""))
		eventually(t, "they are refused again and again", func() bool {
			return min(b.tries("1"), b.tries("2"), b.tries("3"), b.tries("4")) > 3
		})
		const refused = "ERROR Messages of a topic are refused, they are tried again later "
		if got := log.CountLine(refused + "attempt=1 message_uuid=4 size=14 topic=denied err=no queue is bound"); got != 1 {
			t.Fatalf("it is logged %d times, want once: %q", got, log.Lines())
		}
		first := 0 // which message was the first is not known
		for id, size := range map[int]int{1: 14, 2: 14, 3: 39} {
			first += log.CountLine(fmt.Sprintf("%sattempt=1 message_uuid=%d size=%d topic=refused err=no queue is bound", refused, id, size))
		}
		if first != 1 {
			t.Fatalf("it is logged %d times, want once: %q", first, log.Lines())
		}
		if got := log.Count("ERROR"); got != 2 {
			t.Fatalf(`log.Count("ERROR") is %d, want 2`, got)
		}
		if got := log.Count("accepts messages again"); got != 0 {
			t.Fatalf(`log.Count("accepts messages again") is %d, want 0`, got)
		}
		eventually(t, "all are counted", func() bool {
			return count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE failing_since IS NOT NULL`) == 4
		})
		close(healed)
		drained(t, db)
		var again []string
		for _, line := range log.Lines() {
			if strings.Contains(line, "accepts messages again") {
				again = append(again, numbers.ReplaceAllString(line, "=N"))
			}
		}
		slices.Sort(again)
		want := []string{
			"INFO Topic accepts messages again refused=N topic=denied", "INFO Topic accepts messages again refused=N topic=refused",
		}
		if !slices.Equal(again, want) {
			t.Fatalf("logged %q, want %q", again, want)
		}
	})
}

// forbidden is the error of a publisher that lacks a right for one topic.
type forbidden struct{ error }

func (forbidden) Unavailable() bool { return true }
func (forbidden) OneTopic() bool    { return true }

// Trap 76. A topic that cannot be sent has more ordering keys than the forwarder keeps queues for. Messages
// behind them are sent, and later also those of the topic, in the order of each key.
func TestTrap76_ATopicWithManyKeys(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	const keys = 22_000
	db := kit.Postgres(t).DB
	var healed atomic.Bool
	b := newBroker().answering(func(d delivery) error {
		if d.topic == "stuck" && !healed.Load() {
			return forbidden{errors.New("no right")}
		}
		return nil
	})
	for _, rows := range []string{
		`SELECT n || '-1', 'stuck', 'k' || n, n % 64 FROM generate_series(1, ` + strconv.Itoa(keys) + `) AS n`,
		`SELECT n || '-2', 'free', 'k' || n, n % 64 FROM generate_series(1, ` + strconv.Itoa(keys) + `) AS n`,
		`SELECT 'last', 'free', NULL, 0`,
	} {
		exec(t, db, `INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
			SELECT r.*, '', '{}' FROM (`+rows+`) AS r`)
	}
	c := quick(schema.Config{})
	c.StallTimeout = time.Second
	start(t, db, b, c)
	eventually(t, "the message behind them is sent", func() bool { return b.has("last") })
	if n := len(b.ids(nil)); n != 1 {
		t.Errorf("%d messages are sent, want 1: the others wait for the first one of their key", n)
	}
	put(t, db, schema.Config{}, "free", msg("new", ""))
	eventually(t, "a new message is sent", func() bool { return b.has("new") })
	healed.Store(true)
	drained(t, db)
	first := map[string]bool{}
	for _, id := range b.ids(nil) {
		key, which, _ := strings.Cut(id, "-")
		if which == "2" && !first[key] {
			t.Fatalf("%s is sent before the first message of its key", id)
		}
		first[key] = true
	}
}

// Paused rows with keys fill many batches. The cursor passes them only after transactions of the forwarder,
// which would renew its lease every twenty seconds here.
func TestMessagesBehindManyPausedRowsAreSent(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		exec(t, db, `INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'paused', 'ann', 'lunch')`)
		for n := range 100 {
			put(t, db, config, "paused", msg(fmt.Sprint("paused ", n), fmt.Sprint("key ", n)))
		}
		put(t, db, config, "free", msg("last", ""))
		b, c := newBroker(), quick(config)
		c.BatchSize, c.Lease = 10, time.Minute
		start(t, db, b, c)
		eventually(t, "the message behind the paused ones is sent", func() bool { return b.has("last") })
	})
}

// A single topic may use at most three quarters of the window, so that other topics
// have room.
func TestTheShareOfATopic(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	answer := make(chan struct{})
	b := &pipelined{broker: newBroker().answering(func(delivery) error { <-answer; return nil })}
	cfg := quick(schema.Config{})
	cfg.Window = 20
	start(t, db, b, cfg)
	proceed := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(proceed)
	var msgs []*message.Message
	for i := range 40 {
		msgs = append(msgs, msg(fmt.Sprint(i), ""))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	flying := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.flying
	}
	eventually(t, "they are in flight", func() bool { return flying() >= 15 })
	put(t, db, schema.Config{}, "other", msg("other", ""))
	eventually(t, "the other topic's is in flight", func() bool { return b.tries("other") == 1 })
	if got := flying(); got != 16 {
		t.Fatalf("flying is %d, want 16", got)
	}
	proceed()
	drained(t, db)
}

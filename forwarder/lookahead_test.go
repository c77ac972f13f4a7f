package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	waiting "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// manyWait writes messages of the tenant "many" to a topic. Every tenth message has one
// of ten ordering keys.
func manyWait(t *testing.T, db *sql.DB, topic string, messages int) {
	t.Helper()
	exec(t, db, `
		INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
		SELECT 'many-' || n, $1, CASE WHEN n % 10 = 0 THEN 'key-' || n / 10 % 10 END, n % 64, '', '{"once_tenant_id":"many"}'
		FROM generate_series(1, $2::bigint) AS n`, topic, messages)
	// All messages of a key must have the same slot; any slot will do.
	exec(t, db, `UPDATE once_outbox SET slot = 7 WHERE ordering_key IS NOT NULL`)
}

func isMany(d delivery) bool { return len(d.id) > 5 && d.id[:5] == "many-" }

// slowly returns a broker that is slow for each message of the tenant "many", except
// for the first messages, until hurry returns true.
func slowly(hurry func(b *broker) bool) *broker {
	b := newBroker()
	return b.answering(func(d delivery) error {
		if isMany(d) && len(b.ids(isMany)) > 50 && !hurry(b) {
			takeTime(200 * time.Millisecond) // the machine may be busy
		}
		return nil
	})
}

// Trap 100. A tenant or a topic with a long backlog must not delay the few messages of
// another tenant or topic.
func TestBacklogOfOneTenantOrTopicDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]string{"tenant": "t", "topic": "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, config := kit.Postgres(t).DB, schema.Config{}
			kit.OK(t, schema.Up(t.Context(), db, config))
			manyWait(t, db, "t", 800)
			var few []string
			for i := range 10 {
				few = append(few, fmt.Sprint("few-", i))
			}
			b := slowly(func(b *broker) bool { return b.has(few...) })
			cfg := quick(config)
			cfg.BatchSize, cfg.Window = 16, 4
			start(t, db, &pipelined{broker: b}, cfg)
			eventually(t, "the backlog is being sent", func() bool { return len(b.ids(isMany)) > 20 })
			var msgs []*message.Message
			for i, id := range few {
				key := ""
				if i%2 == 0 {
					key = "few" // keys of their own, too
				}
				m := msg(id, key)
				if topic == "t" {
					outbox.SetTenant(m, "few")
				} else {
					outbox.SetTenant(m, "many")
				}
				msgs = append(msgs, m)
			}
			put(t, db, config, topic, msgs...)
			eventually(t, "the few are sent", func() bool { return b.has(few...) })
			if got := len(b.ids(isMany)); got >= 650 {
				t.Fatalf("len(b.ids(isMany)) is %d, want less than 650: not behind the backlog", got)
			}
			keyed := b.ids(func(d delivery) bool { return d.key == "few" })
			if want := []string{"few-0", "few-2", "few-4", "few-6", "few-8"}; !slices.Equal(keyed, want) {
				t.Fatalf("keyed is %q, want %q", keyed, want)
			}
			drained(t, db)
			if len(b.overlaps) != 0 {
				t.Fatalf("b.overlaps are %q, want none", b.overlaps)
			}
		})
	}
}

// Trap 100. A message that shares its key with the backlog stays behind the earlier
// messages of the key, whichever tenant they have.
func TestMessageBehindABacklogKeepsTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	db, config := kit.Postgres(t).DB, schema.Config{}
	kit.OK(t, schema.Up(t.Context(), db, config))
	manyWait(t, db, "t", 600)
	shared, free := msg("shared", "key-3"), msg("free", "")
	exec(t, db, `UPDATE once_outbox SET slot = $1 WHERE ordering_key = 'key-3'`, outboxrow.SlotOf("", "key-3"))
	outbox.SetTenant(shared, "few")
	outbox.SetTenant(free, "few")
	b := slowly(func(b *broker) bool { return b.has("free 1") })
	cfg := quick(config)
	cfg.BatchSize, cfg.Window = 16, 4
	box, err := outbox.New(outbox.Config{Schema: config})
	kit.OK(t, err)
	open, err := db.BeginTx(t.Context(), nil) // takes a position before the backlog's end, and commits late
	kit.OK(t, err)
	defer open.Rollback() //nolint:errcheck // ends the transaction if the test fails
	late, later := msg("late", "late-key"), msg("later", "late-key")
	outbox.SetTenant(late, "few")
	outbox.SetTenant(later, "few")
	kit.OK(t, box.Publisher(open).Publish("t", late))
	start(t, db, &pipelined{broker: b}, cfg)
	put(t, db, config, "t", shared, free)
	eventually(t, "the free one is sent", func() bool { return b.has("free") })
	if b.has("shared") {
		t.Fatal(`b.has("shared") returned true: it waits for its key`)
	}
	kit.OK(t, open.Commit())
	for n := range 2 { // the first lookahead can pass the late message, the last one finds the later message
		if n == 1 {
			put(t, db, config, "t", later)
		}
		id := fmt.Sprint("free ", n)
		free := msg(id, "")
		outbox.SetTenant(free, "few")
		put(t, db, config, "t", free)
		eventually(t, "it is sent", func() bool { return b.has(id) })
	}
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "late-key" }), []string{"late", "later"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
	ofKey := b.ids(func(d delivery) bool { return d.key == "key-3" || d.id == "shared" })
	if ofKey[len(ofKey)-1] != "shared" {
		t.Fatalf(`ofKey[len(ofKey)-1] is %q, want "shared"`, ofKey[len(ofKey)-1])
	}
	all := b.ids(nil)
	if got := slices.Index(all, "free"); got >= 500 {
		t.Fatalf(`"free" is at place %d, want less than 500`, got)
	}
}

// If the broker refuses messages of more keys than the forwarder keeps in memory, it
// must still send all of them when the broker accepts them again.
func TestMoreKeysThanAreKeptInMemory(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	const keys = 23_000
	db := postgres(t)
	msgs := make([]*message.Message, keys)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), fmt.Sprint("key ", i))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	var healed atomic.Bool
	b := newBroker().answering(func(delivery) error {
		if healed.Load() {
			return nil
		}
		return refusal{errors.New("the queue is full")}
	})
	cfg := quick(schema.Config{})
	cfg.Backoff = func(int) time.Duration { return 10 * time.Second }
	cfg.MaxAttempts = 1000
	start(t, db, &pipelined{broker: b}, cfg)
	kit.Falls(t, patience, "not refused so far", func() int {
		return count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`)
	})
	healed.Store(true)
	kit.Falls(t, patience, "in the outbox", func() int { return pending(t, db) })
}

// If more messages of a key wait than are kept in memory, the forwarder must read the
// next messages as soon as it needs them, and not only at the next poll.
func TestRefillsDoNotWaitForPolls(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	var msgs []*message.Message
	for i := range 600 {
		msgs = append(msgs, msg(fmt.Sprint(i), "key"))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 20, 20 // so that only five messages of a key are in memory
	cfg.PollMin, cfg.PollMax = patience, patience
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	drained(t, db)
}

var operator = operate.Act{Actor: "ann", Why: "their mail server is down"}

func newWaiting(t *testing.T, db *sql.DB, config schema.Config) *waiting.Messages {
	t.Helper()
	m, err := waiting.New(db, operate.Config{Schema: config})
	kit.OK(t, err)
	return m
}

// Trap 101. Messages of a paused topic wait, with the later messages of their keys. All other
// messages are sent. After the pause, the messages of a key are sent in their order.
func TestPausedTopicWaits(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		kit.OK(t, m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		put(t, db, config, "orders", msg("k1", "k"))
		put(t, db, config, "mails", msg("k2", "k"), msg("mail", ""))
		put(t, db, config, "orders", msg("k3", "k"), msg("other", ""), msg("o1", "o"))
		start(t, db, &pipelined{broker: b}, quick(config))
		eventually(t, "the others are sent", func() bool { return b.has("k1", "other", "o1") })
		put(t, db, config, "orders", msg("k4", "k"), msg("o2", "o"), msg("last", ""))
		eventually(t, "later ones are sent", func() bool { return b.has("o2", "last") })
		giveTime(50 * time.Millisecond)
		for _, id := range []string{"k2", "k3", "k4", "mail"} {
			if b.has(id) {
				t.Fatalf("%s was sent, although it is paused or waits for a paused message", id)
			}
		}

		kit.OK(t, m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		drained(t, db)
		if got, want := strings.Join(sentOf(b, "k"), " "), "k1 k2 k3 k4"; got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// Trap 101. If a tenant is paused while its messages are being read and sent, its
// remaining messages wait.
func TestPausedTenantWaits(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		of := func(tenant, id, key string) {
			message := msg(id, key)
			outbox.SetTenant(message, tenant)
			put(t, db, config, "orders", message)
		}
		start(t, db, &pipelined{broker: b}, quick(config))
		for i := range 20 {
			of("loud", fmt.Sprint("before", i), "l")
		}
		eventually(t, "all are sent", func() bool { return b.has("before19") })
		kit.OK(t, m.Pause(t.Context(), operator, waiting.Scope{Tenant: "loud"}))
		eventually(t, "a message waits", func() bool {
			of("loud", fmt.Sprint("probe", time.Now().UnixNano()), "")
			giveTime(100 * time.Millisecond)
			return pending(t, db) > 0
		})
		for i := range 20 {
			of("loud", fmt.Sprint("during", i), "l")
		}
		of("calm", "calm", "")
		eventually(t, "the other tenant is served", func() bool { return b.has("calm") })
		giveTime(50 * time.Millisecond)
		if b.has("during0") {
			t.Fatal("sent during the pause: during0")
		}
		kit.OK(t, m.Resume(t.Context(), operator, waiting.Scope{Tenant: "loud"}))
		drained(t, db)
		if got := sentOf(b, "l"); len(got) != 40 || got[20] != "during0" || got[39] != "during19" {
			t.Fatalf("sent in the order %q", got)
		}
	})
}

// A message that backs off is not tried again while its topic is paused.
func TestPausedTopicIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		put(t, db, config, "mails", msg("m1", "k"), msg("m2", "k"))
		exec(t, db, `UPDATE once_outbox SET due_at = created_at, failing_since = created_at, attempts = 1 WHERE message_id = 'm1'`)
		exec(t, db, `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
			SELECT ordering_key, position, position, 'refused' FROM once_outbox WHERE message_id = 'm1'`)
		kit.OK(t, m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		put(t, db, config, "orders", msg("o1", "k"), msg("other", ""))
		start(t, db, &pipelined{broker: b}, quick(config))
		eventually(t, "the other is sent", func() bool { return b.has("other") })
		giveTime(50 * time.Millisecond)
		if b.has("m1") || b.has("m2") || b.has("o1") {
			t.Fatal("sent during the pause: m1 or m2 or o1")
		}
		kit.OK(t, m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		drained(t, db)
		if got, want := strings.Join(sentOf(b, "k"), " "), "m1 m2 o1"; got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// A read returns a limited number of rows. Due messages of a paused topic must not use up
// this limit. Otherwise no due message of another topic would be read during the pause.
func TestDueMessagesDoNotWaitForPausedOnes(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		limited := quick(config)
		limited.BatchSize, limited.Window = 5, 5
		m := newWaiting(t, db, config)
		for i := range 100 {
			put(t, db, config, "mails", msg(fmt.Sprint("mail", i), ""))
		}
		put(t, db, config, "orders", msg("order", ""))
		exec(t, db, `UPDATE once_outbox SET due_at = created_at`)
		kit.OK(t, m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		start(t, db, &pipelined{broker: b}, limited)
		eventually(t, "the other topic is served", func() bool { return b.has("order") })
		kit.OK(t, m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		drained(t, db)
	})
}

// Trap 101. The next instance knows the pause from its first read.
func TestPauseOutlivesAnInstance(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		kit.OK(t, m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}))
		put(t, db, config, "mails", msg("mail", ""), msg("k1", "k"))
		for i := range 3 {
			other := fmt.Sprint("other", i)
			put(t, db, config, "orders", msg(other, ""))
			f, err := forwarder.New(db, &pipelined{broker: b}, quick(config))
			kit.OK(t, err)
			ended := kit.Go(func() error { return f.Run(context.Background()) })
			eventually(t, "the other is sent", func() bool { return b.has(other) })
			kit.OK(t, f.Close())
			kit.OK(t, <-ended)
		}
		if b.has("mail") || b.has("k1") {
			t.Fatal("sent during the pause: mail or k1")
		}
	})
}

// sentOf returns the ids of the sent messages of an ordering key.
func sentOf(b *broker, key string) []string {
	return b.ids(func(d delivery) bool { return d.key == key })
}

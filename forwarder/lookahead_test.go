package forwarder_test

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/slot"
	"github.com/watermill-once/once/internal/testkit"
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
			takeTime(50 * time.Millisecond)
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
			db, config := testkit.Postgres(t).DB, schema.Config{}
			if err := schema.Up(t.Context(), db, config); err != nil {
				t.Fatal(err)
			}
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
	db, config := testkit.Postgres(t).DB, schema.Config{}
	if err := schema.Up(t.Context(), db, config); err != nil {
		t.Fatal(err)
	}
	manyWait(t, db, "t", 600)
	shared, free := msg("shared", "key-3"), msg("free", "")
	exec(t, db, `UPDATE once_outbox SET slot = $1 WHERE ordering_key = 'key-3'`, slot.Of("", "key-3"))
	outbox.SetTenant(shared, "few")
	outbox.SetTenant(free, "few")
	b := slowly(func(b *broker) bool { return b.has("free 1") })
	cfg := quick(config)
	cfg.BatchSize, cfg.Window = 16, 4
	box, err := outbox.New(outbox.Config{Schema: config})
	if err != nil {
		t.Fatal(err)
	}
	open, err := db.BeginTx(t.Context(), nil) // takes a position before the backlog's end, and commits late
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback() //nolint:errcheck // ends the transaction if the test fails
	late, later := msg("late", "late-key"), msg("later", "late-key")
	outbox.SetTenant(late, "few")
	outbox.SetTenant(later, "few")
	if err := box.Publisher(open).Publish("t", late); err != nil {
		t.Fatal(err)
	}
	start(t, db, &pipelined{broker: b}, cfg)
	put(t, db, config, "t", shared, free)
	eventually(t, "the free one is sent", func() bool { return b.has("free") })
	if b.has("shared") {
		t.Fatal(`b.has("shared") returned true: it waits for its key`)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
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

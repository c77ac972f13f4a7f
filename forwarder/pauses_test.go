package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	waiting "github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/schema"
)

var operator = waiting.Act{Actor: "ann", Why: "their mail server is down"}

func newWaiting(t *testing.T, db *sql.DB, config schema.Config) *waiting.Messages {
	t.Helper()
	m, err := waiting.New(db, waiting.Config{Schema: config})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Trap 101. Messages of a paused topic wait, with the later messages of their keys. All other
// messages are sent. After the pause, the messages of a key are sent in their order.
func TestPausedTopicWaits(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		if err := m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
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

		if err := m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
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
		if err := m.Pause(t.Context(), operator, waiting.Scope{Tenant: "loud"}); err != nil {
			t.Fatal(err)
		}
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
		if err := m.Resume(t.Context(), operator, waiting.Scope{Tenant: "loud"}); err != nil {
			t.Fatal(err)
		}
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
		if err := m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
		put(t, db, config, "orders", msg("o1", "k"), msg("other", ""))
		f := start(t, db, &pipelined{broker: b}, quick(config))
		eventually(t, "the other is sent", func() bool { return b.has("other") })
		giveTime(50 * time.Millisecond)
		if b.has("m1") || b.has("m2") || b.has("o1") {
			t.Fatal("sent during the pause: m1 or m2 or o1")
		}
		stats, err := f.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Pauses != 1 || stats.Pending != 3 { // paused messages are part of the backlog
			t.Fatalf("stats %+v", stats)
		}
		if err := m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
		drained(t, db)
		if got, want := strings.Join(sentOf(b, "k"), " "), "m1 m2 o1"; got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// A read returns a limited number of rows. Due messages of a paused topic must not use up
// this limit. Otherwise no due message of another topic would be read during the pause.
func TestDueMessagesDoNotWaitForPausedOnes(t *testing.T) {
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
		if err := m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
		start(t, db, &pipelined{broker: b}, limited)
		eventually(t, "the other topic is served", func() bool { return b.has("order") })
		if err := m.Resume(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
		drained(t, db)
	})
}

// Trap 101. The next instance knows the pause from its first read.
func TestPauseOutlivesAnInstance(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := newWaiting(t, db, config)
		if err := m.Pause(t.Context(), operator, waiting.Scope{Topic: "mails"}); err != nil {
			t.Fatal(err)
		}
		put(t, db, config, "mails", msg("mail", ""), msg("k1", "k"))
		for i := range 3 {
			other := fmt.Sprint("other", i)
			put(t, db, config, "orders", msg(other, ""))
			f, err := forwarder.New(db, &pipelined{broker: b}, quick(config))
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- f.Run(context.Background()) }()
			eventually(t, "the other is sent", func() bool { return b.has(other) })
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
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

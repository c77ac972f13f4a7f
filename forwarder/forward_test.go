package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestForwardsInOrderAndDeletes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const many = 1500
		var msgs []*message.Message
		var want []string
		for i := range many {
			m := msg(fmt.Sprintf("id-%04d", i), "")
			outbox.SetTenant(m, "acme")
			msgs = append(msgs, m)
			want = append(want, m.UUID)
		}
		put(t, db, config, "orders/placed", msgs...)
		b := newBroker()
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)

		if got := b.ids(nil); !slices.Equal(got, want) {
			t.Fatalf("ids are %q, want %q, in the order of their positions", got, want)
		}
		if len(b.stored) != many {
			t.Fatalf("len(b.stored) is %d, want %d: each once: %+v", len(b.stored), many, b.stored)
		}
		if b.stored[0].topic != "orders/placed" {
			t.Fatalf(`b.stored[0].topic is %q, want "orders/placed"`, b.stored[0].topic)
		}
		if b.stored[0].payload != "payload of id-0000" {
			t.Fatalf(`b.stored[0].payload is %q, want "payload of id-0000"`, b.stored[0].payload)
		}
		metadata := maps.Clone(b.stored[0].metadata)
		delete(metadata, meta.CreatedAt)
		delete(metadata, meta.PublishedAt)
		if want := (message.Metadata{outbox.TenantID: "acme"}); !maps.Equal(metadata, want) {
			t.Fatalf("metadata is %v, want %v", metadata, want)
		}
	})
}

func TestForwardsToAnyPublisher(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var msgs []*message.Message
		for i := range 500 {
			msgs = append(msgs, msg(fmt.Sprint(i), ""))
		}
		put(t, db, config, "t", msgs...)
		b := newBroker().answering(func(delivery) error { takeTime(time.Millisecond); return nil })
		cfg := quick(config)
		cfg.Workers = 7
		start(t, db, b, cfg)
		drained(t, db)
		if len(b.stored) != 500 {
			t.Fatalf("len(b.stored) is %d, want 500: %+v", len(b.stored), b.stored)
		}
		if b.most > 7 {
			t.Fatalf("b.most is %d, want at most 7", b.most)
		}
		if b.most <= 1 {
			t.Fatalf("b.most is %d, want more than 1", b.most)
		}
	})
}

func TestHintWakes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		cfg := quick(config)
		cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
		b := newBroker()
		f := start(t, db, b, cfg)
		giveTime(200 * time.Millisecond) // the forwarder reads once when it starts
		put(t, db, config, "t", msg("1", ""))
		f.Hint()
		eventually(t, "it is sent", func() bool { return b.has("1") })
	})
}

func TestDelayedByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		due := time.Now().Add(300 * time.Millisecond)
		var early atomic.Bool
		b := newBroker().answering(func(d delivery) error {
			if d.id == "later" && time.Now().Before(due) {
				early.Store(true)
			}
			return nil
		})
		start(t, db, b, quick(config))
		later, never := msg("later", ""), msg("never", "")
		outbox.SetDueAt(later, due)
		outbox.SetDueAt(never, time.Now().Add(time.Hour))
		put(t, db, config, "t", later, never, msg("now", ""))
		eventually(t, "what is not delayed is sent", func() bool { return b.has("now") })
		eventually(t, "what is due is sent", func() bool { return b.has("later") })
		if early.Load() {
			t.Fatal("it was sent before it was due")
		}
		if b.has("never") {
			t.Fatal(`b.has("never") returned true`)
		}
		eventually(t, "only that one is left", func() bool { return pending(t, db) == 1 })
	})
}

func TestBytesAreBounded(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		for i := range 30 {
			m := msg(fmt.Sprint(i), "")
			m.Payload = []byte(strings.Repeat("x", 100<<10))
			put(t, db, config, "t", m)
		}
		release := make(chan struct{})
		b := newBroker().answering(func(delivery) error { <-release; return nil })
		cfg := quick(config)
		cfg.BufferBytes = 1 << 20
		start(t, db, &pipelined{broker: b}, cfg)
		inFlight := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.flying }
		eventually(t, "the buffer is full", func() bool { return inFlight() >= 8 })
		giveTime(50 * time.Millisecond) // time to read more, which it must not do
		if got := inFlight(); got > 12 {
			t.Fatalf("inFlight is %d, want at most 12: 1 MiB and at most one message more", got)
		}
		close(release)
		drained(t, db)
		if len(b.stored) != 30 {
			t.Fatalf("len(b.stored) is %d, want 30: %+v", len(b.stored), b.stored)
		}
	})
}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	db := kit.EmptyPostgres(t).DB
	f, err := forwarder.New(db, newBroker(), forwarder.Config{})
	kit.OK(t, err)
	err = f.Run(t.Context())
	if !errors.Is(err, schema.ErrMissing) {
		t.Fatalf("got %v, want ErrMissing", err)
	}
	if err == nil || !strings.Contains(err.Error(), "forwarder: ") {
		t.Fatalf(`got %v, want an error with "forwarder: "`, err)
	}
	if err == nil || !strings.Contains(err.Error(), "schema.Up") {
		t.Fatalf(`got %v, want an error with "schema.Up"`, err)
	}
	kit.OK(t, f.Close())
}

// With a database of another kind, Run must return an error, because waiting cannot
// help.
func TestADatabaseOfTheOtherKind(t *testing.T) {
	f, err := forwarder.New(kit.SQLite(t).DB, newBroker(), forwarder.Config{})
	kit.OK(t, err)
	if err := f.Run(t.Context()); !errors.Is(err, schema.ErrDialect) {
		t.Fatalf("Run: got %v, want ErrDialect", err)
	}
}

func TestRunAndCloseInAnyOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		f, err := forwarder.New(db, newBroker(), quick(config))
		kit.OK(t, err)
		kit.OK(t, f.Close())
		kit.OK(t, f.Close())
		if err := f.Run(t.Context()); !errors.Is(err, forwarder.ErrClosed) {
			t.Fatalf("Run: got %v, want ErrClosed", err)
		}

		f, err = forwarder.New(db, newBroker(), quick(config))
		kit.OK(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := kit.Go(func() error { return f.Run(ctx) })
		<-f.Running()
		if err := f.Run(t.Context()); err == nil || err.Error() != "forwarder: Run was called before" {
			t.Fatalf("Run: got %v, want an error that it was called before", err)
		}
		cancel()
		kit.OK(t, <-ended)
		kit.OK(t, f.Close())
		kit.OK(t, f.Close())
		if got := count(t, db, `SELECT COUNT(*) FROM once_slots WHERE owner IS NOT NULL`); got != 0 {
			t.Fatalf("count is %d, want 0: the lease is given back", got)
		}
	})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	_, err := forwarder.New(nil, nil, forwarder.Config{
		BatchSize: -1, Window: -1, BufferBytes: -1, Workers: -1, MaxAttempts: -1, PollMin: -1, PollMax: -1,
		Lease: time.Millisecond, CloseTimeout: -1, AfterDead: 7, Schema: schema.Config{Prefix: "-"},
	})
	for _, name := range []string{
		"db", "publisher", "BatchSize", "Window", "BufferBytes", "Workers", "MaxAttempts", "PollMin",
		"Lease", "CloseTimeout", "AfterDead", "Prefix",
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Fatalf("got %v, want an error with %q", err, name)
		}
	}
}

// A forwarded message has the times at which it was stored and published, even if a
// handler has copied these times from another message. The metadata in its row contains
// neither of these times.
func TestForwardedMessagesHaveTheirTimes(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		began := time.Now().Truncate(time.Millisecond)
		m := msg("1", "")
		m.Metadata.Set(meta.CreatedAt, "2001-01-01T00:00:00.000Z")
		m.Metadata.Set(meta.PublishedAt, "2001-01-01T00:00:00.000Z")
		put(t, db, config, "t", m)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox WHERE CAST(metadata AS text) = '{}'`)
		b := newBroker()
		start(t, db, b, quick(config))
		drained(t, db)

		created, ok := meta.Stamped(b.stored[0].metadata[meta.CreatedAt])
		if !ok {
			t.Fatalf("the metadata has no such time: %v", b.stored[0].metadata)
		}
		published, ok := meta.Stamped(b.stored[0].metadata[meta.PublishedAt])
		if !ok {
			t.Fatalf("the metadata has no such time: %v", b.stored[0].metadata)
		}
		if created.Before(began) {
			t.Fatalf("stored at %v, want at or after %v", created, began)
		}
		if published.Before(created) {
			t.Fatalf("published at %v, want at or after %v", published, created)
		}
		if published.After(time.Now()) {
			t.Fatalf("published at %v, which is in the future", published)
		}
	})
}

// Trap 118. The sequence falls back while a forwarder runs. Its new rows are below the
// cursor, and are sent immediately. If an older message still waits above them, nothing
// overtakes it: the forwarder stops reading, and logs the SQL that repairs the order.
func TestTrap118_SequenceThatFallsBackIsNoticed(t *testing.T) {
	t.Parallel()
	db, b, logs := postgres(t), newBroker(), &kit.Logs{}
	exec(t, db, `SELECT setval('once_outbox_position', 1000)`)
	config := schema.Config{}
	c := quick(config)
	c.Logger = logs
	start(t, db, b, c)
	put(t, db, config, "t", msg("first", "k"), msg("other", "other"))
	drained(t, db)
	giveTime(5 * c.PollMax) // the cursor passes the rows

	exec(t, db, `SELECT setval('once_outbox_position', 1)`)
	put(t, db, config, "t", msg("second", "k"))
	drained(t, db) // without the check after a minute, which is longer than the patience of the test

	// The row waits for an hour, and was stored before the sequence fell back again.
	exec(t, db, `SELECT setval('once_outbox_position', 1000)`)
	put(t, db, config, "t", msg("third", "other"))
	drained(t, db)
	exec(t, db, `INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata, due_at, created_at)
		SELECT 'late', 't', 'k', 0, '', '{}', now() + interval '1 hour', now() - interval '1 minute'`)
	exec(t, db, `SELECT setval('once_outbox_position', 2)`)
	put(t, db, config, "t", msg("fourth", "k"))
	const says = "run BEGIN; LOCK TABLE public.once_outbox IN EXCLUSIVE MODE;"
	eventually(t, "the repair is logged", func() bool { return logs.Has("ERROR", "a sequence is behind its table", says) })
	if b.has("k", "fourth") {
		t.Error("a newer message was sent")
	}
	exec(t, db, `SELECT setval('once_outbox_position', 2000)`)
	exec(t, db, `DELETE FROM once_outbox WHERE message_id = 'late'`)
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "k" }), []string{"first", "second", "fourth"}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// The forwarder does not use NOTIFY. But a trigger as docs/adopting.md describes must work: it
// sends a notification that an application can pass on as a Hint.
func TestTrap25_NotifyIsAHintForThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	exec(t, db.DB, `CREATE FUNCTION once_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN NOTIFY once_outbox; RETURN NULL; END $$`)
	exec(t, db.DB, `CREATE TRIGGER once_outbox_notify AFTER INSERT ON once_outbox
		FOR EACH STATEMENT EXECUTE FUNCTION once_outbox_notify()`)

	listener := pq.NewListener(db.DSN, time.Second, time.Minute, nil)
	defer func() {
		kit.OK(t, listener.Close())
	}()
	kit.OK(t, listener.Listen("once_outbox"))

	put(t, db.DB, config, "t", msg("1", ""), msg("2", ""))
	select {
	case hint := <-listener.NotificationChannel():
		if hint == nil {
			t.Fatal("hint is nil")
		}
		if hint.Channel != "once_outbox" {
			t.Fatalf(`hint.Channel is %q, want "once_outbox"`, hint.Channel)
		}
	case <-time.After(patience):
		t.Fatal("nothing was heard of the commit")
	}
	if got := listener.NotificationChannel(); len(got) != 0 {
		t.Fatalf("listener.NotificationChannel is %v, want none: once a commit", got)
	}
}

// inNoSweep counts the rows that no query of the forwarder can find: not now, not when
// they are due, and not after the first message of their blocked key is gone.
func inNoSweep(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox o
		LEFT JOIN once_blocked_keys h ON h.ordering_key = o.ordering_key
		LEFT JOIN once_outbox head ON head.position = h.position AND head.ordering_key = h.ordering_key
		LEFT JOIN once_outbox_dead dead ON dead.position = h.position AND dead.ordering_key = h.ordering_key
		WHERE NOT EXISTS (SELECT 1 FROM once_slots s WHERE s.slot = o.slot)
		   OR h.position <> o.position AND head.position IS NULL AND (dead.position IS NULL OR h.reason <> 'dead')`)
}

func TestTrap20_EveryRowIsInASweep(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(3, 4))
		healed := false
		b := newBroker().answering(func(delivery) error {
			mu.Lock()
			defer mu.Unlock()
			switch n := random.IntN(10); {
			case healed:
				return nil
			case n < 4:
				return refusal{errors.New("no")}
			case n < 5:
				return hopeless{errors.New("never")}
			case n < 6:
				return errors.New("plain")
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 3
		cfg.AfterDead = forwarder.BlockKey
		for round := range 5 {
			f := start(t, db, &pipelined{broker: b}, cfg)
			var msgs []*message.Message
			for i := range 40 {
				m := msg(fmt.Sprint(round, "-", i), "")
				switch i % 4 {
				case 0:
					outbox.SetDueAt(m, time.Now().Add(time.Duration(i)*time.Millisecond))
				case 1, 2:
					outbox.SetOrderingKey(m, fmt.Sprint("key", i%16))
				}
				msgs = append(msgs, m)
			}
			put(t, db, config, "t", msgs...)
			eventually(t, "it has begun", func() bool { return b.tries(fmt.Sprint(round, "-3")) > 0 })
			kit.OK(t, f.Close())
			if got := inNoSweep(t, db); got != 0 {
				t.Fatalf("inNoSweep is %d, want 0", got)
			}
		}
		mu.Lock()
		healed = true
		mu.Unlock()
		exec(t, db, `UPDATE once_blocked_keys SET reason = 'refused' WHERE reason = 'dead'`) // so that keys blocked by a dead letter can continue
		start(t, db, &pipelined{broker: b}, cfg)
		drained(t, db)
		if got := len(b.ids(nil)) + countDead(t, db); got != 200 {
			t.Fatalf("len(b.ids(nil))+countDead(t, db) is %d, want 200: each is sent or dead", got)
		}
	})
}

package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestTrap63_OneOfAKeyInFlight(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error {
			takeTime(time.Duration(rand.IntN(3)) * time.Millisecond)
			return nil
		})
		var msgs []*message.Message
		want := map[string][]string{}
		for i := range 400 {
			key := fmt.Sprint("key", i%4)
			if i%5 == 0 {
				key = ""
			}
			m := msg(fmt.Sprintf("%04d", i), key)
			want[key] = append(want[key], m.UUID)
			msgs = append(msgs, m)
		}
		put(t, db, config, "t", msgs...)
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
		if b.most <= 10 {
			t.Fatalf("b.most is %d, want more than 10: those without a key fill the window", b.most)
		}
		for key, ids := range want {
			if key != "" {
				if got := b.ids(func(d delivery) bool { return d.key == key }); !reflect.DeepEqual(got, ids) {
					t.Fatalf("b.ids is %q, want %q", got, ids)
				}
			}
		}
	})
}

func TestTrap64_ARefusedHeadBlocksItsKeyAcrossARestart(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var healed atomic.Bool
		b := newBroker().answering(func(d delivery) error {
			if d.id == "head" && !healed.Load() {
				return refusal{errors.New("no")}
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 100_000 // so that no message becomes a dead letter during the test
		cfg.Backoff = func(int) time.Duration { return 50 * time.Millisecond }
		f := start(t, db, &pipelined{broker: b}, cfg)
		put(t, db, config, "t", msg("head", "key"), msg("second", "key"), msg("other", "other"), msg("free", ""))
		eventually(t, "it was refused", func() bool { return attempts(t, db, "head") > 0 })
		kit.OK(t, f.Close())
		got := count(t, db, `SELECT COUNT(*) FROM once_blocked_keys h JOIN once_outbox o
			ON h.position = o.position AND h.ordering_key = o.ordering_key AND o.message_id = 'head' WHERE h.reason = 'refused'`)
		if got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}

		refused := b.tries("head")
		start(t, db, &pipelined{broker: b}, cfg)
		put(t, db, config, "t", msg("third", "key"), msg("more", ""))
		eventually(t, "others are sent", func() bool { return b.has("other", "free", "more") })
		eventually(t, "it is refused again", func() bool { return b.tries("head") > refused+1 })
		b.triedTimes(t, "second", 0)
		b.triedTimes(t, "third", 0)
		healed.Store(true)
		drained(t, db)
		if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"head", "second", "third"}; !slices.Equal(got, want) {
			t.Fatalf("b.ids is %q, want %q", got, want)
		}
		kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)
	})
}

func TestTrap64_ABlockedKeyWhoseHeadIsGone(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(d delivery) error {
			if d.id == "head" {
				return refusal{errors.New("no")}
			}
			return nil
		})
		cfg := quick(config)
		cfg.Backoff = func(int) time.Duration { return time.Hour }
		f := start(t, db, b, cfg)
		put(t, db, config, "t", msg("head", "key"), msg("second", "key"))
		eventually(t, "it was refused", func() bool { return attempts(t, db, "head") == 1 })
		kit.OK(t, f.Close())
		exec(t, db, `DELETE FROM once_outbox WHERE message_id = 'head'`)
		start(t, db, b, cfg)
		drained(t, db)
		if !b.has("second") {
			t.Fatal(`b.has("second") returned false`)
		}
	})
}

// Trap 64. If the first message of a blocked key does not exist any more, only the
// owner of the slot may unblock the key. The owner has read past the waiting messages.
// If another instance unblocked the key, the owner would send later messages before it
// reads the waiting messages.
func TestTrap64_OnlyTheOwnerOfASlotUnblocksItsKeys(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	key, others := within(0, 31, "key"), within(32, 63, "key")
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" {
			return refusal{errors.New("no")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.Lease = 9 * time.Second
	cfg.Backoff = func(int) time.Duration { return time.Hour }
	first := start(t, db, b, cfg)
	put(t, db, schema.Config{}, "t", msg("head", key), msg("second", key))
	eventually(t, "it was refused", func() bool { return attempts(t, db, "head") == 1 })
	for i := range 3 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint("free", i), ""))
		eventually(t, "the read goes on behind them", func() bool { return b.has(fmt.Sprint("free", i)) })
	}
	exec(t, db, `DELETE FROM once_outbox WHERE message_id = 'head'`)

	start(t, db, b, cfg)
	shares(t, db, 32, 32)
	put(t, db, schema.Config{}, "t", msg("its own", others))
	eventually(t, "the other one reads", func() bool { return b.has("its own") })
	put(t, db, schema.Config{}, "t", msg("third", key))
	put(t, db, schema.Config{}, "t", msg("behind", key+"'s neighbour"))
	eventually(t, "both read on", func() bool { return b.has("behind") })
	kit.OK(t, first.Close())
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == key }), []string{"second", "third"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}

// within returns a key or an id that begins with name, and whose slot is between low
// and high.
func within(low, high int, name string) string {
	for i := 0; ; i++ {
		key := fmt.Sprint(name, " ", i)
		if of := outboxrow.SlotOf("", key); of >= low && of <= high {
			return key
		}
	}
}

// Trap 64. An instance that has lost a slot must not unblock a key of that slot when a
// late confirm arrives. Here the new owner has not read the first message of the key
// yet, because many messages are due, but it has read past the waiting messages of the
// key.
func TestTrap64_OnlyTheOwnerOfASlotUnblocksItsKeysNow(t *testing.T) {
	t.Parallel()
	db := alone(t)
	confirm, confirmDue := make(chan struct{}), make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		switch {
		case d.id == "head" && d.attempt == 1:
			return refusal{errors.New("not yet")}
		case d.id == "head" && d.attempt == 2:
			<-confirm
		case strings.HasPrefix(d.id, "due "): // only a few, so that many are left when the head is confirmed
			select {
			case <-confirm:
			case <-confirmDue:
			}
		}
		return nil
	})
	log := &kit.Logs{}
	cfg := quick(schema.Config{})
	cfg.Lease = 3 * time.Second
	cfg.Logger = log
	start(t, db, &pipelined{broker: b}, cfg)
	proceed := sync.OnceFunc(func() { close(confirm) })
	t.Cleanup(proceed)
	key := within(0, 31, "key")
	put(t, db, schema.Config{}, "t", msg("head", key), msg("next", key))
	eventually(t, "the head is in flight again", func() bool { return b.tries("head") == 2 })
	exec(t, db, `UPDATE once_slots SET owner = 'another', lease_until = now() + interval '1 hour'`)
	eventually(t, "it notices", func() bool { return !punctual(log) })
	first := kit.One[string](t, db, `SELECT owner FROM once_forwarders`)

	var due []*message.Message
	for i := range 1000 {
		due = append(due, msg(within(0, 31, fmt.Sprint("due ", i)), ""))
	}
	put(t, db, schema.Config{}, "t", due...)
	exec(t, db, `UPDATE once_outbox SET due_at = now() - interval '1 day' WHERE message_id LIKE 'due %'`)
	cfg.BatchSize, cfg.Window = 2, 2 // so that it reads one due message at a time
	cfg.Lease = time.Minute
	second := start(t, db, &pipelined{broker: b}, cfg)
	// It gets the slots from the test. If they were free, the first instance could take
	// most of them, and send all due messages together.
	exec(t, db, `UPDATE once_slots SET owner = (SELECT owner FROM once_forwarders WHERE owner <> $1) WHERE slot <= 31`, first)
	free := func(name string) {
		id := within(0, 31, name)
		put(t, db, schema.Config{}, "t", msg(id, ""))
		eventually(t, "it is sent", func() bool {
			select {
			case confirmDue <- struct{}{}:
			default:
			}
			return b.has(id)
		})
		giveTime(50 * time.Millisecond)
	}
	for i := range 5 {
		free(fmt.Sprint("free", i))
	}
	if got := b.tries("head"); got != 2 {
		t.Fatalf(`b.tries("head") is %d, want 2: it has not come to it`, got)
	}
	proceed()
	eventually(t, "the head is gone", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'head'`) == 0
	})
	put(t, db, schema.Config{}, "t", msg("later", key))
	free("behind")
	kit.OK(t, second.Close())
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == key }), []string{"head", "next", "later"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}

// Messages of a key must be sent in order although the broker refuses some of them and
// forwarders restart.
func TestTrap21_KeyedOrderUnderRefusalsAndRestarts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const keys, each = 10, 40
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 2))
		b := newBroker().answering(func(delivery) error {
			mu.Lock()
			defer mu.Unlock()
			switch n := random.IntN(100); {
			case n < 8:
				return refusal{errors.New("no")}
			case n < 9:
				return unsure{errors.New("who knows")}
			case n < 10:
				return outage{errors.New("not now")}
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 1000
		cfg.BatchSize, cfg.Window = 50, 20
		cfg.Backoff = func(int) time.Duration { return time.Millisecond }

		f := start(t, db, &pipelined{broker: b}, cfg)
		for i := range each {
			var msgs []*message.Message
			for k := range keys {
				msgs = append(msgs, msg(fmt.Sprintf("key%d-%04d", k, i), fmt.Sprint("key", k)))
			}
			put(t, db, config, "t", msgs...)
			if i%8 == 7 {
				kit.OK(t, f.Close())
				if got := inNoSweep(t, db); got != 0 {
					t.Fatalf("inNoSweep is %d, want 0", got)
				}
				f = start(t, db, &pipelined{broker: b}, cfg)
			}
		}
		drained(t, db)
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
		for k := range keys {
			ids := b.ids(func(d delivery) bool { return d.key == fmt.Sprint("key", k) })
			if len(ids) != each {
				t.Fatalf("len(ids) is %d, want %d: %q", len(ids), each, ids)
			}
			if !slices.IsSorted(ids) {
				t.Fatalf("ids is not sorted: %v", ids)
			}
		}
		kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_blocked_keys`)
		if got := countDead(t, db); got != 0 {
			t.Fatalf("dead is %d, want 0", got)
		}
	})
}

func TestAHotKeyDoesNotBlockTheOthers(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.key == "hot" {
				<-release
			}
			return nil
		})
		const hot = 700
		var msgs []*message.Message
		for i := range hot {
			msgs = append(msgs, msg(fmt.Sprintf("hot-%05d", i), "hot"))
		}
		for i := range 150 {
			msgs = append(msgs, msg(fmt.Sprint("free-", i), ""), msg(fmt.Sprint("cold-", i), fmt.Sprint(i)))
		}
		put(t, db, config, "t", msgs...)
		cfg := quick(config)
		cfg.BatchSize, cfg.Window = 50, 20
		start(t, db, &pipelined{broker: b}, cfg)
		eventually(t, "the others are sent", func() bool { return pending(t, db) == hot })
		close(release)
		drained(t, db)
		if len(b.overlaps) != 0 {
			t.Fatalf("b.overlaps are %q, want none", b.overlaps)
		}
		ids := b.ids(func(d delivery) bool { return d.key == "hot" })
		if len(ids) != hot {
			t.Fatalf("len(ids) is %d, want %d: %q", len(ids), hot, ids)
		}
		if !slices.IsSorted(ids) {
			t.Fatalf("ids is not sorted: %q", ids)
		}
	})
}

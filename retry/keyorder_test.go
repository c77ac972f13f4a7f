package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/retry"
)

// keyed returns a message whose ordering key is the first letter of its id.
func keyed(id string) *message.Message {
	msg := message.NewMessage(id, []byte("body of "+id))
	msg.Metadata[meta.OrderingKey] = id[:1]
	return msg
}

// inOrder returns a bench with Config.KeyOrder. Its messages are stored and acked
// before they are handled.
func inOrder(t *testing.T, db kit.Database, order retry.KeyOrder) *bench {
	t.Helper()
	return newBench(t, db, func(c *retry.Config) {
		c.KeyOrder = order
		c.Concurrency = 4 // the same with SQLite, because handlers wait for each other in these tests
		c.Policy = retry.Policy{Immediate: -1, Delayed: 1, Base: 100 * time.Millisecond, Jitter: -1}
	})
}

// successes contains the ids of handled messages, in the order of their success.
type successes struct {
	mu  sync.Mutex
	ids []string
}

// handle is a handler that always succeeds.
func (s *successes) handle(msg *message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, msg.UUID)
	return nil
}

// idsOf returns the ids of the handled messages of one key.
func (s *successes) idsOf(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, id := range s.ids {
		if strings.HasPrefix(id, key) {
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, " ")
}

func (b *bench) deliverAll(ids ...string) {
	b.Helper()
	for _, id := range ids {
		if !b.transport.deliver(b.T, keyed(id)) {
			b.Fatalf("%s was nacked", id)
		}
	}
}

func (b *bench) quarantine() *quarantine.Entries {
	b.Helper()
	entries, err := quarantine.New(b.DB, operate.Config{Schema: b.Config})
	kit.OK(b, err)
	return entries
}

var someone = operate.Act{Actor: "test", Why: "test"}

// While a message is retried, the later messages of its key must wait in the database.
// They must block neither the transport nor other keys.
func TestKeyOrderSuccessorsWaitForRetry(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inOrder(t, db, retry.BlockWhileRetried)
		var done successes
		tries := 0
		mend := make(chan struct{})
		b.run(func(msg *message.Message) error {
			if msg.UUID == "a1" {
				if tries++; tries == 1 {
					return retry.After(errHandler, 300*time.Millisecond)
				}
				<-mend
			}
			return done.handle(msg)
		})
		b.deliverAll("a1", "a2", "b1", "a3", "b2", "a4", "b3")
		b.Eventually("the other key is handled", func() bool { return done.idsOf("b") == "b1 b2 b3" })
		if got := done.idsOf("a"); got != "" {
			t.Fatalf("%s was handled before a1", got)
		}
		if held := b.entries(parkedrows.Held); len(held) != 3 {
			t.Fatalf("%d messages wait behind a1, want 3", len(held))
		}
		close(mend)
		b.allHandled()
		if got := done.idsOf("a"); got != "a1 a2 a3 a4" {
			t.Fatalf("handled %s", got)
		}
	})
}

func TestKeyOrderContinuesAfterQuarantine(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inOrder(t, db, retry.BlockWhileRetried)
		var done successes
		b.run(func(msg *message.Message) error {
			if msg.UUID == "a1" {
				return errHandler
			}
			return done.handle(msg)
		})
		b.deliverAll("a1", "a2", "a3")
		b.Eventually("the others are handled", func() bool { return done.idsOf("a") == "a2 a3" })
		entries := b.entries(parkedrows.Quarantined)
		if len(entries) != 1 || entries[0].MessageID != "a1" || entries[0].BlocksKey || entries[0].Attempts != 2 {
			t.Fatalf("entries %+v", entries)
		}
	})
}

// The key must stay blocked, even after a restart, until the message is replayed,
// discarded or edited. Then the later messages must be handled in order.
func TestBlockWhileQuarantinedBlocksKeyUntilResolved(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for what, settle := range map[string]func(b *bench, e rows.Row) error{
			"a1 a2 a3 a4": func(b *bench, e rows.Row) error {
				return b.quarantine().Replay(b.Context(), someone, e.ID)
			},
			"a2 a3 a4": func(b *bench, e rows.Row) error {
				return b.quarantine().Discard(b.Context(), someone, e.ID)
			},
			"a9 a2 a3 a4": func(b *bench, e rows.Row) error {
				_, err := b.quarantine().Edit(b.Context(), someone, e.ID, func(msg *message.Message) error {
					msg.UUID = "a9"
					return nil
				}, quarantine.EditOptions{})
				return err
			},
		} {
			t.Run(what, func(t *testing.T) {
				b := inOrder(t, db, retry.BlockWhileQuarantined)
				var done successes
				mended := false
				handle := func(msg *message.Message) error {
					if msg.UUID == "a1" && !mended {
						return retry.Permanent(errHandler)
					}
					return done.handle(msg)
				}
				b.run(handle)
				b.deliverAll("a1", "a2", "a3", "b1")
				b.Eventually("the other key is handled", func() bool { return done.idsOf("b") == "b1" })
				b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
				kit.OK(t, b.router.Close())

				mended = true
				b = inOrder(t, db, retry.BlockWhileQuarantined)
				b.run(handle)
				b.deliverAll("a4", "b2")
				b.Eventually("the other key is handled", func() bool { return done.idsOf("b") == "b1 b2" })
				entry := b.entries(parkedrows.Quarantined)[0]
				if got := done.idsOf("a"); got != "" || !entry.BlocksKey || len(b.entries(parkedrows.Held)) != 3 {
					t.Fatalf("handled %q, entry %+v", got, entry)
				}
				kit.OK(t, settle(b, entry))
				b.Eventually("the successors are handled", func() bool { return done.idsOf("a") == what })
				b.Eventually("no message waits", func() bool { return len(b.entries(parkedrows.Waiting))+len(b.entries(parkedrows.Held)) == 0 })
				kit.Exec(t, db, b.parked.Dialect().SQL(`DELETE FROM {parked}`))
			})
		}
	})
}

func TestBlockWhileRunningHandlesSuccessorsBeforeRetry(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inOrder(t, db, retry.BlockWhileRunning)
		var done successes
		tries := 0
		passed := make(chan struct{})
		b.run(func(msg *message.Message) error {
			if msg.UUID == "a1" {
				if tries++; tries == 1 {
					return errHandler
				}
				<-passed
			}
			if msg.UUID == "a3" {
				defer close(passed)
			}
			return done.handle(msg)
		})
		b.deliverAll("a1", "a2", "a3")
		b.allHandled()
		if got := done.idsOf("a"); got != "a2 a3 a1" {
			t.Fatalf("handled %s", got)
		}
	})
}

// If two instances handle many keys, and some messages fail once, the messages of each
// key must still be handled one at a time and in order.
func TestKeyOrderWithSeveralInstances(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		const perKey = 8
		keys := "abcdefgh"
		b := inOrder(t, db, retry.BlockWhileRetried)
		var (
			done    successes
			mu      sync.Mutex
			running = map[string]bool{}
			failed  = map[string]bool{}
		)
		handle := func(msg *message.Message) error {
			key := msg.UUID[:1]
			mu.Lock()
			if running[key] {
				t.Errorf("%s is handled at the same time as another message of its key", msg.UUID)
			}
			running[key] = true
			first := !failed[msg.UUID]
			failed[msg.UUID] = true
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running[key] = false
			}()
			if first && strings.ContainsAny(msg.UUID[1:], "147") {
				return retry.After(errHandler, 20*time.Millisecond)
			}
			return done.handle(msg)
		}
		b.run(handle)
		other := inOrder(t, db, retry.BlockWhileRetried)
		other.run(handle)
		for n := range perKey {
			for key := range strings.SplitSeq(keys, "") {
				b.deliverAll(key + fmt.Sprint(n))
			}
		}
		kit.Falls(t, time.Minute, "not handled", func() int { return len(b.entries("")) })
		for key := range strings.SplitSeq(keys, "") {
			if got, want := done.idsOf(key), key+strings.Join(strings.Split("01234567", ""), " "+key); got != want {
				t.Errorf("handled %s", got)
			}
		}
	})
}

// If the first message of a key exceeds its crash budget, it must be given up on, and
// the next message of the key must be handled.
func TestKeyOrderContinuesAfterCrashes(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.KeyOrder, c.CrashBudget = retry.BlockWhileRetried, 2 })
		b.store("a1", "a2")
		b.crash(1, false)
		b.crash(1, true)
		var done successes
		b.run(done.handle)
		b.Eventually("the successors are handled", func() bool { return done.idsOf("a") == "a2" })
		b.Eventually("one is in quarantine", func() bool {
			entries := b.entries("")
			return len(entries) == 1 && entries[0].MessageID == "a1" && entries[0].State == parkedrows.Quarantined
		})
	})
}

// store stores messages like messages that arrive from the transport.
func (b *bench) store(ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, b.parked.DeliverTo(b.Context(), topic, []parkedrows.Subscription{{Consumer: consumer, KeyOrder: true}}, keyed(id)))
	}
}

func TestTrap64SuccessorsOfMissingPredecessorAreReleased(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now    retry.KeyOrder
		remove string
		want   string
	}{
		"the head was deleted": {retry.BlockWhileQuarantined, `DELETE FROM {parked} WHERE message_id = 'a1'`, "a2 a3"},
		"the policy changed":   {retry.BlockWhileRetried, `UPDATE {parked} SET state = 'quarantined' WHERE message_id = 'a1'`, "a2 a3"},
		"order is off":         {retry.Unordered, `UPDATE {parked} SET state = 'quarantined' WHERE message_id = 'a1'`, "a2 a3"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				b := newBench(t, db, func(config *retry.Config) {
					config.KeyOrder, config.Lease = c.now, 500*time.Millisecond
				})
				b.store("a1", "a2", "a3")
				kit.Exec(t, db, b.parked.Dialect().SQL(c.remove))
				var done successes
				b.run(done.handle)
				b.Eventually("the successors are handled", func() bool {
					got := strings.Fields(done.idsOf("a"))
					slices.Sort(got) // Unordered guarantees no order
					return strings.Join(got, " ") == c.want
				})
			})
		})
	}
}

func TestKeyOrderIsValidated(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	_, err := retry.New(db.DB, retry.Config{KeyOrder: 9})
	if err == nil || !strings.Contains(err.Error(), "KeyOrder is 9") {
		t.Fatal(errors.Join(errors.New("not refused"), err))
	}
}

// If the database needs longer to store a batch than the timeout of one try, smaller
// batches must be stored. The same batch would exceed the timeout again and again.
func TestKeyOrderSplitsBatchAfterTimeout(t *testing.T) {
	kit.Long(t)
	b := inOrder(t, kit.Postgres(t), retry.BlockWhileRetried)
	for _, query := range []string{
		`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$`,
		`CREATE TRIGGER slowly BEFORE INSERT ON once_parked FOR EACH ROW EXECUTE FUNCTION slowly()`,
	} {
		kit.Exec(t, b, query)
	}
	b.retries.SetOneTry(time.Second)
	var done successes
	b.run(done.handle)
	var ids []string
	var msgs []*message.Message
	for n := range 12 { // the first message is stored alone, and the other messages arrive in the meantime
		ids = append(ids, fmt.Sprintf("a%d", n))
		msgs = append(msgs, keyed(ids[n]))
		b.transport.messages <- msgs[n]
	}
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			t.Fatalf("%s was nacked", msg.UUID)
		case <-time.After(time.Minute):
			t.Fatalf("%s is not stored", msg.UUID)
		}
	}
	b.allHandled()
	if got := done.idsOf("a"); got != strings.Join(ids, " ") {
		t.Errorf("handled %s", got)
	}
}

// While the table is missing, messages must wait, even longer than UnackedWait: if a
// message were nacked, later messages would be handled before it. A shutdown must nack
// the message and all later messages.
func TestKeyOrderWaitsLongerThanUnackedWaitForTheTable(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inOrder(t, db, retry.BlockWhileRetried)
		var done successes
		b.run(done.handle)
		rename := func(from, to string) {
			kit.OK(t, kit.Err(db.ExecContext(context.WithoutCancel(t.Context()), `ALTER TABLE `+from+` RENAME TO `+to)))
		}
		rename("once_parked", "away")
		var messages []*message.Message
		for n := range 5 {
			messages = append(messages, keyed(fmt.Sprintf("a%d", n)))
			b.transport.messages <- messages[n]
		}
		rename("away", "once_parked")
		b.Eventually("all are handled", func() bool { return done.idsOf("a") == "a0 a1 a2 a3 a4" })

		rename("once_parked", "away")
		messages = messages[:0]
		for n := range 3 {
			messages = append(messages, keyed(fmt.Sprintf("b%d", n)))
			b.transport.messages <- messages[n]
		}
		closed := kit.Go(b.router.Close)
		for _, msg := range messages {
			select {
			case <-msg.Nacked():
			case <-msg.Acked():
				t.Fatalf("%s was acked", msg.UUID)
			case <-time.After(20 * time.Second):
				t.Fatalf("%s has neither ack nor nack", msg.UUID)
			}
		}
		kit.OK(t, <-closed)
		rename("away", "once_parked")
	})
}

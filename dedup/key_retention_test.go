package dedup_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// eachLayout runs a test with each database and each layout of the inbox.
func eachLayout(t *testing.T, test func(t *testing.T, db kit.Database, tables schema.Config)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		test(t, db, schema.Config{Dialect: schema.Dialect(db.Dialect)})
	})
	t.Run("postgres by day", func(t *testing.T) {
		test(t, kit.Postgres(t), schema.Config{Inbox: schema.ByDay})
	})
}

// byPayload uses the payload as the key.
func byPayload(c *dedup.Config) {
	c.Key = func(msg *message.Message) string { return string(msg.Payload) }
}

// ageParked makes all parked messages a year older.
func (b *bench) ageParked() {
	b.Helper()
	b.Exec(b.store().Dialect().SQL(`UPDATE {parked} SET created_at = {after $1}`), -aYear.Milliseconds())
}

func (b *bench) parkAs(state, id, body string) {
	b.Helper()
	d := &parkedrows.Delivery{Consumer: consumer, Topic: "t"}
	msg := message.NewMessage(id, []byte(body))
	failure := parkedrows.Failure{Err: errHandler, Reason: "permanent"}
	kit.OK(b, kit.Err(b.store().Quarantine(b.Context(), d, msg, failure, nil)))
	b.Exec(`UPDATE once_parked SET state = '` + state + `', ordering_key = 'k-` + id + `' WHERE message_id = '` + id + `'`)
}

const aYear = 365 * 24 * time.Hour

// Trap 82. A parked or quarantined message is a duplicate if another message with its
// key was handled. So the inbox must keep the key for as long as the parked message may
// be handled.
func TestKeyIsKeptWhileAMessageWithItMayRun(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		for _, state := range []string{"quarantined", "waiting", "held"} {
			b := newBenchIn(t, db, tables, byPayload)
			b.parkAs(state, "B", "order-17")
			b.ageParked()
			for id, body := range map[string]string{"A": "order-17", "C": "order-18"} {
				kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage(id, []byte(body)))))
			}
			b.age(aYear)
			for range 2 {
				b.sweep()
			}
			b.expect(2, 1, 0) // the key of A remains
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("B", []byte("order-17")))))
			if n := b.Count("effects"); n != 2 {
				t.Errorf("%s: %d effects, want 2: the second message of order-17 ran too", state, n)
			}
			b.Exec(`DELETE FROM once_parked`)
			if n := b.sweep(); n != 1 || b.Count("once_inbox") != 0 {
				t.Errorf("%s: the key of nothing that may run is kept: %d removed", state, n)
			}
			b.Exec(`DROP TABLE effects`)
		}
	})
}

// Trap 82. Any process may sweep. A process without Config.Key must keep the keys of a
// consumer that has old parked messages.
func TestSweepWithoutKeyFunctionKeepsUnknownKeys(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, func(c *dedup.Config) {
			byPayload(c)
			c.Consumer = "" // then the consumer is known only after its first message
		})
		keyed, err := dedup.New(db.DB, dedup.Config{Schema: tables})
		kit.OK(t, err)
		deliver := func(who, id, body string) {
			t.Helper()
			msg := message.NewMessage(id, []byte(body))
			msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: who, Topic: "t"}))
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(msg)))
		}
		b.parkAs("quarantined", "B", "order-17")
		b.ageParked()
		deliver("payments", "A", "order-17")
		deliver("payments", "C", "order-18")
		deliver("others", "D", "order-18") // this consumer has no parked messages
		b.age(aYear)
		for name, inbox := range map[string]*dedup.Inbox{"another": keyed, "one that has just started": restarted(t, b)} {
			kit.OK(t, kit.Err(inbox.Sweep(t.Context())))
			if n := b.Count(`once_inbox WHERE consumer = 'payments'`); n != 2 || b.Count(`once_inbox`) != n {
				t.Errorf("%s: %d keys are left, and %d rows in all", name, n, b.Count(`once_inbox`))
			}
		}
		b.sweep() // this Inbox has the Key function
		b.expect(3, 1, 0)
	})
}

// Trap 82. A process that sweeps can be suspended between the step that records the keys
// of parked messages and the step that removes expired keys. The second step must ask
// again: a message may have been edited, imported or become old meanwhile.
func TestTrap82_SweepKeepsTheKeysOfMessagesThatBecameOldDuringTheSweep(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, byPayload)
		for _, change := range []string{`edited_from = 1`, `origin = '1/1/1'`, ``} {
			b.Exec(`DELETE FROM once_parked`)
			b.Exec(`DELETE FROM once_inbox`)
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
			b.age(aYear)
			kit.OK(t, dedup.SweepInTwoSteps(t.Context(), b.inbox, func() {
				b.parkAs("quarantined", "B", "order-17")
				if change == "" {
					b.ageParked()
				} else {
					b.Exec(`UPDATE once_parked SET ` + change)
				}
			}))
			if n := b.Count(`once_inbox WHERE message_id = 'key:order-17'`); n != 1 {
				t.Errorf("%q: the sweep removed the key of a message in quarantine", change)
			}
			b.sweep() // records the key of the message
			if n := b.Count(`once_inbox WHERE message_id = 'key:order-17'`); n != 1 {
				t.Errorf("%q: the next sweep removed the key of a message in quarantine", change)
			}
		}
	})
}

// A parked message keeps a key only if it may run, and belongs to the consumer of the key.
// A message whose key is not known keeps the keys of its consumer only if it is old: the
// expired keys were applied before a young message could arrive.
func TestOtherParkedMessagesKeepNoKey(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, byPayload)
		keyless, err := dedup.New(db.DB, dedup.Config{Schema: tables})
		kit.OK(t, err)
		for change, kept := range map[string]int{
			`edited_from = NULL`:                             1,
			`created_at = {now}`:                             0,
			`state = 'resolved', finished_at = {now}`:        0,
			`consumer = 'other'`:                             0,
			`dedup_key = 'key:order-17'`:                     1,
			`dedup_key = 'key:order-18'`:                     0,
			`dedup_key = 'key:order-17', consumer = 'other'`: 0,
		} {
			b.Exec(`DELETE FROM once_parked`)
			b.Exec(`DELETE FROM once_inbox`)
			b.parkAs("quarantined", "B", "order-17")
			b.ageParked()
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
			b.age(aYear)
			b.Exec(b.store().Dialect().SQL(`UPDATE {parked} SET ` + change))
			kit.OK(t, kit.Err(keyless.Sweep(t.Context())))
			if n := b.Count(`once_inbox WHERE message_id = 'key:order-17'`); n != kept {
				t.Errorf("%s: %d keys are left, want %d", change, n, kept)
			}
		}
	})
}

// If the consumer of a parked message is not known, the sweep deletes no key.
func TestSweepKeepsAllKeysIfAConsumerIsUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.EmptyPostgres(t), byPayload)
	b.parkAs("quarantined", "B", "order-17")
	b.ageParked()
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
	b.age(aYear)
	b.Exec(`ALTER TABLE once_parked ALTER COLUMN consumer DROP NOT NULL`)
	b.Exec(`UPDATE once_parked SET consumer = NULL, dedup_key = NULL`)
	keys := `once_inbox WHERE message_id LIKE 'key:%'`
	before := b.Count(keys)
	b.sweep()
	if after := b.Count(keys); before == 0 || after != before {
		t.Errorf("%d keys before, %d after", before, after)
	}
}

// restarted returns an Inbox that has not handled a message yet.
func restarted(t *testing.T, b *bench) *dedup.Inbox {
	t.Helper()
	config := dedup.Config{Schema: b.Config}
	byPayload(&config)
	inbox, err := dedup.New(b.DB, config)
	kit.OK(t, err)
	return inbox
}

// An edited message is a new row with the same key as the original, which may be old.
// So its key must be kept. The same holds for an imported message.
func TestKeyIsKeptForEditedAndImportedMessages(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"edited":   `UPDATE once_parked SET edited_from = 1`,
		"imported": `UPDATE once_parked SET origin = '1/1/1'`,
	} {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
				b := newBenchIn(t, db, tables, byPayload)
				kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
				b.age(aYear)
				b.parkAs("quarantined", "B", "order-17")
				b.Exec(change)
				b.sweep()
				b.expect(1, 1, 0)
			})
		})
	}
}

// A parked message without a key must not prevent a sweep from removing the keys of
// other messages. If the key of a message cannot be computed, all keys of its consumer
// must be kept.
func TestMessagesWithoutAKeyDoNotKeepKeys(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var logs kit.Logs
		b := newBench(t, db, func(c *dedup.Config) {
			c.Logger = &logs
			c.Key = func(msg *message.Message) string {
				if string(msg.Payload) == "panic" {
					panic("no key")
				}
				return string(msg.Payload)
			}
		})
		b.parkAs("quarantined", "empty", "")
		b.parkAs("quarantined", "damaged", "x")
		b.Exec(`UPDATE once_parked SET envelope = '' WHERE message_id = 'damaged'`)
		b.ageParked()
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
		b.age(aYear)
		b.sweep()
		b.expect(1, 0, 0)

		b.parkAs("quarantined", "panics", "panic")
		b.ageParked()
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
		b.age(aYear)
		b.sweep()
		b.expect(2, 1, 0)
		if !logs.Has("ERROR Config.Key panicked for a parked message", "message_uuid=panics", "panic: no key") {
			t.Errorf("%q", logs.Lines())
		}
	})
}

// A key is kept for at least an hour longer than MaxDuplicateAge, even if Retention is
// not longer than MaxDuplicateAge. After this hour, most messages with the key are not
// parked any more.
func TestKeyIsKeptLongerThanDuplicatesArrive(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, func(c *dedup.Config) {
			byPayload(c)
			c.Retention, c.MaxDuplicateAge = 24*time.Hour, 24*time.Hour
		})
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
		b.age(24*time.Hour + 30*time.Minute)
		b.sweep()
		b.expect(1, 1, 0)
		b.age(25*time.Hour + 30*time.Minute)
		b.sweep()
		b.expect(1, 0, 0)
	})
}

// A process that freezes while it records keys must not keep its row locks: PostgreSQL
// must end the transaction.
func TestTransactionThatRecordsKeysHasAnIdleTimeout(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	b := newBench(t, db, byPayload)
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
	b.parkAs("quarantined", "B", "order-18")
	b.ageParked()
	bounded, again := false, true
	for n := int64(1); ; n++ {
		pool, failed := kit.FailingStep(db, n)
		config := dedup.Config{Schema: b.Config, Consumer: consumer}
		byPayload(&config)
		inbox, err := dedup.New(pool, config)
		kit.OK(t, err)
		_, err = inbox.Sweep(t.Context())
		step := failed()
		_ = pool.Close()
		switch {
		case step == "":
			t.Fatalf("no step records the key: %v", err)
		case step == "BEGIN":
			bounded = false
		case strings.Contains(step, "idle_in_transaction_session_timeout"):
			bounded = true
		case strings.Contains(step, "SET dedup_key") && !bounded && again:
			n, again = 0, false // another sweep may have had one step more
		case strings.Contains(step, "SET dedup_key"):
			if !bounded {
				t.Error("the transaction has no idle timeout")
			}
			return
		}
	}
}

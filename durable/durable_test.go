package durable_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/retry"
)

func TestMessageIsAckedBeforeItsHandlerReturns(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		release := make(chan struct{})
		// With SQLite, nothing else can be stored while a handler runs in its transaction. So
		// all messages must be stored together, before the first handler is called.
		b.run(durable.Config{BatchSize: 3, BatchWait: time.Minute}, func(*message.Message) error { <-release; return nil })
		msgs := messages("m1", "m2", "m3")
		b.send(msgs...)
		b.acked(msgs...)
		if rows := b.entries(parkedrows.Waiting); len(rows) != 3 {
			t.Errorf("%d rows", len(rows))
		}
		close(release)
		b.handles("m1", "m2", "m3")
		if rows := b.entries(); len(rows) != 0 {
			t.Errorf("rows are left: %+v", rows)
		}
	})
}

// Messages that arrive together are stored together, but no more than BatchSize.
func TestMessagesAreStoredInBatches(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.run(durable.Config{BatchSize: 4, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	var ids []string
	for n := range 12 {
		ids = append(ids, fmt.Sprintf("m%02d", n))
	}
	msgs := messages(ids...)
	b.send(msgs[:3]...)
	b.unacked(msgs[:3]...)
	b.send(msgs[3:]...) // a full batch is stored before BatchWait is over
	b.acked(msgs...)
	b.handles(ids...)
	batches := b.Count(`(SELECT created_at FROM once_parked GROUP BY created_at HAVING COUNT(*) = 4) AS batches`)
	if batches != 3 { // all rows of a transaction have the same created_at
		t.Errorf("%d transactions, want 3", batches)
	}
	for i, e := range b.entries(parkedrows.Resolved) {
		if e.MessageID != ids[i] {
			t.Errorf("row %d is %s", i, e.MessageID)
		}
	}
}

func TestPartialBatchIsStoredAfterBatchWait(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(durable.Config{BatchWait: 50 * time.Millisecond}, fine)
		began := time.Now()
		msgs := messages("m1")
		b.send(msgs...)
		b.acked(msgs...)
		if took := time.Since(began); took < 50*time.Millisecond {
			t.Errorf("stored after %v", took)
		}
	})
}

func TestBatchIsLimitedByBytes(t *testing.T) {
	b := newBench(t, kit.SQLite(t))
	b.run(durable.Config{BatchWait: time.Minute}, fine)
	msgs := messages("m1", "m2")
	for _, msg := range msgs {
		msg.Payload = make([]byte, 5<<20)
	}
	b.send(msgs...)
	b.acked(msgs...)
	b.handles("m1", "m2")
}

// An unusable message is quarantined unchanged, and the messages stored with it are
// handled.
func TestUnusableMessagesAreQuarantined(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(durable.Config{BatchWait: 100 * time.Millisecond}, fine)
		msgs := messages("m1", "", strings.Repeat("x", 6400), "nul\x00", "bad\xff", "undecodable", "m2")
		why := map[string]string{}
		for _, msg := range msgs[1:6] {
			msg.Metadata.Set("key\x00", "\xff")
			why[msg.UUID] = chain.ReasonInvalidID
		}
		why["undecodable"] = chain.ReasonUndecodable
		msgs[5].SetContext(usercode.WithUndecodable(t.Context(), errors.New("cannot be read")))
		b.send(msgs...)
		b.acked(msgs...)
		b.handles("m1", "m2")
		rows := b.entries(parkedrows.Quarantined)
		if len(rows) != 5 {
			t.Errorf("%d rows in quarantine", len(rows))
		}
		for _, e := range rows {
			want := "body of " + e.Message.UUID
			if e.Reason != why[e.Message.UUID] || !bytes.Equal(e.Message.Payload, []byte(want)) ||
				!maps.Equal(e.Message.Metadata, message.Metadata{"key\x00": "\xff"}) {
				t.Errorf("%q: %+v", e.Message.UUID, e)
			}
		}
	})
}

// Trap 34. While the row of a message exists, a copy is not stored again. After the row
// was removed, a copy is stored, but dedup ignores it.
func TestTrap34CopiesAreHandledOnce(t *testing.T) {
	for _, keep := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprint("kept ", keep), func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, b *bench) {
				b.run(durable.Config{KeepHandled: keep}, fine)
				for range 3 {
					msgs := messages("m1", "m1", "m2")
					b.send(msgs...)
					b.acked(msgs...)
					b.handles("m1", "m2")
				}
				want := 0
				if keep > 0 {
					want = 2
				}
				b.Eventually("rows are settled", func() bool { return len(b.entries(parkedrows.Resolved)) == want && len(b.entries()) == want })
			})
		})
	}
}

// Rows are removed after KeepHandled, except the rows of replayed messages and of other
// consumers.
func TestRowsAreRemovedAfterKeepHandled(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		b.run(durable.Config{KeepHandled: time.Hour}, fine)
		ids := []string{"old", "replayed", "other", "new"}
		msgs := messages(ids...)
		b.send(msgs...)
		b.acked(msgs...)
		b.handles(ids...)
		b.Exec(`UPDATE once_parked SET replays = 1 WHERE message_id = 'replayed'`)
		b.Exec(`UPDATE once_parked SET consumer = 'other' WHERE message_id = 'other'`)
		ago := `finished_at - interval '61 minutes'`
		if db.Dialect == "sqlite" {
			ago = `finished_at - 61 * 60 * 1000`
		}
		b.Exec(`UPDATE once_parked SET finished_at = ` + ago + ` WHERE message_id <> 'new'`)
		// The sweep of the subscription does not disturb the test, because it runs only
		// every tenth of KeepHandled.
		for want, limit := range []int{1, 0} {
			if removed, err := b.parked.Forget(t.Context(), topic, consumer, time.Hour, limit); err != nil || removed != int64(1-want) {
				t.Errorf("%d removed, %v", removed, err)
			}
		}
		if rows := b.entries(); len(rows) != 3 || rows[0].MessageID != "replayed" {
			t.Errorf("%+v", rows)
		}
	})
}

func TestSubscriptionRemovesKeptRows(t *testing.T) {
	b := newBench(t, kit.SQLite(t))
	b.run(durable.Config{KeepHandled: time.Millisecond}, fine)
	msgs := messages("m1")
	b.send(msgs...)
	b.acked(msgs...)
	b.handles("m1")
	b.Eventually("the row is gone", func() bool { return len(b.entries()) == 0 })
}

// When the consumer closes, claimed messages are released, and neither a crash nor an
// attempt is counted.
func TestCloseReleasesMessagesClaimedAhead(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		entered, release := make(chan struct{}, 100), make(chan struct{})
		// The messages are stored together, because with SQLite nothing can be stored or
		// claimed while a handler runs in its transaction.
		b.run(durable.Config{BatchSize: 5, BatchWait: time.Minute}, func(*message.Message) error {
			entered <- struct{}{}
			<-release
			return nil
		})
		msgs := messages("m1", "m2", "m3", "m4", "m5")
		b.send(msgs...)
		b.acked(msgs...)
		<-entered
		b.Eventually("all are claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 5 })
		closed := kit.Go(b.router.Close)
		if db.Dialect == "postgres" { // with SQLite, the running handler is the only writer
			b.Eventually("the others are released", func() bool { return b.Count(`once_parked WHERE token IS NULL AND crashes = 0`) == 4 })
		}
		b.Eventually("the subscription is closing", func() bool {
			select {
			case _, open := <-b.transport.Messages:
				return !open
			default:
				return false
			}
		})
		close(release)
		kit.Check(t, <-closed)
		handled, left := b.Count(`once_inbox`), b.Count(`once_parked WHERE state = 'waiting' AND token IS NULL AND crashes = 0`)
		if handled+left != 5 || left < 3 { // a second message may have been given to a handler at the same time
			t.Errorf("%d handled, %d left", handled, left)
		}
	})
}

func TestConfigErrorNamesEveryInvalidField(t *testing.T) {
	config := durable.Config{BatchSize: -1, BatchWait: -1, Ahead: -1, KeepHandled: -1, UnackedWait: -1, TenantConcurrency: -1}
	_, err := durable.New(nil, config)
	if err == nil {
		t.Fatal("New accepted an invalid config")
	}
	for _, want := range []string{"db is nil", "BatchSize", "BatchWait", "Ahead", "KeepHandled", "UnackedWait", "TenantConcurrency"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestSubscribeErrorNamesMissingPart(t *testing.T) {
	storage, err := durable.New(new(sql.DB), durable.Config{})
	kit.OK(t, err)
	sub := storage.Subscriber(kit.NewSubscriber())
	if _, err := sub.Subscribe(t.Context(), topic); err == nil || !strings.Contains(err.Error(), "retry's Subscriber") {
		t.Errorf("without retry's Subscriber: %v", err)
	}
	ctx := parkedrows.WithSubscription(t.Context(), parkedrows.Subscription{Consumer: consumer})
	if _, err := storage.Subscriber(nil).Subscribe(ctx, topic); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("without a subscriber: %v", err)
	}
	for range 2 {
		kit.Check(t, sub.Close())
	}
	if _, err := sub.Subscribe(ctx, topic); err == nil || err.Error() != "durable: the subscriber is closed" {
		t.Errorf("after Close: %v", err)
	}
}

func ofTenant(tenant string, count int) []*message.Message {
	var ids []string
	for n := range count {
		ids = append(ids, fmt.Sprintf("%s-%d", tenant, n))
	}
	msgs := messages(ids...)
	for _, msg := range msgs {
		msg.Metadata.Set(meta.TenantID, tenant)
	}
	return msgs
}

func not(f func(string) bool) func(string) bool { return func(s string) bool { return !f(s) } }

func (b *bench) handledSoFar() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.handled)
}

// One tenant has thousands of waiting messages, and some of them are claimed. The
// messages of a small tenant arrive last. They must still be handled soon.
func TestTenantWithFewMessagesIsServedSoon(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		for range 5 {
			many := ofTenant("many", 1000)
			for n, msg := range many {
				msg.UUID = fmt.Sprintf("%s-%p-%d", "many", &many, n)
			}
			kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, many...))
		}
		b.run(durable.Config{}, fine)
		b.Eventually("some are handled", func() bool { return len(b.handledSoFar()) > 0 })
		few := ofTenant("few", 10)
		b.send(few...)
		b.acked(few...)
		stored := len(b.handledSoFar())
		isFew := func(id string) bool { return strings.HasPrefix(id, "few") }
		var all []string
		b.Eventually("the messages of the small tenant are handled", func() bool {
			all = b.handledSoFar()
			return len(slices.DeleteFunc(slices.Clone(all), not(isFew))) == len(few)
		})
		last := len(all) - 1
		for !isFew(all[last]) {
			last--
		}
		// At most 65 messages of the large tenant were claimed before that.
		if between := last - stored; between > 150 {
			t.Errorf("%d messages were handled before the last message of the small tenant", between)
		}
		kit.OK(t, b.router.Close())
	})
}

// inOrder returns a bench with retry's KeyOrder, and messages that have the same
// ordering key.
func inOrder(t *testing.T, ids ...string) (*bench, []*message.Message) {
	t.Helper()
	b := newBench(t, kit.Postgres(t))
	b.keyOrder = retry.BlockWhileRetried
	msgs := messages(ids...)
	for _, msg := range msgs {
		msg.Metadata[meta.OrderingKey] = "key"
	}
	return b, msgs
}

// failing makes inserts of rows that match condition fail with the error code sqlState,
// until the test calls repair. The returned function tries returns how many inserts
// have failed.
func (b *bench) failing(condition, sqlState string) (tries func() int, repair func()) {
	b.Helper()
	b.Exec(`CREATE SEQUENCE tries`)
	b.Exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'fails' USING ERRCODE = '%s'; END $$`, sqlState))
	b.Exec(fmt.Sprintf(`CREATE TRIGGER fail BEFORE INSERT ON once_parked FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fail()`, condition))
	tries = func() (n int) {
		kit.OK(b, b.QueryRowContext(b.Context(), `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries`).Scan(&n))
		return n
	}
	return tries, func() { b.Exec(`DROP TRIGGER fail ON once_parked`) }
}

const (
	away    = "57P03" // cannot_connect_now
	refused = "23514" // check_violation
)

// With KeyOrder no message is nacked, no matter how long the database is down. A nacked
// message would return behind its successors.
func TestKeyOrderNacksNothingDuringOutage(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("true", away)
	b.run(durable.Config{BatchSize: 1, UnackedWait: time.Nanosecond}, fine)
	b.send(msgs...)
	b.Eventually("the insert was tried twice", func() bool { return tries() >= 2 })
	repair()
	b.acked(msgs...)
	b.handles("m1", "m2")
}

// At shutdown, messages that could not be stored are nacked, and so are all messages
// after them.
func TestKeyOrderShutdownNacksAllLaterMessages(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("NEW.message_id = 'm1'", away)
	b.run(durable.Config{BatchSize: 1}, fine)
	b.send(msgs...)
	b.Eventually("the insert was tried", func() bool { return tries() >= 1 })
	kit.Check(t, b.router.Close())
	repair()
	for _, msg := range msgs {
		select {
		case <-msg.Nacked():
		default:
			t.Errorf("%s is not nacked", msg.UUID)
		}
	}
}

// If the database refuses a message, the messages behind it in its batch wait, because
// the database may accept the message later.
func TestKeyOrderRefusedMessageIsNotOvertaken(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("NEW.message_id = 'm1'", refused)
	b.run(durable.Config{BatchSize: 2, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	b.send(msgs...)
	b.Eventually("the batch was tried, then the first message alone, then again", func() bool { return tries() >= 3 })
	b.unacked(msgs...)
	repair()
	b.acked(msgs...)
	b.handles("m1", "m2")
	for n, e := range b.entries(parkedrows.Resolved) {
		if e.MessageID != msgs[n].UUID {
			t.Errorf("row %d is %s", n, e.MessageID)
		}
	}
}

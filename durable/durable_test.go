package durable_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

func TestMessageIsAckedBeforeItsHandlerReturns(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		release := make(chan struct{})
		// With SQLite, nothing else can be stored while a handler runs in its transaction. So
		// all messages must be stored together, before the first handler is called.
		b.run(durable.Config{BatchSize: 3, BatchWait: time.Minute}, func(*message.Message) error { <-release; return nil })
		msgs := messages("m1", "m2", "m3")
		b.send(msgs...)
		b.acked(msgs...)
		if rows := b.entries(parked.Waiting); len(rows) != 3 {
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
	b := newBench(t, testkit.Postgres(t))
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
	batches := b.count(`(SELECT created_at FROM once_parked GROUP BY created_at HAVING COUNT(*) = 4) AS batches`)
	if batches != 3 { // all rows of a transaction have the same created_at
		t.Errorf("%d transactions, want 3", batches)
	}
	for i, e := range b.entries(parked.Resolved) {
		if e.MessageID != ids[i] {
			t.Errorf("row %d is %s", i, e.MessageID)
		}
	}
}

func TestPartialBatchIsStoredAfterBatchWait(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
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
	b := newBench(t, testkit.SQLite(t))
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.run(durable.Config{BatchWait: 100 * time.Millisecond}, fine)
		msgs := messages("m1", "", strings.Repeat("x", 6400), "nul\x00", "bad\xff", "undecodable", "m2")
		why := map[string]string{}
		for _, msg := range msgs[1:6] {
			msg.Metadata.Set("key\x00", "\xff")
			why[msg.UUID] = disposition.ReasonInvalidID
		}
		why["undecodable"] = disposition.ReasonUndecodable
		msgs[5].SetContext(disposition.WithUndecodable(t.Context(), errors.New("cannot be read")))
		b.send(msgs...)
		b.acked(msgs...)
		b.handles("m1", "m2")
		rows := b.entries(parked.Quarantined)
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
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				b := newBench(t, db)
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
				b.eventually("rows are settled", func() bool { return len(b.entries(parked.Resolved)) == want && len(b.entries()) == want })
			})
		})
	}
}

// Rows are removed after KeepHandled, except the rows of replayed messages and of other
// consumers.
func TestRowsAreRemovedAfterKeepHandled(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.run(durable.Config{KeepHandled: time.Hour}, fine)
		ids := []string{"old", "replayed", "other", "new"}
		msgs := messages(ids...)
		b.send(msgs...)
		b.acked(msgs...)
		b.handles(ids...)
		b.exec(`UPDATE once_parked SET replays = 1 WHERE message_id = 'replayed'`)
		b.exec(`UPDATE once_parked SET consumer = 'other' WHERE message_id = 'other'`)
		ago := `finished_at - interval '61 minutes'`
		if db.Dialect == "sqlite" {
			ago = `finished_at - 61 * 60 * 1000`
		}
		b.exec(`UPDATE once_parked SET finished_at = ` + ago + ` WHERE message_id <> 'new'`)
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
	b := newBench(t, testkit.SQLite(t))
	b.run(durable.Config{KeepHandled: time.Millisecond}, fine)
	msgs := messages("m1")
	b.send(msgs...)
	b.acked(msgs...)
	b.handles("m1")
	b.eventually("the row is gone", func() bool { return len(b.entries()) == 0 })
}

// When the consumer closes, claimed messages are released, and neither a crash nor an
// attempt is counted.
func TestCloseReleasesMessagesClaimedAhead(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
		b.eventually("all are claimed", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 5 })
		closed := make(chan error, 1)
		go func() { closed <- b.router.Close() }()
		if db.Dialect == "postgres" { // with SQLite, the running handler is the only writer
			b.eventually("the others are released", func() bool { return b.count(`once_parked WHERE token IS NULL AND crashes = 0`) == 4 })
		}
		b.eventually("the subscription is closing", func() bool {
			select {
			case _, open := <-b.transport.Messages:
				return !open
			default:
				return false
			}
		})
		close(release)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		handled, left := b.count(`once_inbox`), b.count(`once_parked WHERE state = 'waiting' AND token IS NULL AND crashes = 0`)
		if handled+left != 5 || left < 3 { // a second message may have been given to a handler at the same time
			t.Errorf("%d handled, %d left", handled, left)
		}
	})
}

func TestConfigErrorNamesEveryInvalidField(t *testing.T) {
	_, err := durable.New(nil, durable.Config{BatchSize: -1, BatchWait: -1, Ahead: -1, KeepHandled: -1, UnackedWait: -1})
	if err == nil {
		t.Fatal("New accepted an invalid config")
	}
	for _, want := range []string{"db is nil", "BatchSize", "BatchWait", "Ahead", "KeepHandled", "UnackedWait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestSubscribeErrorNamesMissingPart(t *testing.T) {
	storage, err := durable.New(new(sql.DB), durable.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sub := storage.Subscriber(testkit.NewSubscriber())
	if _, err := sub.Subscribe(t.Context(), topic); err == nil || !strings.Contains(err.Error(), "retry's Subscriber") {
		t.Errorf("without retry's Subscriber: %v", err)
	}
	ctx := parked.WithSubscription(t.Context(), parked.Subscription{Consumer: consumer})
	if _, err := storage.Subscriber(nil).Subscribe(ctx, topic); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("without a subscriber: %v", err)
	}
	for range 2 {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := sub.Subscribe(ctx, topic); err == nil || err.Error() != "durable: the subscriber is closed" {
		t.Errorf("after Close: %v", err)
	}
}

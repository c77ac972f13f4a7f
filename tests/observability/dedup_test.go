package observability

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// An inbox that is used without package retry begins the span of a message itself, and
// the span contains the topic. A replayed message has no lag, because an operator
// decided when it is handled.
func TestInboxWithoutRetryKnowsTheDelivery(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db := w.database()
	inbox := w.inbox(db)
	store, err := parked.NewStore(db, schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"retried", "replayed"} {
		msg := message.NewMessage(id, nil)
		msg.Metadata.Set(meta.CreatedAt, meta.Stamp(time.Now()))
		if err := store.Deliver(t.Context(), "t", []string{"payments"}, msg); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(db, `UPDATE once_parked SET replays = 1 WHERE message_id = 'replayed'`)
	claimed, err := store.Claim(t.Context(), parked.Select{Consumer: "payments", Topic: "t", Owner: "me", Limit: 2, Lease: time.Hour})
	if err != nil || len(claimed) != 2 {
		t.Fatalf("%d rows are claimed: %v", len(claimed), err)
	}
	for _, c := range claimed {
		c.Message.SetContext(parked.WithDelivery(t.Context(), &parked.Delivery{Consumer: "payments", Topic: "t", Claim: c.Claim}))
		if _, err := inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(c.Message); err != nil {
			t.Errorf("%s: %v", c.Message.UUID, err)
		}
	}
	if got := w.value("once.dedup.lag", "once.since=created"); got != 1 {
		t.Errorf("%v messages have a lag, want 1", got)
	}
	if n := len(w.named("handle t")); n != 2 {
		t.Errorf("%d spans have the topic, want 2", n)
	}
}

// moveLag handles messages with the times of a forwarder, and with times that a sender
// has invented. A message that was handled before has no lag.
func moveLag(w *watch, inbox *dedup.Inbox) {
	now := time.Now()
	for id, stamps := range map[string][2]string{
		"sent":           {meta.Stamp(now.Add(-2 * time.Second)), meta.Stamp(now.Add(-time.Second))},
		"ahead":          {meta.Stamp(now.Add(2 * time.Second)), ""}, // the clock of the database is ahead
		"of long ago":    {"2001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"},
		"of the future":  {"9999-01-01T00:00:00.000Z", meta.Stamp(now.Add(time.Hour))},
		"no time at all": {"yesterday", "-1"},
	} {
		for range 2 {
			msg := message.NewMessage("lag "+id, nil)
			msg.Metadata.Set(meta.CreatedAt, stamps[0])
			msg.Metadata.Set(meta.PublishedAt, stamps[1])
			if _, err := inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg); err != nil {
				w.Error(err)
			}
		}
	}
	for since, want := range map[string]float64{"created": 2, "published": 1} {
		if got := w.value("once.dedup.lag", "once.since="+since); got != want {
			w.Errorf("%v messages have a lag since %s, want %v", got, since, want)
		}
	}
}

// moveSize observes the size of an inbox that is partitioned by day, while its
// retention runs and while its table is missing.
func moveSize(w *watch, db *sql.DB, inbox *dedup.Inbox, seen *seen) {
	if got := w.value("once.dedup.rows", "once.state=live"); got != -1 {
		w.Errorf("%v rows are observed without Run", got)
	}
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- inbox.Run(ctx) }()
	w.exec(db, `INSERT INTO once_inbox (message_id, consumer, digest) SELECT 'size ' || n, 'payments', '' FROM generate_series(1, 300) AS n`)
	w.exec(db, `DELETE FROM once_inbox WHERE message_id LIKE 'size %0'`)
	w.exec(db, `ANALYZE once_inbox`)
	w.awaitValue(270, "once.dedup.rows", "once.state=live")
	w.awaitValue(30, "once.dedup.rows", "once.state=dead")
	w.awaitValue(8192, "once.dedup.size", "")
	if got := w.value("once.dedup.rows", "once.state=live"); got > 1000 { // the statistics may count the rows twice for a time
		w.Errorf("the estimate for 270 rows is %v", got)
	}
	w.exec(db, `ALTER TABLE once_inbox RENAME TO away`)
	if _, err := inbox.Sweep(w.Context()); err == nil {
		w.Error("a sweep without its table works")
	}
	w.exec(db, `ALTER TABLE away RENAME TO once_inbox`)
	for _, outcome := range []string{"ok", "failed"} {
		w.awaitValue(1, "once.dedup.sweeps", "once.outcome="+outcome)
	}
	seen.look(w) // before the end of Run, which ends the observation
	cancel()
	if err := <-ended; err != nil {
		w.Error(err)
	}
	if got := w.value("once.dedup.rows", "once.state=live"); got != -1 {
		w.Errorf("%v rows are observed after Run", got)
	}
}

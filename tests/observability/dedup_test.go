package observability

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// An inbox that is used without package retry begins the span of a message itself, and
// the span contains the topic. A replayed message has no lag, because an operator
// decided when it is handled.
func TestInboxWithoutRetryKnowsTheDelivery(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db := w.database()
	inbox := w.inbox(db)
	store, err := parkedrows.NewStore(db, schema.Config{})
	kit.OK(t, err)
	for _, id := range []string{"retried", "replayed"} {
		msg := message.NewMessage(id, nil)
		msg.Metadata.Set(meta.CreatedAt, meta.Stamp(time.Now()))
		kit.OK(t, store.Deliver(t.Context(), "t", []string{"payments"}, msg))
	}
	w.exec(db, `UPDATE once_parked SET replays = 1 WHERE message_id = 'replayed'`)
	claimed, err := store.Claim(t.Context(), parkedrows.Select{Consumer: "payments", Topic: "t", Owner: "me", Limit: 2, Lease: time.Hour})
	if err != nil || len(claimed) != 2 {
		t.Fatalf("%d rows are claimed: %v", len(claimed), err)
	}
	for _, c := range claimed {
		c.Message.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "t", Claim: c.Claim}))
		if _, err := inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(c.Message); err != nil {
			t.Errorf("%s: %v", c.Message.UUID, err)
		}
	}
	w.want(1, "once.dedup.lag", "once.since=created")
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
			kit.Check(w, kit.Err(inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)))
		}
	}
	for since, want := range map[string]float64{"created": 2, "published": 1} {
		w.want(want, "once.dedup.lag", "once.since="+since)
	}
}

// moveSize observes the size of an inbox that is partitioned by day, while its
// retention runs and while its table is missing.
func moveSize(w *watch, db *sql.DB, inbox *dedup.Inbox, seen *seen) {
	w.want(-1, "once.dedup.rows", "once.state=live")
	ctx, cancel := context.WithCancel(w.Context())
	ended := kit.Go(func() error { return inbox.Run(ctx) })
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
	kit.Check(w, <-ended)
	if got := w.value("once.dedup.rows", "once.state=live"); got != -1 {
		w.Errorf("%v rows are observed after Run", got)
	}
}

// moveInbox lets a durable consumer store a message, skip its duplicate, and
// fail to store while its table is missing.
func moveInbox(w *watch, seen *seen) {
	db := w.database()
	storage, err := durable.New(db, durable.Config{KeepHandled: time.Hour, MeterProvider: w.meters})
	kit.OK(w, err)
	w.zero("once.durable.")
	retries, err := retry.New(db, retry.Config{PollInterval: 20 * time.Millisecond})
	kit.OK(w, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(w, err)
	in := &byHand{kit.NewSubscriber()}
	router.AddMiddleware(retries.Middleware)
	router.AddConsumerHandler("handler", "t", retries.Subscriber("payments", storage.Subscriber(in)),
		func(*message.Message) error { return nil })
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(w.Context())) })
	<-router.Running()

	in.deliver(message.NewMessage("1", nil))
	in.deliver(message.NewMessage("1", nil))
	kit.Eventually(w, 20*time.Second, "the message is handled", func() bool { return w.value("once.durable.lag", "") == 1 })

	w.exec(db, `ALTER TABLE once_parked RENAME TO away`)
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		in.deliver(message.NewMessage("2", nil))
	}()
	kit.Eventually(w, 20*time.Second, "storing fails", func() bool {
		return w.value("once.durable.store.duration", "once.outcome=failed") > 0
	})
	w.exec(db, `ALTER TABLE away RENAME TO once_parked`)
	<-stored
	for outcome, want := range map[string]float64{"stored": 2, "ignored": 1} {
		w.want(want, "once.durable.received", "once.outcome="+outcome)
	}
	w.want(3, "once.durable.store.duration", "once.outcome=ok")
	seen.look(w)
	kit.Check(w, router.Close())
	kit.Check(w, <-ended)
}

// moveSequence causes every outcome of sequence.
func moveSequence(w *watch, seen *seen) {
	db := w.database()
	tx := kit.Begin(w, db)
	defer func() { _ = tx.Rollback() }()
	here := func(context.Context) (*sql.Tx, bool) { return tx, true }
	apply, quarantine := w.sequence(here, sequence.Config{AfterWindow: sequence.Apply}), w.sequence(here, sequence.Config{})
	nowhere := w.sequence(func(context.Context) (*sql.Tx, bool) { return nil, false }, sequence.Config{})
	merge := w.sequence(here, sequence.Config{
		OnStale: func(context.Context, *sql.Tx, sequence.Gap, *message.Message) error { return nil },
	})
	w.zero("once.sequence.")

	look := func(order *sequence.Resequencer, version string, waited time.Duration, result error) {
		msg := message.NewMessage("m", nil)
		outbox.SetAggregate(msg, "account", "17", 1)
		msg.Metadata.Set(outbox.AggregateVersion, version)
		msg.SetContext(parkedrows.WithDelivery(w.Context(), &parkedrows.Delivery{
			Consumer: "payments", Subscribed: true, Claim: &parkedrows.Claim{Waited: waited},
		}))
		_, _ = order.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, result })(msg)
	}
	look(apply, "1", 0, nil)
	look(apply, "1", 0, nil)
	look(apply, "5", 0, nil)
	look(quarantine, "5", time.Hour, nil)
	look(apply, "5", time.Hour, nil)
	look(apply, "6", 0, errHandler)
	look(apply, "", 0, nil)
	look(apply, "first", 0, nil)
	look(nowhere, "9", 0, nil)
	look(merge, "2", 0, nil)
	for _, outcome := range []string{
		"applied", "stale", "held", "given_up", "merged", "applied_with_gap", "failed", "unversioned", "invalid", "undecided",
	} {
		w.want(1, "once.sequence.handled", "once.outcome="+outcome)
	}
	seen.look(w)
}

func (w *watch) sequence(tx func(context.Context) (*sql.Tx, bool), config sequence.Config) *sequence.Resequencer {
	w.Helper()
	config.Tx, config.Policy, config.MeterProvider = tx, sequence.HoldForGap, w.meters
	order, err := sequence.New(config)
	kit.OK(w, err)
	return order
}

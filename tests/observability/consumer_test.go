package observability

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

var errHandler = errors.New("the handler fails")

// byHand is a subscriber whose messages come from the test.
type byHand struct{ *kit.Subscriber }

// deliver delivers msg and waits for its ack or nack.
func (b *byHand) deliver(msg *message.Message) {
	b.Messages <- msg
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	}
}

func (w *watch) inbox(db *sql.DB) *dedup.Inbox {
	w.Helper()
	inbox, err := dedup.New(db, dedup.Config{
		Outbox: w.outbox().Publisher, MeterProvider: w.meters, TracerProvider: w.traces, Logger: &w.logs,
	})
	kit.OK(w, err)
	return inbox
}

// consume runs a router with one handler until the test ends, or end is called.
func (w *watch) consume(db *sql.DB, h message.NoPublishHandlerFunc, inner ...message.HandlerMiddleware) (in *byHand, end func()) {
	w.Helper()
	retries, err := retry.New(db, retry.Config{
		Policy:      retry.Policy{Immediate: 1, Delayed: 1, Base: 10 * time.Millisecond},
		Breaker:     &retry.Breaker{}, // opens only if a handler says that a service is unavailable
		CrashBudget: 2, PollInterval: 20 * time.Millisecond,
		KeyOrder:      retry.BlockWhileQuarantined, // for messages with a key
		ShareConsumer: true,                        // for two instances in one process
		MeterProvider: w.meters, TracerProvider: w.traces, Logger: &w.logs,
	})
	kit.OK(w, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(w, err)
	quarantine, err := poison.New(db, poison.Config{TracerProvider: w.traces})
	kit.OK(w, err)
	router.AddMiddleware(quarantine.Middleware, retries.Middleware)
	router.AddMiddleware(inner...)
	in = &byHand{kit.NewSubscriber()}
	router.AddConsumerHandler("handler", "t", retries.Subscriber("payments", in), h)
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(w.Context())) })
	<-router.Running()
	end = sync.OnceFunc(func() {
		kit.Check(w, errors.Join(router.Close(), <-ended))
	})
	w.Cleanup(end)
	return in, end
}

// moveBatches runs two messages in a transaction that is rolled back because of
// one of them. Then each gets a transaction of its own.
func moveBatches(w *watch, inbox *dedup.Inbox) {
	var inFlight sync.WaitGroup
	batch := inbox.BatchHandler(func(_ context.Context, _ *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
		if len(msgs) > 1 {
			return nil, errHandler
		}
		return nil, nil
	})
	for _, id := range []string{"5", "6"} {
		inFlight.Go(func() { _, _ = batch(message.NewMessage(id, nil)) })
	}
	inFlight.Wait()
	for outcome, want := range map[string]float64{"committed": 2, "rolled_back": 1} {
		w.want(want, "once.dedup.batch.size", "once.outcome="+outcome)
	}
}

// moveDedup causes every outcome of the inbox.
func moveDedup(w *watch, seen *seen) {
	db := w.database()
	inbox, err := dedup.New(db, dedup.Config{
		Consumer: "payments", MeterProvider: w.meters, Batch: dedup.Batch{Size: 2, Wait: time.Minute},
	})
	kit.OK(w, err)
	nameless, err := dedup.New(db, dedup.Config{MeterProvider: w.meters})
	kit.OK(w, err)
	w.zero("once.dedup.")
	fine := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for _, c := range []struct {
		inbox    *dedup.Inbox
		id, body string
		h        message.HandlerFunc
	}{
		{inbox, "1", "body", fine},
		{inbox, "1", "body", fine},
		{inbox, "1", "other", fine},
		{inbox, "", "body", fine},
		{inbox, "2", "body", func(*message.Message) ([]*message.Message, error) { return nil, errHandler }},
		{nameless, "3", "body", fine},
	} {
		_, _ = c.inbox.Middleware(c.h)(message.NewMessage(c.id, []byte(c.body)))
	}
	odd := message.NewMessage("odd", nil)
	odd.SetContext(usercode.WithUndecodable(w.Context(), errors.New("cannot be read")))
	_, _ = inbox.Middleware(fine)(odd)
	func() {
		defer func() { _ = recover() }()
		_, _ = inbox.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })(message.NewMessage("4", nil))
	}()
	for outcome, want := range map[string]float64{
		"applied": 1, "duplicate": 1, "collision": 1, "invalid_id": 1, "undecodable": 1, "failed": 2, "undecided": 1,
	} {
		w.want(want, "once.dedup.handled", "once.outcome="+outcome)
	}
	for _, since := range []string{"created", "published"} {
		w.want(-1, "once.dedup.lag", "once.since="+since)
	}
	for outcome, want := range map[string]float64{"ok": 1, "failed": 3} {
		w.want(want, "once.dedup.duration", "once.outcome="+outcome)
	}
	moveBatches(w, inbox)
	w.exec(db, `UPDATE once_inbox SET processed_at = now() - interval '31 days'`)
	kit.Check(w, kit.Err(inbox.Sweep(w.Context())))
	w.want(3, "once.dedup.swept", "")
	moveDays(w, db)
	moveLag(w, inbox)
	moveSize(w, db, inbox, seen)
	seen.look(w)
}

// moveDays causes every outcome of the partitions by day: created, emptied, dropped and blocked.
func moveDays(w *watch, db *sql.DB) {
	kit.WithinADay(w.T)
	byDay := schema.Config{Inbox: schema.ByDay}
	kit.OK(w, schema.Up(w.Context(), db, byDay))
	inbox, err := dedup.New(db, dedup.Config{Schema: byDay, Consumer: "payments", MeterProvider: w.meters})
	kit.OK(w, err)
	w.exec(db, `CREATE TABLE once_inbox_20240101 PARTITION OF once_inbox FOR VALUES FROM ('018cc251') TO ('018cc777')`)
	w.exec(db, `INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT '018cc251-' || n, 'payments', '', now() - interval '1 year' FROM generate_series(1, 2000) AS n`)
	sweep := func() {
		kit.Check(w, kit.Err(inbox.Sweep(w.Context())))
	}
	tx := kit.Begin(w, db)
	kit.Exec(w, tx, `LOCK TABLE ONLY once_inbox IN ROW EXCLUSIVE MODE`)
	sweep()
	kit.OK(w, tx.Rollback())
	sweep()
	for outcome, want := range map[string]float64{"created": 7, "emptied": 1, "dropped": 1, "blocked": 1} {
		w.want(want, "once.dedup.days", "once.outcome="+outcome)
	}
}

// moveRetry causes every outcome of retry.
func moveRetry(w *watch, seen *seen) {
	db := w.database()
	store, err := parkedrows.NewStore(db, schema.Config{})
	kit.OK(w, err)
	put := func(consumer, id string) {
		w.Helper()
		kit.OK(w, store.Deliver(w.Context(), "t", []string{consumer}, message.NewMessage(id, nil)))
	}
	// These rows exist before the consumer runs. Their processes have crashed.
	for _, id := range []string{"crashed once", "killer"} {
		put("payments", id)
	}
	w.exec(db, `UPDATE once_parked SET crashes = CASE message_id WHEN 'killer' THEN 2 ELSE 1 END`)
	put("payments", "damaged")
	w.exec(db, `UPDATE once_parked SET envelope = '\x00' WHERE message_id = 'damaged'`)

	var mu sync.Mutex
	calls := map[string]int{}
	entered, finish := make(chan struct{}), make(chan struct{})
	in, end := w.consume(db, func(msg *message.Message) error {
		mu.Lock()
		calls[msg.UUID]++
		call := calls[msg.UUID]
		mu.Unlock()
		switch msg.UUID {
		case "fails":
			return errHandler
		case "early":
			if call == 1 {
				return chain.NotYet(chain.Turn{Sequence: "s", Version: 2}, time.Millisecond, errHandler)
			}
		case "head":
			return retry.Permanent(errHandler)
		case "undecided":
			if call == 1 {
				return chain.HandBack(errHandler)
			}
		case "interrupted":
			close(entered)
			<-finish
			return errHandler
		}
		return nil
	})
	w.eventually("the crashed messages are settled", func() bool {
		return w.value("once.retry.crashes", "") == 2 && len(w.named("quarantine t")) == 2 &&
			w.value("once.retry.attempts", "once.outcome=handled") == 1
	})
	in.deliver(message.NewMessage("fine", nil))
	in.deliver(message.NewMessage("fails", nil))
	in.deliver(message.NewMessage("undecided", nil))
	in.deliver(message.NewMessage("early", nil))
	redelivered := message.NewMessage("redelivered", nil)
	redelivered.Metadata.Set("once_redelivered", "true")
	in.deliver(redelivered)
	w.awaitValue(5, "once.retry.attempts", "once.outcome=handled")
	w.awaitValue(1, "once.retry.attempts", "once.outcome=given_up")
	for _, id := range []string{"head", "behind"} {
		keyed := message.NewMessage(id, nil)
		keyed.Metadata.Set(outbox.OrderingKey, "key")
		in.deliver(keyed)
	}
	w.awaitValue(2, "once.retry.stored", "")
	w.awaitValue(1, "once.retry.blocked_keys", "")
	w.awaitValue(1, "once.retry.waiting_for_key", "")
	put("nobody", "1")
	w.awaitValue(1, "once.retry.waiting", "")
	w.awaitValue(0.1, "once.retry.lag", "")
	w.exec(db, `INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ('nobody', 'nobody', 'ann', 'a test')`)
	w.awaitValue(1, "once.retry.paused", "")
	seen.look(w)

	w.exec(db, `ALTER TABLE once_parked RENAME TO elsewhere`)
	w.eventually("the number of waiting messages is unknown", func() bool { return w.value("once.retry.waiting", "") == -1 })
	w.exec(db, `ALTER TABLE elsewhere RENAME TO once_parked`)
	w.awaitValue(1, "once.retry.waiting", "")

	go in.deliver(message.NewMessage("interrupted", nil))
	<-entered
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	w.eventually("the consumer is closing", func() bool {
		select {
		case _, open := <-in.Messages:
			return !open
		default:
			return false
		}
	})
	close(finish)
	<-ended
	for outcome, want := range map[string]float64{
		"again": 2, "parked": 1, "given_up": 2, "undecided": 1, "interrupted": 1, "early": 1, "handled": 5,
	} {
		w.want(want, "once.retry.attempts", "once.outcome="+outcome)
	}
	w.want(1, "once.retry.redelivered", "")
	if left := w.value("once.retry.waiting", ""); left != -1 {
		w.Errorf("a closed consumer is still observed: %v", left)
	}
	seen.look(w)
}

// moveBreaker opens and closes a breaker: first that of one of two instances alone, then, when the
// other one has ended, that of all. The consumer has a limit.
func moveBreaker(w *watch, seen *seen) {
	db := w.database()
	w.exec(db, `INSERT INTO once_consumer_limits (topic, consumer, per_second, burst) VALUES ('t', 'payments', 1000, 1000)`)
	var down atomic.Bool
	store, err := parkedrows.NewStore(db, schema.Config{})
	kit.OK(w, err)
	w.consume(db, func(*message.Message) error {
		if down.Load() {
			return retry.Unavailable(errHandler)
		}
		return nil
	})
	_, end := w.consume(db, func(*message.Message) error { return nil })
	w.eventually("two instances run", func() bool {
		var n int
		return db.QueryRowContext(w.Context(), `SELECT COUNT(*) FROM once_consumer_instances`).Scan(&n) == nil && n == 2
	})
	n := 0
	change := func(opened, closed string) {
		w.Helper()
		down.Store(true)
		w.eventually(opened+" and "+closed, func() bool {
			n++
			kit.OK(w, store.Deliver(w.Context(), "t", []string{"payments"}, message.NewMessage(fmt.Sprint("message ", n), nil)))
			if w.value("once.retry.breaker", "once.outcome="+opened) > 0 {
				down.Store(false)
			}
			return w.value("once.retry.breaker", "once.outcome="+closed) > 0
		})
	}
	change("opened_alone", "closed_alone")
	end()
	change("opened", "closed")
	seen.look(w)
}

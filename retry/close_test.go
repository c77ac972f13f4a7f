package retry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// A missing ack must not block Close without end, nor the end of the subscription's context, with
// which Watermill's router ends. The message must not be lost, and no attempt may be counted.
func TestCloseEndsWithoutAckAfterCloseTimeout(t *testing.T) {
	for name, end := range map[string]ending{
		"Close": func(*testing.T, context.CancelFunc, <-chan *message.Message) {},
		"context": func(t *testing.T, cancel context.CancelFunc, messages <-chan *message.Message) {
			cancel()
			select {
			case <-messages:
			case <-time.After(time.Minute):
				t.Fatal("the subscription does not end")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				endWithoutAck(t, db, end)
			})
		})
	}
}

// ending ends a subscription, before the subscriber is closed.
type ending func(t *testing.T, cancel context.CancelFunc, messages <-chan *message.Message)

func endWithoutAck(t *testing.T, db kit.Database, end ending) {
	t.Helper()
	b := newBench(t, db, func(c *retry.Config) {
		c.CloseTimeout, c.Lease, c.Concurrency = 50*time.Millisecond, time.Minute, 2
	})
	b.put("received", "claimed")
	sub := b.retries.Subscriber(consumer, b.transport)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, err := sub.Subscribe(ctx, topic)
	kit.OK(t, err)
	received := <-messages
	b.Eventually("the other message is claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 2 })

	end(t, cancel, messages)
	if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
		t.Errorf("closed with %v", err)
	}
	if _, err := sub.Subscribe(t.Context(), topic); err == nil || err.Error() != "retry: the subscriber is closed" {
		t.Errorf("Subscribe after Close returned %v", err)
	}
	if received.Context().Err() == nil {
		t.Error("the context of the message has not ended")
	}
	received.Ack() // this ack is too late and must have no effect
	for _, entry := range b.entries(parkedrows.Waiting) {
		if entry.Attempts != 0 || entry.Crashes != 0 {
			t.Errorf("%+v was charged", entry)
		}
		// The message is due only after a lease, because its handler may still be
		// running.
		if wait := time.Until(entry.DueAt); entry.MessageID == "received" && wait < 30*time.Second {
			t.Errorf("%+v is due in %v", entry, wait)
		}
	}
	b.WantCount(2, `once_parked WHERE token IS NULL`)
}

// Messages that wait for a free handler must be released at the beginning of Close. They
// must not wait until the running handlers have finished. (With SQLite, a handler may use
// the only writer.)
func TestCloseReleasesQueuedMessagesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) {
		c.KeyOrder, c.Concurrency, c.CloseTimeout = retry.BlockWhileRetried, 1, time.Minute
	})
	b.store("a", "b", "c")
	sub := b.retries.Subscriber(consumer, b.transport)
	messages, err := sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	running := <-messages
	b.Eventually("the others are claimed, too", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 3 })
	closed := kit.Go(sub.Close)
	b.Eventually("the others are released", func() bool {
		return b.Count(`once_parked WHERE token IS NULL AND crashes = 0 AND due_at <= now()`) == 2
	})
	running.Ack()
	kit.Check(t, <-closed)
	if rows := b.entries(parkedrows.Waiting); len(rows) != 2 {
		t.Errorf("the rows are %+v, want two", rows)
	}
}

// Close must end even if a table is locked, or the database does not respond.
func TestCloseEndsWhileTableIsLocked(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{
		"looking for due messages waits": "ACCESS EXCLUSIVE", "claiming them waits": "SHARE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closeWhileLocked(t, lock)
		})
	}
}

func closeWhileLocked(t *testing.T, lock string) {
	t.Helper()
	db := kit.Postgres(t)
	b := newBench(t, db, func(c *retry.Config) { c.CloseTimeout, c.Lease = 50*time.Millisecond, 500*time.Millisecond })
	b.put("m1")
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	kit.Exec(t, tx, `LOCK TABLE once_parked IN `+lock+` MODE`)
	sub := b.retries.Subscriber(consumer, b.transport)
	kit.OK(t, kit.Err(sub.Subscribe(t.Context(), topic)))
	b.Eventually("the fetcher waits for the table", func() bool {
		return b.Count(`pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT granted AND datname = current_database()`) == 1
	})
	closed := kit.Go(sub.Close)
	select {
	case err = <-closed:
	case <-time.After(10 * time.Second):
		t.Error("Close does not return while the table is locked")
		defer func() {
			kit.Check(t, <-closed)
		}()
	}
	kit.OK(t, errors.Join(err, tx.Rollback()))
}

// When the process shuts down, a message in flight must become due immediately for the
// next process, even if the first release fails.
func TestMessageReleasedLateInShutdownIsDueAtOnce(t *testing.T) {
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.Policy.Base, c.Policy.Max = time.Hour, time.Hour })
	b.put("m1")
	for _, query := range []string{
		`CREATE SEQUENCE tries`,
		`CREATE FUNCTION once_away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('tries') = 1 THEN RAISE EXCEPTION 'away'; END IF; RETURN NEW; END $$`,
		`CREATE TRIGGER once_away BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (NEW.token IS NULL) EXECUTE FUNCTION once_away()`,
	} {
		kit.Exec(t, b, query)
	}
	running := make(chan struct{})
	b.run(func(*message.Message) error {
		close(running)
		b.Eventually("the consumer shuts down", b.transport.closed.Load)
		return errHandler
	})
	<-running
	kit.OK(t, b.subscriber.Close())
	due, err := b.parked.Due(t.Context(), parkedrows.Select{Consumer: consumer, Topic: topic})
	if entries := b.entries(parkedrows.Waiting); err != nil || !due.Fresh() ||
		b.Count(`once_parked WHERE token IS NULL AND crashes = 0`) != 1 {
		t.Errorf("%+v, %v", entries, err)
	}
}

// meters is a provider whose registrations call the function unregistered when they end.
type meters struct {
	noop.MeterProvider
	unregistered func()
}

func (m meters) Meter(string, ...metric.MeterOption) metric.Meter {
	return meter{unregistered: m.unregistered}
}

type meter struct {
	noop.Meter
	unregistered func()
}

func (m meter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return registration{unregistered: m.unregistered}, nil
}

type registration struct {
	noop.Registration
	unregistered func()
}

func (r registration) Unregister() error {
	r.unregistered()
	return nil
}

// A router ends as soon as its subscriptions have ended. At that time, the metrics of the
// table must not be observed any more.
func TestClosedSubscriptionIsNoLongerObserved(t *testing.T) {
	t.Parallel()
	var (
		messages <-chan *message.Message
		calls    int
	)
	provider := meters{unregistered: func() {
		calls++
		select {
		case <-messages:
			t.Error("the subscription ended first")
		default:
		}
	}}
	b := newBench(t, kit.SQLite(t), func(c *retry.Config) { c.MeterProvider = provider })
	sub := b.retries.Subscriber(consumer, newTransport())
	var err error
	messages, err = sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	kit.OK(t, sub.Close())
	if calls != 1 {
		t.Errorf("Unregister was called %d times, want once", calls)
	}
}

// UnackedWait must include the duration of the tries, because an unreachable database may
// take a minute to return its error. If the broker waited too long for an ack, it would
// close the channel with all messages in flight.
func TestUnackedWaitIncludesSlowErrors(t *testing.T) {
	t.Parallel()
	const hold = 300 * time.Millisecond
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.UnackedWait = hold })
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, LockTimeout: 2 * hold})
	kit.OK(t, err)
	tx, err := b.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', $1, '')`, consumer)
	var tries atomic.Int32
	count := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			tries.Add(1)
			return h(msg)
		}
	}
	b.runWith(func(*message.Message) error {
		t.Error("a copy was handled while the row is claimed")
		return nil
	}, b.retries.Middleware, count, inbox.Middleware)
	if b.transport.deliver(t, message.NewMessage("m1", nil)) {
		t.Error("it was acked")
	}
	if n := tries.Load(); n != 2 {
		t.Errorf("the message waited for %d tries of %v, but UnackedWait is %v", n, 2*hold, hold)
	}
}

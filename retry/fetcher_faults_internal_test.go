package retry

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// away renames a table, so that all statements on it fail until back is called.
func away(t *testing.T, db kit.Database, table string) (back func()) {
	t.Helper()
	rename := func(from, to string) {
		t.Helper()
		kit.Exec(t, db, `ALTER TABLE `+from+` RENAME TO `+to)
	}
	rename(table, "away")
	return func() { rename("away", table) }
}

// If no handler takes a message before CloseTimeout has passed, the message returns to
// its transport.
func TestMessageThatNobodyTakesIsNackedAfterCloseTimeout(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	close(over)
	s := &subscriber{retries: &Retries{config: Config{}.withDefaults()}, consumer: "payments"}
	f := newFetcher(s, "orders.placed", nil, 0)
	f.closeTimeout = over
	in, msg := make(chan *message.Message, 1), message.NewMessage("m1", nil)
	in <- msg
	close(in)
	f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() {}}, nil)
	select {
	case <-msg.Nacked():
	default:
		t.Error("the message was not nacked")
	}
	if n := s.unanswered.Load(); n != 1 {
		t.Errorf("%d messages are counted, want 1", n)
	}
}

// A consumer that is paused while it stores messages in their order still ends when it shuts down.
func TestShutdownOfAPausedConsumerThatStoresMessages(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	f := idleFetcher(t, db)
	f.config.KeyOrder = BlockWhileRetried
	closing := make(chan struct{})
	f.closing = closing
	f.pauses = f.store.WatchPauses(t.Context(), f.consumer, f.topic, f.config.Logger)
	defer f.pauses.Stop()
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `LOCK TABLE once_parked IN ACCESS EXCLUSIVE MODE`)

	in, returned, ended := make(chan *message.Message), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() { close(returned) }}, nil)
	}()
	msg := message.NewMessage("m1", nil)
	msg.Metadata[meta.OrderingKey] = "k"
	in <- msg
	kit.Eventually(t, time.Minute, "the message is being stored", func() bool {
		var waits bool
		err := db.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE NOT granted AND datname = current_database())`).Scan(&waits)
		return err == nil && waits
	})
	kit.Exec(t, db, `INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ($1, $2, 'ann', 'a test')`, f.topic, f.consumer)
	kit.OK(t, f.pauses.Refresh(t.Context()))
	close(closing)
	close(in)
	<-returned
	kit.OK(t, tx.Rollback())
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the consumer does not end")
	}
}

// Rows that may have been claimed are released before other rows are claimed, even if the
// first attempt to release them fails.
func TestUnknownClaimsAreReleasedBeforeTheNextClaim(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		deliver(t, f, "m1")
		claimed, err := f.store.Claim(t.Context(), parkedrows.Select{Consumer: f.consumer, Topic: f.topic, Limit: 1, Lease: time.Hour})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		f.accept(claimed, errors.New("unknown outcome"))
		if f.queue.len() != 0 || len(f.inFlight) != 0 {
			t.Error("a message of an unknown claim is handed out")
		}
		f.unknown = append(f.unknown, &parkedrows.Claim{ID: 1000, Token: "was not committed"})
		back := away(t, db, "once_parked")
		if f.fetch(t.Context()) || !f.failing || len(f.unknown) != 2 {
			t.Errorf("failing %t, %d unknown claims", f.failing, len(f.unknown))
		}
		back()
		f.fetch(t.Context())
		if f.failing || len(f.unknown) != 0 || f.queue.len() != 1 {
			t.Fatalf("failing %t, %d unknown claims, %d messages", f.failing, len(f.unknown), f.queue.len())
		}
		c, _ := f.queue.next()
		f.remove(c.Claim)
	})
}

// If the renewal of leases fails, or the repair of ordering keys, this must be logged,
// like a failed fetch.
func TestFailedUpkeepIsLogged(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, do := range map[string]func(f *fetcher){
			"renew": func(f *fetcher) { f.renew(t.Context()) }, "tidy": func(f *fetcher) { f.tidy(t.Context()) },
		} {
			logs := &kit.Logs{}
			f := idleFetcher(t, db)
			f.config.Logger = logs
			claim := &parkedrows.Claim{ID: 7, Token: "x"}
			f.inFlight[claim] = struct{}{}
			do(f)
			back := away(t, db, "once_parked")
			do(f)
			back()
			if n := logs.Count("ERROR Parked messages cannot be fetched, retrying"); n != 1 || len(logs.Lines()) != 1 || !f.failing {
				t.Errorf("%s: logged %q", name, logs.Lines())
			}
		}
	})
}

// If a consumer cannot be registered, this is logged only once until it is registered.
func TestFailedRegistrationIsLoggedOnce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		logs := &kit.Logs{}
		f := idleFetcher(t, db)
		f.config.Logger = logs
		register := func(ctx context.Context, want time.Duration, logged int) {
			t.Helper()
			if next := f.register(ctx); next != want {
				t.Errorf("registers again after %v, want %v", next, want)
			}
			const line = "ERROR Consumer cannot be registered as running, retrying"
			if logs.Count(line, "consumer=payments", "topic=orders.placed") != logged || len(logs.Lines()) != logged {
				t.Errorf("logged %q, want %d lines", logs.Lines(), logged)
			}
		}
		ended, end := context.WithCancel(t.Context())
		end()
		register(ended, 5*time.Second, 0)
		for n := range 2 {
			back := away(t, db, "once_consumers")
			register(t.Context(), 5*time.Second, n+1)
			register(t.Context(), 5*time.Second, n+1)
			back()
			register(t.Context(), 30*time.Second, n+1)
		}
		back := away(t, db, "once_consumer_instances")
		f.leave(t.Context())
		back()
		if !logs.Has("DEBUG End of the consumer's instance cannot be recorded", "consumer=payments", "topic=orders.placed") {
			t.Errorf("logged %q", logs.Lines())
		}
		var n int
		count := func() int {
			kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_consumer_instances`).Scan(&n))
			return n
		}
		if count() != 1 {
			t.Errorf("%d instances are registered", n)
		}
		if f.leave(t.Context()); count() != 0 {
			t.Errorf("%d instances are left", n)
		}
	})
}

// Rows of handled messages are removed together, but only while more messages wait, and for a
// shorter time if others may wait for the removal. If the transport stores its messages, retry
// reports to it for how long each message was in the table. It does not report replayed messages,
// because they waited for an operator.
func TestHandledRowsAreRemovedTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config   Config
		stored   parkedrows.Stored
		together int
		wait     time.Duration
	}{
		"stored":       {Config{Concurrency: 10}, parkedrows.Stored{Ahead: 8}, 100, linger},
		"key order":    {Config{Concurrency: 10, KeyOrder: BlockWhileRetried}, parkedrows.Stored{Ahead: 64}, 16, shortLinger},
		"tenant limit": {Config{Concurrency: 10}, parkedrows.Stored{Ahead: 64, PerTenant: 2}, 16, shortLinger},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := fetcherOf(c.config, 0)
			var told []time.Duration
			c.stored.Handled = func(lag time.Duration) { told = append(told, lag) }
			f.subscription().Store(c.stored)
			f.queue, f.handled = newFairQueue(nil), make(chan *parkedrows.Claim, c.together)
			ack := func(count int) {
				for range count {
					claim := &parkedrows.Claim{}
					claim.Manage()
					claim.Handle()
					f.settle(t.Context(), f.delivery(claim), true)
				}
			}
			collect := func(want int, wantTook time.Duration) {
				t.Helper()
				began := time.Now()
				if claims, took := len(f.collectHandled(&parkedrows.Claim{})), time.Since(began); claims != want || took != wantTook {
					t.Errorf("%s: %d are removed after %v, want %d after %v", name, claims, took, want, wantTook)
				}
			}
			ack(3)
			collect(4, 0) // no message waits
			add(f.queue, "a", 1)
			collect(1, c.wait)
			ack(1)
			go func() {
				time.Sleep(c.wait / 2) //nolint:forbidigo // on the clock of synctest
				ack(1)
			}()
			collect(3, c.wait)
			ack(c.together - 1)
			collect(c.together, 0)
			ack(1)
			close(f.handled)
			collect(2, 0)
			if want := 5 + c.together; len(told) != want {
				t.Errorf("%s: the transport is told of %d messages, want %d", name, len(told), want)
			}
			f.handled = make(chan *parkedrows.Claim, 1)
			if f.settle(t.Context(), f.delivery(&parkedrows.Claim{Replays: 1}), true); len(told) != 5+c.together || len(f.handled) != 1 {
				t.Errorf("%s: a replayed message is told, or is not resolved", name)
			}
		})
	}
}

// A handled message makes room for another claim before its row is removed, up to the number of
// rows that one statement removes.
func TestHandledMessageMakesRoom(t *testing.T) {
	t.Parallel()
	f := fetcherOf(Config{Concurrency: 10}, 0)
	f.subscription().Store(parkedrows.Stored{Ahead: 64})
	for range f.capacity() {
		f.inFlight[&parkedrows.Claim{}] = struct{}{}
	}
	f.handled = make(chan *parkedrows.Claim, f.capacity())
	for handled := range 3 {
		if f.room() != handled {
			t.Errorf("%d messages are handled, and there is room for %d", handled, f.room())
		}
		f.settle(t.Context(), f.delivery(&parkedrows.Claim{}), true)
		select {
		case <-f.freed:
		default:
			t.Error("the fetcher is not told that there is room")
		}
	}
	f.unremoved.Store(1000)
	if f.room() != f.removedTogether() {
		t.Errorf("room for %d more, want %d", f.room(), f.removedTogether())
	}
}

// The metrics of the table are observed while there is a subscription.
func TestTableIsObservedUntilTheLastSubscriptionEnds(t *testing.T) {
	t.Parallel()
	r, err := New(kit.SQLite(t).DB, Config{Schema: schema.Config{Dialect: schema.SQLite}})
	kit.OK(t, err)
	var ended atomic.Int32
	first := r.watch()
	r.watchers.end = func() { ended.Add(1) }
	second := r.watch()
	for range 2 {
		if first(); ended.Load() != 0 {
			t.Error("the observation ends with the first subscription")
		}
	}
	if second(); ended.Load() != 1 {
		t.Errorf("the observation ends %d times", ended.Load())
	}
}

// pinged is a subscriber with the methods Ping and SubscribeInitialize.
type pinged struct {
	message.Subscriber

	topics []string
}

var errUnreachable = errors.New("the broker is unreachable")

func (*pinged) Ping(context.Context) error { return errUnreachable }

func (p *pinged) SubscribeInitialize(topic string) error {
	p.topics = append(p.topics, topic)
	return errUnreachable
}

// The methods that once.Plugin calls must return the settings of the Retries and of its
// subscriber. Ping and SubscribeInitialize must call the wrapped subscriber.
func TestPartDescribesTheRetries(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	r, err := New(db.DB, Config{
		Schema: schema.Config{Dialect: schema.SQLite}, Concurrency: 3, ShareConsumer: true,
		Policy: Policy{Delayed: 1, Base: time.Hour},
	})
	kit.OK(t, err)
	p := r.Part()
	if p.Name != "retry" || p.DB != db.DB || p.Schema.Dialect != schema.SQLite || p.Logger == nil || len(p.Tables) != 7 ||
		p.Concurrency != 3 || p.LongestDelay != time.Hour {
		t.Errorf("%+v", p)
	}
	inner := &pinged{}
	s := r.Subscriber("payments", inner).(*subscriber)
	if s.ConsumerName() != "payments" || !s.SharesConsumer() {
		t.Errorf("name %q, shared %t", s.ConsumerName(), s.SharesConsumer())
	}
	if err := s.Ping(t.Context()); !errors.Is(err, errUnreachable) {
		t.Errorf("Ping: %v", err)
	}
	if err := s.SubscribeInitialize("orders.placed"); !errors.Is(err, errUnreachable) || len(inner.topics) != 1 {
		t.Errorf("SubscribeInitialize: %v, topics %q", err, inner.topics)
	}
	s.sub = struct{ message.Subscriber }{}
	if err := errors.Join(s.Ping(t.Context()), s.SubscribeInitialize("orders.placed")); err != nil {
		t.Errorf("a subscriber without these methods: %v", err)
	}
}

package retry

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// If the consumer nacks a message because it shuts down, it must not store later
// messages, even if the database works again. Otherwise they would be handled before
// the nacked message.
func TestKeyOrderNacksSuccessorsOfNackedMessage(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	r, err := New(db.DB, Config{Schema: config, KeyOrder: BlockWhileRetried})
	kit.OK(t, err)
	rename := func(from, to string) {
		kit.Exec(t, db, `ALTER TABLE `+from+` RENAME TO `+to)
	}
	closing, ended := make(chan struct{}), make(chan struct{})
	in := make(chan *message.Message)
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", closing, 0)
	go func() {
		defer close(ended)
		f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() {}}, nil)
	}()

	rename("once_parked", "away")
	for n, what := range []string{"the first, which cannot be stored", "its successor, which could be"} {
		msg := message.NewMessage(what, nil)
		msg.Metadata[meta.OrderingKey] = "k"
		in <- msg
		if n == 0 {
			close(closing)
		}
		select {
		case <-msg.Nacked():
		case <-msg.Acked():
			t.Fatalf("%s was acked", what)
		case <-time.After(20 * time.Second):
			t.Fatalf("%s has neither ack nor nack", what)
		}
		if n == 0 {
			rename("away", "once_parked")
		}
	}
	close(in)
	<-ended
}

// If a transport ends with messages in flight, they must be stored. Messages that
// arrive while earlier messages are being stored share a transaction.
func TestKeyOrderStoresMessagesThatArriveBeforeTransportEnds(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	r, err := New(db.DB, Config{Schema: config, KeyOrder: BlockWhileRetried})
	kit.OK(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `LOCK TABLE once_parked`)
	}
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	in, ended := make(chan *message.Message), make(chan struct{})
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", nil, 0)
	go func() {
		defer close(ended)
		f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() {}}, nil)
	}()
	msgs := []*message.Message{
		message.NewMessage("first", nil), message.NewMessage("came while that is stored", nil), message.NewMessage("came too", nil),
	}
	for _, msg := range msgs {
		msg.Metadata[meta.OrderingKey] = "k"
		in <- msg
	}
	close(in)
	kit.OK(t, tx.Rollback())
	<-ended
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		default:
			t.Errorf("%s was not acked", msg.UUID)
		}
	}
	transactions := kit.One[int](t, db, `SELECT COUNT(DISTINCT CAST(xmin AS text)) FROM once_parked`)
	if transactions != 2 {
		t.Errorf("%d transactions stored the messages, want one for the first and one for the others", transactions)
	}
}

// One transaction stores at most a hundred messages. Further messages wait in their
// transport.
func TestKeyOrderStoresAtMostAHundredMessagesAtOnce(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	r, err := New(db.DB, Config{KeyOrder: BlockWhileRetried})
	kit.OK(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `LOCK TABLE once_parked`)
	}
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	in, ended := make(chan *message.Message), make(chan struct{})
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", nil, 0)
	go func() {
		defer close(ended)
		f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() {}}, nil)
	}()
	const count = 300
	var sent atomic.Int32
	go func() {
		defer close(in)
		for n := range count {
			msg := message.NewMessage(fmt.Sprint(n), nil)
			msg.Metadata[meta.OrderingKey] = "k"
			in <- msg
			sent.Add(1)
		}
	}()
	kit.Eventually(t, time.Minute, "the first is stored, and a hundred are collected", func() bool { return sent.Load() >= 101 })
	if n := sent.Load(); n != 101 {
		t.Errorf("%d messages were taken from the transport, want 101", n)
	}
	kit.OK(t, tx.Rollback())
	<-ended
	var all, most int
	err = db.QueryRowContext(t.Context(), `SELECT SUM(n), MAX(n) FROM
		(SELECT COUNT(*) AS n FROM once_parked GROUP BY CAST(xmin AS text)) AS stored`).Scan(&all, &most)
	if err != nil || all != count || most != 100 {
		t.Errorf("%d messages are stored, at most %d at once, %v; want %d and 100", all, most, err, count)
	}
}

// An undecodable message is not stored, because its row would not say that the message is
// undecodable. The order does not matter for messages without a key.
func TestOnlyReadableMessagesWithAKeyAreStoredInOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order       KeyOrder
		key         string
		undecodable bool
		want        bool
	}{
		"with a key":    {BlockWhileRetried, "k", false, true},
		"without a key": {BlockWhileRetried, "", false, false},
		"undecodable":   {BlockWhileRetried, "k", true, false},
		"in any order":  {Unordered, "k", false, false},
	} {
		msg := message.NewMessage("m1", nil)
		msg.Metadata[meta.OrderingKey] = c.key
		if c.undecodable {
			msg.SetContext(usercode.WithUndecodable(t.Context(), errors.New("no JSON")))
		}
		if got := fetcherOf(Config{KeyOrder: c.order}, 0).ordered(msg); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// A subscription without messages waits for a message, and stores nothing while it waits.
func TestIdleSubscriptionStoresNothing(t *testing.T) {
	f := fetcherOf(Config{KeyOrder: BlockWhileRetried}, 0)
	in, ended := make(chan *message.Message), make(chan struct{})
	go func() {
		defer close(ended)
		f.forward(&inlet{fetcher: f, ctx: t.Context(), messages: in, cancel: func() {}}, nil)
	}()
	kit.Eventually(t, 20*time.Second, "it waits", func() bool { return kit.Goroutines("(*fetcher).forward(", "[select") > 0 })
	for range 100 {
		if kit.Goroutines("(*arrivals).store") > 0 {
			t.Fatal("it stores")
		}
	}
	close(in)
	<-ended
}

// noMessages is a subscriber whose subscriptions end immediately.
type noMessages struct{ message.Subscriber }

func (noMessages) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	messages := make(chan *message.Message)
	close(messages)
	return messages, nil
}

func (noMessages) Close() error { return nil }

// If a subscription ends while it waits to handle a crashed message alone, the messages
// of other subscriptions do not wait any longer, and the metrics are not read any more.
func TestEndedSubscriptionLeavesNothing(t *testing.T) {
	t.Parallel()
	r, err := New(kit.SQLite(t).DB, Config{Schema: schema.Config{Dialect: schema.SQLite}, Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	sub := r.Subscriber("payments", noMessages{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	messages, err := sub.Subscribe(ctx, "t")
	kit.OK(t, err)
	for range messages {
		t.Error("got a message")
	}
	kit.OK(t, sub.Close())
	if r.watchers.count != 0 {
		t.Errorf("the metrics are read for %d subscriptions", r.watchers.count)
	}

	f := newFetcher(&subscriber{retries: r}, "t", ctx.Done(), 0)
	f.gate = &isolationGate{}
	f.requestIsolation(true)
	if f.gate.enter(1, nil) {
		t.Fatal("the request for isolation has no effect")
	}
	f.run(ctx, nil)
	if !f.gate.enter(1, nil) {
		t.Fatal("others still wait for the subscription that has ended")
	}
	f.gate.leave(1)
}

// silent is a database that does not respond.
type silent struct{}

func (silent) Driver() driver.Driver { return nil }

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Close waits until the work of a subscription in the database has ended, such as a
// claim or its registration. So each statement of this work has a timeout.
func TestUpkeepHasTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(silent{})
		defer db.Close()
		r, err := New(db, Config{Logger: watermill.NopLogger{}})
		kit.OK(t, err)
		f := newFetcher(&subscriber{retries: r}, "t", nil, 0)
		f.registered, f.queue = true, newFairQueue(nil)
		for name, c := range map[string]struct {
			do   func(context.Context)
			want time.Duration
		}{
			"look for messages":  {func(ctx context.Context) { f.fetch(ctx) }, r.config.Lease},
			"repair key orders":  {f.tidy, r.config.Lease},
			"register":           {func(ctx context.Context) { f.register(ctx) }, r.config.Lease},
			"record its own end": {f.leave, leavePatience},
		} {
			began := time.Now()
			c.do(t.Context())
			if took := time.Since(began); took != c.want {
				t.Errorf("%s: it took %v, want %v", name, took, c.want)
			}
		}
	})
}

package retry

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

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
	r, err := New(testkit.SQLite(t).DB, Config{Schema: schema.Config{Dialect: schema.SQLite}, Logger: watermill.NopLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	sub := r.Subscriber("payments", noMessages{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	messages, err := sub.Subscribe(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	for range messages {
		t.Error("got a message")
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if r.watchers.count != 0 {
		t.Errorf("the metrics are read for %d subscriptions", r.watchers.count)
	}

	f := newFetcher(&subscriber{retries: r}, "t", ctx.Done(), 0)
	f.gate = &isolationGate{}
	f.requestIsolation(true)
	if f.gate.enter(1) {
		t.Fatal("the request for isolation has no effect")
	}
	f.run(ctx, nil)
	if !f.gate.enter(1) {
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
		if err != nil {
			t.Fatal(err)
		}
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

package dedup

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// silent is a database that does not respond.
type silent struct{}

func (silent) Driver() driver.Driver { return nil }

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// After a handler's own timeout, the ping of the database must end after a limited
// time.
func TestPingAfterATimeoutIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(silent{})
		defer db.Close()
		began := time.Now()
		if (&Inbox{db: db}).gaveUpWaiting(t.Context(), context.DeadlineExceeded) {
			t.Error("the database counts as reachable")
		}
		if took := time.Since(began); took != pingTimeout {
			t.Errorf("it took %v, want %v", took, pingTimeout)
		}
	})
}

// The context of a batch ends when the context of any of its messages ends. After the
// batch, no goroutine waits for the contexts of the messages, which may end much later.
func TestBatchEndsWithAnyMessageAndLeavesNothing(t *testing.T) {
	t.Parallel()
	second, cancel := context.WithCancel(t.Context())
	defer cancel()
	contexts := []*testkit.WatchedContext{testkit.Watch(t.Context()), testkit.Watch(second)}
	r := &batchRun{}
	for _, ctx := range contexts {
		r.items = append(r.items, &batchItem{ctx: ctx})
	}
	watches := func() [2]int64 { return [2]int64{contexts[0].Watches(), contexts[1].Watches()} }
	ctx, end := r.context()
	if got := watches(); got != [2]int64{1, 1} || ctx.Err() != nil {
		t.Errorf("%d functions wait for the ends of the messages' contexts, the batch has ended with %v", got, ctx.Err())
	}
	end()
	if got := watches(); got != [2]int64{} || ctx.Err() == nil {
		t.Errorf("%d functions wait after the batch, which has ended with %v", got, ctx.Err())
	}
	ctx, end = r.context()
	defer end()
	cancel()
	<-ctx.Done()
}

// The metrics must contain the size of the inbox while Run is running, but not after it
// has ended.
func TestRunObservesTheInbox(t *testing.T) {
	t.Parallel()
	o := new(testkit.Observers)
	config := Config{Schema: schema.Config{Dialect: schema.SQLite}, MeterProvider: o, Logger: watermill.NopLogger{}}
	inbox, err := New(testkit.SQLite(t).DB, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- inbox.Run(ctx) }()
	testkit.Eventually(t, time.Minute, "the inbox is observed", func() bool { return o.Registered() == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := o.Registered(); n != 0 {
		t.Errorf("%d are observed after Run, want none", n)
	}
}

package dedup

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// A failed check of a transaction is the handler's fault only if the transaction has
// ended. After a lost connection the outcome is undecided, although the handler has
// run.
func TestFailedCheckTellsTheHandlersFaultFromALostConnection(t *testing.T) {
	t.Parallel()
	refused := &pq.Error{Code: "23514", Message: "refused"}
	full := &pq.Error{Code: "53100", Message: "no space left on device"}
	ended := &pq.Error{Code: "42704", Message: `unrecognized configuration parameter "once.transaction_was_ended_by_the_handler"`}
	for _, c := range []struct {
		dialect schema.Dialect
		err     error
		want    chain.Kind
	}{
		{"postgres", io.ErrUnexpectedEOF, chain.Undecided},
		{"postgres", full, chain.Undecided},
		{"postgres", refused, chain.Failed},
		{"postgres", ended, chain.Permanent},
		{"postgres", sql.ErrTxDone, chain.Permanent},
		{"sqlite", errors.New("no such savepoint: once_message"), chain.Permanent},
		{"sqlite", sql.ErrTxDone, chain.Permanent},
		{"sqlite", errors.New("refused"), chain.Failed},
	} {
		d, err := dialect.New(schema.Config{Dialect: c.dialect})
		kit.OK(t, err)
		got := (&Inbox{dialect: d}).checkError(c.err)
		if v := chain.Of(got); v.Kind != c.want || v.NotCalled || !errors.Is(got, c.err) {
			t.Errorf("%s: %v becomes %v, disposition %d", c.dialect, c.err, got, v.Kind)
		}
	}
}

// Each batch is checked, because one check serves all its messages. With SQLite, each
// message is checked, because the check needs no round trip.
func TestEachBatchIsChecked(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		inbox, err := New(db.DB, Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, Logger: kit.Logger(t)})
		kit.OK(t, err)
		inbox.sample.Skip(1000) // the sample contains number 1024 next
		for _, batch := range []bool{true, false} {
			_, check, release, err := inbox.begin(t.Context(), batch)
			kit.OK(t, err)
			release()
			sent := check != nil && check.Sent // by the driver, together with COMMIT
			if got, want := check != nil, batch || sent || db.Dialect == "sqlite"; got != want {
				t.Errorf("batch %t: checked is %t, want %t", batch, got, want)
			}
		}
	})
}

// Only one process at a time works on days. Another process does not wait for it.
func TestOneProcessAtATimeWorksOnDays(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{Inbox: schema.ByDay}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	inbox, err := New(db.DB, Config{Schema: config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	var locked bool
	if err := tx.QueryRowContext(t.Context(), inbox.dialect.TryDays("inbox")).Scan(&locked); err != nil || !locked {
		t.Fatalf("locked is %t, %v", locked, err)
	}
	sweep := func(partitions int) {
		t.Helper()
		kit.OK(t, kit.Err(inbox.Sweep(t.Context())))
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_inherits WHERE inhparent = 'once_inbox'::regclass`).Scan(&n)
		if err != nil || n != partitions {
			t.Errorf("%d partitions, %v; want %d", n, err, partitions)
		}
	}
	sweep(1) // the default partition
	kit.OK(t, tx.Rollback())
	sweep(1 + dialect.DaysAhead)
}

// These defaults and limits are documented.
func TestConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	c := Config{}.withDefaults()
	for name, field := range map[string]struct {
		got, want time.Duration
	}{
		"Batch.Size":        {time.Duration(c.Batch.Size), 100},
		"Batch.Wait":        {c.Batch.Wait, 10 * time.Millisecond},
		"Batch.Concurrency": {time.Duration(c.Batch.Concurrency), 1},
		"Retention":         {c.Retention, 30 * 24 * time.Hour},
		"MaxDuplicateAge":   {c.MaxDuplicateAge, 7 * 24 * time.Hour},
		"SweepInterval":     {c.SweepInterval, 10 * time.Minute},
		"LockTimeout":       {c.LockTimeout, 10 * time.Second},
		"IdleTimeout":       {c.IdleTimeout, 5 * time.Minute},
	} {
		if field.got != field.want {
			t.Errorf("%s is %v, want %v", name, field.got, field.want)
		}
	}
	if c.Logger == nil {
		t.Error("no logger")
	}

	for name, field := range map[string]struct {
		set         func(c *Config, value int)
		least, most int // most is 0 if there is no limit
	}{
		"Batch.Size":        {func(c *Config, n int) { c.Batch.Size = n }, 1, 1000},
		"Batch.Wait":        {func(c *Config, n int) { c.Batch.Wait = time.Duration(n) }, 0, 0},
		"Batch.Concurrency": {func(c *Config, n int) { c.Batch.Concurrency = n }, 0, 0},
		"MaxDuplicateAge":   {func(c *Config, n int) { c.MaxDuplicateAge = time.Duration(n) }, 0, int(30 * 24 * time.Hour)},
		"Retention":         {func(c *Config, n int) { c.Retention = time.Duration(n) }, int(7 * 24 * time.Hour), 0},
		"SweepInterval":     {func(c *Config, n int) { c.SweepInterval = time.Duration(n) }, int(time.Millisecond), 0},
		"LockTimeout":       {func(c *Config, n int) { c.LockTimeout = time.Duration(n) }, int(time.Millisecond), 0},
		"IdleTimeout":       {func(c *Config, n int) { c.IdleTimeout = time.Duration(n) }, int(time.Millisecond), 0},
	} {
		try := func(value int, valid bool) {
			c := Config{}.withDefaults()
			field.set(&c, value)
			if err := c.validate(); valid != (err == nil) || err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %d: %v", name, value, err)
			}
		}
		try(field.least, true)
		try(field.least-1, false)
		if field.most > 0 {
			try(field.most, true)
			try(field.most+1, false)
		}
	}
}

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
	contexts := []*kit.WatchedContext{kit.Watch(t.Context()), kit.Watch(second)}
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
	o := new(kit.Observers)
	config := Config{Schema: schema.Config{Dialect: schema.SQLite}, MeterProvider: o, Logger: watermill.NopLogger{}}
	inbox, err := New(kit.SQLite(t).DB, config)
	kit.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := kit.Go(func() error { return inbox.Run(ctx) })
	kit.Eventually(t, time.Minute, "the inbox is observed", func() bool { return o.Registered() == 1 })
	cancel()
	kit.Check(t, <-ended)
	if n := o.Registered(); n != 0 {
		t.Errorf("%d are observed after Run, want none", n)
	}
}

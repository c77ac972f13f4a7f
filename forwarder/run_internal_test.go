package forwarder

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// canceller is a logger that ends a context when the first error is logged.
type canceller struct {
	watermill.NopLogger

	cancel context.CancelFunc
	errors int
}

func (c *canceller) Error(string, error, watermill.LogFields) {
	c.errors++
	c.cancel()
}

// If the context ends before the forwarder runs, Run returns nil, and takes no slots.
func TestRunThatIsEndedEarlyTakesNoSlots(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	for name, ready := range map[string]bool{"the database answers": true, "the database cannot be reached": false} {
		ctx, cancel := context.WithCancel(t.Context())
		log := &canceller{cancel: cancel}
		pool, failed := kit.FailingStep(db, 1)
		if ready {
			cancel()
		}
		f, err := New(pool, new(counter), Config{Schema: config, Logger: log})
		kit.OK(t, err)
		f.Hint()
		f.Hint() // it does not block
		if err := f.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if ready != (log.errors == 0) || ready != (failed() == "") {
			t.Errorf("%s: %d errors are logged, failed step %q", name, log.errors, failed())
		}
		select {
		case <-f.Running():
			t.Errorf("%s: it says that it runs", name)
		default:
		}
		instances := kit.One[int](t, db, `SELECT COUNT(*) FROM once_forwarders`)
		if instances != 0 {
			t.Errorf("%s: %d instances are enrolled", name, instances)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = pool.Close()
	}
}

// A row with content that the outbox would not write is unacceptable, and the error
// names the column.
func TestDamagedRowIsUnacceptable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		m    dispatch.Message
		want string // "" if the row is not damaged
	}{
		{dispatch.Message{ID: "é", Topic: "t", Key: "k", Metadata: []byte(`{"a":"b"}`)}, ""},
		{dispatch.Message{ID: "a\xff", Metadata: []byte(`{}`)}, "forwarder: message_id is not valid text"},
		{dispatch.Message{Topic: "\x00", Metadata: []byte(`{}`)}, "forwarder: topic is not valid text"},
		{dispatch.Message{Key: "a\x00", Metadata: []byte(`{}`)}, "forwarder: ordering_key is not valid text"},
		{dispatch.Message{Metadata: []byte(`[]`)}, "forwarder: metadata is not an object of strings: "},
	} {
		metadata, err := check(&c.m)
		if c.want == "" {
			if err != nil || metadata["a"] != "b" {
				t.Errorf("got %v, %v", metadata, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || Classify(err) != Unacceptable {
			t.Errorf("got %v, want an unacceptable row: %s", err, c.want)
		}
		if cause := errors.Unwrap(err); (cause != nil) != strings.HasSuffix(c.want, ": ") {
			t.Errorf("%v has the cause %v", err, cause)
		}
	}
}

// If several results are added before the loop takes them, the loop gets one signal. It
// takes each result once.
func TestResultsAreTakenOnce(t *testing.T) {
	t.Parallel()
	rs := results{some: make(chan struct{}, 1)}
	for range 3 {
		rs.add(result{err: errRefused})
		rs.add(result{})
		<-rs.some
		select {
		case <-rs.some:
			t.Fatal("two signals for one list")
		default:
		}
		if got := rs.take(make([]result, 1)); len(got) != 2 || !errors.Is(got[0].err, errRefused) || got[1].err != nil {
			t.Fatalf("got %+v", got)
		}
		if got := rs.take(nil); len(got) != 0 {
			t.Fatalf("got %+v again", got)
		}
	}
}

// The pauses between attempts to reach the database grow. If the context of Run ends
// during a pause, Run returns before the pause ends.
func TestPauseOfTheStartEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(unreachable{})
		defer db.Close()
		f, err := New(db, new(counter), Config{Logger: watermill.NopLogger{}})
		kit.OK(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		kit.Check(t, f.Run(ctx))
		if took := time.Since(began); took != time.Hour {
			t.Errorf("it ended after %v, want an hour", took)
		}
	})
}

// unreachable cannot connect to its database.
type unreachable struct{}

func (unreachable) Connect(context.Context) (driver.Conn, error) { return nil, kit.ErrInjected }

func (unreachable) Driver() driver.Driver { return nil }

// If confirmed messages are still in the outbox when the loop has ended, the loop reports
// an error.
func TestStoppedLoopReportsWhatIsLeft(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	if err := l.report(); err != nil || logs.Count("INFO Forwarder closed", "confirmed=0", "handed_back=0") != 1 {
		t.Fatalf("got %v, log %q", err, logs.Lines())
	}
	s := l.scheduler
	now := time.Now()
	s.SetSlots([]int64{0})
	s.RowsRead(now, s.Step(now).Read, []*dispatch.Message{{Position: 1, Topic: "t"}}, dispatch.Reach{
		Highest: 1,
		Covered: dispatch.Everything,
	})
	s.Published(now, s.Step(now).Publish[0], dispatch.Confirmed, nil)
	l.settleErr = errRefused
	err := l.report()
	if err == nil || err.Error() != "forwarder: closed with 1 confirmed messages that could not be deleted and will be sent again" {
		t.Fatalf("got %v", err)
	}
	if logs.Count("ERROR Forwarder closed", "confirmed=1", "not_deleted=1", errRefused.Error()) != 1 {
		t.Fatalf("got %q", logs.Lines())
	}
}

// When the time limit for stopping is reached, the database work that is still under way
// is cancelled, and no goroutine is left.
func TestStoppedLoopCancelsDatabaseWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := idle()
		began := time.Now()
		worked := make(chan time.Duration, 1)
		l.background(func(ctx context.Context) func() {
			<-ctx.Done()
			worked <- time.Since(began)
			return func() {}
		})
		ctx, stop := context.WithCancel(t.Context())
		stop()
		l.stop(began)
		kit.Check(t, l.run(ctx))
		if took := <-worked; took != l.config.CloseTimeout {
			t.Errorf("the work ended after %v, want CloseTimeout", took)
		}
	})
}

// Database work that takes longer than the lease is cancelled, because its result would be
// too late.
func TestDatabaseWorkEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := idle()
		began := time.Now()
		l.background(func(ctx context.Context) func() {
			<-ctx.Done()
			return func() {}
		})
		<-l.done
		if took := time.Since(began); took != l.config.Lease {
			t.Errorf("it took %v, want %v", took, l.config.Lease)
		}
	})
}

// unresponsive is a publisher whose broker does not respond.
type unresponsive struct{ counter }

func (*unresponsive) Ping(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A broker that does not respond delays the start of a forwarder for a limited time. The
// forwarder waits for the broker later.
func TestUnresponsiveBrokerDoesNotPreventTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := idle()
		l.sender.publisher = &unresponsive{}
		began := time.Now()
		kit.Check(t, l.ping(t.Context()))
		if took := time.Since(began); took != usercode.Patience {
			t.Errorf("it took %v, want %v", took, usercode.Patience)
		}
	})
}

// When Run returns, its goroutines have ended and its metrics are no longer observed,
// even if it could not start.
func TestRunEndsItsGoroutines(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	o := new(kit.Observers)
	config := schema.Config{Dialect: schema.SQLite}
	f, err := New(db.DB, new(counter), Config{Schema: config, Logger: watermill.NopLogger{}, MeterProvider: o})
	kit.OK(t, err)
	ctx := kit.Watch(t.Context())
	if err := f.Run(ctx); !errors.Is(err, schema.ErrMissing) || ctx.Watches() != 0 {
		t.Fatalf("got %v, and %d goroutines wait for the end of the context; want ErrMissing, and none", err, ctx.Watches())
	}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	f, err = New(db.DB, new(counter), Config{Schema: config, Logger: watermill.NopLogger{}, MeterProvider: o})
	kit.OK(t, err)
	ended := kit.Go(func() error { return f.Run(ctx) })
	<-f.Running()
	if n := o.Registered(); n != 1 {
		t.Errorf("%d are observed, want the running forwarder", n)
	}
	kit.OK(t, errors.Join(f.Close(), <-ended))
	select {
	case _, open := <-f.sender.orders:
		if open {
			t.Error("an order is left")
		}
	default:
		t.Error("the goroutines that publish wait for orders")
	}
	if f.sender.gate.Load() {
		t.Error("the gate is open")
	}
	if n := ctx.Watches(); n != 0 {
		t.Errorf("%d goroutines wait for the end of the context", n)
	}
	if n := o.Registered(); n != 0 {
		t.Errorf("%d are observed after Run, want none", n)
	}
}

// Old days are dropped again and again. If this user cannot drop them, the log says so
// once. A failure is tried again after a pause.
func TestOldDaysOfTheSentLogAreDroppedFromTimeToTime(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	l.config.KeepSent = 24 * time.Hour
	began := time.Now().Add(-time.Second)
	for _, days := range []outboxrow.SentDays{{ByDay: true, Owner: true}, {ByDay: true}, {ByDay: true}} {
		l.log.busy, l.log.next = true, time.Time{}
		l.sweptDays(days, began, nil)
		if l.log.busy || !l.log.next.Equal(began.Add(time.Minute)) {
			t.Errorf("%+v: busy is %t, and the next sweep follows after %v, want a minute", days, l.log.busy, l.log.next.Sub(began))
		}
	}
	if logs.Count("INFO The sent log is partitioned by day", "table="+l.config.Schema.Table("outbox_sent"), "once sweep") != 1 ||
		len(logs.Lines()) != 1 {
		t.Errorf("got %q", logs.Lines())
	}
	l.log = sentLog{busy: true}
	l.sweptDays(outboxrow.SentDays{}, began, errors.New("no database"))
	if l.log.busy || l.log.fault.attempts != 1 || l.log.told || logs.Count("partitioned") != 1 {
		t.Errorf("after a failure: %+v, %q", l.log, logs.Lines())
	}
}

// If a batch was full, more old rows are probably left, so the next batch follows soon.
func TestFullBatchOfTheSentLogIsFollowedSoon(t *testing.T) {
	t.Parallel()
	l, _ := idle()
	l.config.KeepSent = 24 * time.Hour
	owner, exec := ownerOfAll(t, kit.SQLite(t))
	l.store = owner
	l.scheduler.SetSlots([]int64{0})
	for range 2 {
		l.log.portion.Did(false)
	}
	exec(owner.dialect.SQL(`INSERT INTO {outbox_sent} (position, message_id, topic, payload, metadata, created_at, sent_at)
		WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 250)
		SELECT n, 'm', 't', '', '{}', {now}, {after -90000000} FROM s`))
	for _, soon := range []bool{true, false} {
		now := time.Now()
		l.log.next = time.Time{}
		if l.forgetSent(now); !l.log.busy {
			t.Fatal("no batch is deleted")
		}
		(<-l.done)()
		if got := l.log.next.Before(now.Add(time.Minute)); got != soon {
			t.Errorf("the next batch follows after %v, want soon: %t", l.log.next.Sub(now), soon)
		}
	}
}

type counter int

func (c *counter) Publish(string, ...*message.Message) error { *c++; return nil }
func (c *counter) Close() error                              { return nil }

func TestNothingLeavesWithoutAGateAndALease(t *testing.T) {
	var sent counter
	s := newSender(&sent, 1)
	try := func() error {
		m := &dispatch.Message{Metadata: []byte(`{}`)}
		s.run(order{Publish: dispatch.Publish{Message: m, Ticket: 1}}, s.publish)
		results := s.results.take(nil)
		if len(results) != 1 {
			t.Fatalf("%d results, want 1: %+v", len(results), results)
		}
		return results[0].err
	}
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.gate.Store(true)
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.leaseUntil(time.Now().Add(time.Minute))
	kit.OK(t, try())
	s.leaseUntil(time.Now())
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.leaseUntil(time.Now().Add(time.Minute))
	s.gate.Store(false)
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	if sent != 1 {
		t.Fatalf("sent is %d, want 1", sent)
	}
}

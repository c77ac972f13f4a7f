package forwarder

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// canceller is a logger that ends a context with the first error.
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
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	for name, ready := range map[string]bool{"the database answers": true, "the database cannot be reached": false} {
		ctx, cancel := context.WithCancel(t.Context())
		log := &canceller{cancel: cancel}
		pool, failed := testkit.FailingStep(db, 1)
		if ready {
			cancel()
		}
		f, err := New(pool, new(counter), Config{Schema: config, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
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
		var instances int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_forwarders`).Scan(&instances); err != nil {
			t.Fatal(err)
		}
		if instances != 0 {
			t.Errorf("%s: %d instances are enrolled", name, instances)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = pool.Close()
	}
}

// A row with content that the outbox would not write is unacceptable, and the error says
// which column it is.
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

// Results are signalled once for a list, and each is taken once.
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

// Confirmed messages that are still in the outbox at the end are an error.
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

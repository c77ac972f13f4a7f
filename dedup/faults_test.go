package dedup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// If the encoding of the database cannot store an id, only the message with this id
// fails, and it fails permanently. A trigger simulates such an encoding.
func TestIDThatTheDatabaseCannotStoreFailsForGood(t *testing.T) {
	t.Parallel()
	b := inBatches(t, testkit.Postgres(t), 3, nil)
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'no such character' USING ERRCODE = '22P05'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE INSERT ON once_inbox FOR EACH ROW
		WHEN (NEW.message_id IN ('m01', 'alone')) EXECUTE FUNCTION refuse()`)
	refused := func(err error) {
		t.Helper()
		v := disposition.Of(err)
		if !errors.Is(err, dedup.ErrInvalidID) || v.Kind != disposition.Permanent || v.Reason != disposition.ReasonInvalidID {
			t.Errorf("got %v, disposition %+v", err, v)
		}
	}
	_, err := b.inbox.Middleware(apply)(message.NewMessage("alone", nil))
	refused(err)
	errs := deliver(b.inbox.BatchMiddleware(apply), numbered(3)...)
	refused(errs[1])
	noErrors(t, []error{errs[0], errs[2]})
	b.expect(2, 2, 0)
}

// If the lease of a parked message has ended, another process may have given up on it.
// So this message must not be handled. The other messages of its batch must be handled.
func TestMessageWhoseLeaseHasEndedIsNotHandled(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := inBatches(t, db, 3, nil)
		lost := func(err error) {
			t.Helper()
			if !errors.Is(err, parked.ErrClaimLost) || !disposition.Of(err).NotCalled {
				t.Errorf("got %v", err)
			}
		}
		late := func(id string) *message.Message {
			msg := message.NewMessage(id, nil)
			msg.SetContext(parked.WithDelivery(t.Context(), &parked.Delivery{Consumer: consumer, Claim: &parked.Claim{ID: 7}}))
			return msg
		}
		_, err := b.inbox.Middleware(apply)(late("alone"))
		lost(err)
		b.expect(0, 0, 0)
		errs := deliver(b.inbox.BatchMiddleware(apply), message.NewMessage("m1", nil), late("late"), message.NewMessage("m2", nil))
		lost(errs[1])
		noErrors(t, []error{errs[0], errs[2]})
		b.expect(2, 2, 0)
	})
}

// retry and poison search the inbox under the name given to retry's Subscriber, so
// dedup must refuse another name.
func TestOtherConsumerNameThanThatOfRetryIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), nil)
	from := func(d *parked.Delivery) error {
		msg := message.NewMessage("m1", nil)
		msg.SetContext(parked.WithDelivery(t.Context(), d))
		_, err := b.inbox.Middleware(apply)(msg)
		return err
	}
	err := from(&parked.Delivery{Consumer: "billing", Subscribed: true})
	if !errors.Is(err, dedup.ErrOtherConsumer) || !disposition.Of(err).NotCalled || !containsText(err, `"payments" and "billing"`) {
		t.Errorf("got %v", err)
	}
	b.expect(0, 0, 0)
	for _, d := range []*parked.Delivery{{Consumer: consumer, Subscribed: true}, {Consumer: "handler-1"}} {
		if err := from(d); err != nil {
			t.Errorf("%s: %v", d.Consumer, err)
		}
	}
	b.expect(1, 1, 0)
}

// A failure of the database must not count as an attempt, however the handler wraps the
// error. If the handler itself chooses a disposition, it must be kept.
func TestErrorOfTheDatabaseUnderAHandlerIsNotItsFailure(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		full, locked, refused := &pq.Error{Code: "53100"}, &pq.Error{Code: "40P01"}, &pq.Error{Code: "23505"}
		kinds := map[error]disposition.Kind{
			errors.Join(errHandler, full):  disposition.Undecided,
			refused:                        disposition.Failed,
			locked:                         disposition.Failed,
			disposition.Forever("x", full): disposition.Permanent,
		}
		if db.Dialect == "sqlite" {
			kinds[locked] = disposition.Undecided // SQLite has one writer
		}
		for err, want := range kinds {
			_, got := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				return nil, errors.Join(write(msg.Context(), msg), err)
			})(message.NewMessage("m1", nil))
			if v := disposition.Of(got); v.Kind != want || v.NotCalled || !errors.Is(got, err) {
				t.Errorf("%v becomes %v, disposition %+v, want %d", err, got, v, want)
			}
		}
		b.expect(0, 0, 0)
	})
}

// When its context ends, Run returns immediately, even between two sweeps.
func TestRunEndsBetweenTwoSweeps(t *testing.T) {
	logs := &testkit.Logs{}
	b := newBench(t, testkit.SQLite(t), func(c *dedup.Config) { c.SweepInterval, c.Logger = time.Hour, logs })
	b.handle(apply, "m1")
	b.age(aYear)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.inbox.Run(ctx) }()
	testkit.Eventually(t, time.Minute, "it has swept", func() bool { return b.count("once_inbox") == 0 })
	testkit.Eventually(t, time.Minute, "it waits", func() bool { return testkit.Goroutines("dedup.(*Inbox).Run", "[select") > 0 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := b.inbox.Run(ctx); err != nil { // its sweep fails, because the context has ended
		t.Error(err)
	}
	if logs.Has("ERROR") {
		t.Errorf("logged %q", logs.Lines())
	}
}

// The causation id of a produced message is the id of the handled message, unless the
// handler has set another causation id.
func TestProducedMessageInheritsItsCause(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), nil)
	caused := message.NewMessage("m1", nil)
	caused.Metadata.Set("once_causation_id", "m0")
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		copied := toTopic("copied") // like a handler that copies its metadata
		copied.Metadata.Set("once_causation_id", msg.Metadata.Get("once_causation_id"))
		own := toTopic("own")
		own.Metadata.Set("once_causation_id", "another")
		return []*message.Message{copied, own}, nil
	})(caused)
	if err != nil {
		t.Fatal(err)
	}
	for id, cause := range map[string]string{"copied": "m1", "own": "another"} {
		if n := b.count(`once_outbox WHERE message_id = '` + id + `' AND metadata LIKE '%"once_causation_id":"` + cause + `"%'`); n != 1 {
			t.Errorf("%s was not caused by %s", id, cause)
		}
	}
	bare := &message.Message{UUID: "bare"}
	if dedup.CausedBy(caused, bare); bare.Metadata.Get("once_causation_id") != "m1" || len(bare.Metadata) != 1 {
		t.Errorf("the metadata is %v", bare.Metadata)
	}
}

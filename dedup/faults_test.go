package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// If the encoding of the database cannot store an id, only the message with this id
// fails, and it fails permanently. A trigger simulates such an encoding.
func TestIDThatTheDatabaseCannotStoreFailsForGood(t *testing.T) {
	t.Parallel()
	b := inBatches(t, kit.Postgres(t), 3, nil)
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'no such character' USING ERRCODE = '22P05'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON once_inbox FOR EACH ROW
		WHEN (NEW.message_id IN ('m01', 'alone')) EXECUTE FUNCTION refuse()`)
	refused := func(err error) {
		t.Helper()
		v := chain.Of(err)
		if !errors.Is(err, dedup.ErrInvalidID) || v.Kind != chain.Permanent || v.Reason != chain.ReasonInvalidID {
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inBatches(t, db, 3, nil)
		lost := func(err error) {
			t.Helper()
			if !errors.Is(err, parkedrows.ErrClaimLost) || !chain.Of(err).NotCalled {
				t.Errorf("got %v", err)
			}
		}
		late := func(id string) *message.Message {
			msg := message.NewMessage(id, nil)
			msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: consumer, Claim: &parkedrows.Claim{ID: 7}}))
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
	b := newBench(t, kit.SQLite(t), nil)
	from := func(d *parkedrows.Delivery) error {
		msg := message.NewMessage("m1", nil)
		msg.SetContext(parkedrows.WithDelivery(t.Context(), d))
		_, err := b.inbox.Middleware(apply)(msg)
		return err
	}
	err := from(&parkedrows.Delivery{Consumer: "billing", Subscribed: true})
	if !errors.Is(err, dedup.ErrOtherConsumer) || !chain.Of(err).NotCalled || !containsText(err, `"payments" and "billing"`) {
		t.Errorf("got %v", err)
	}
	b.expect(0, 0, 0)
	for _, d := range []*parkedrows.Delivery{{Consumer: consumer, Subscribed: true}, {Consumer: "handler-1"}} {
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
	eachDatabase(t, func(t *testing.T, b *bench) {
		full, locked, refused := &pq.Error{Code: "53100"}, &pq.Error{Code: "40P01"}, &pq.Error{Code: "23505"}
		kinds := map[error]chain.Kind{
			errors.Join(errHandler, full): chain.Undecided,
			refused:                       chain.Failed,
			locked:                        chain.Undecided,
			chain.Forever("x", full):      chain.Permanent,
		}
		for err, want := range kinds {
			_, got := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				return nil, errors.Join(write(msg.Context(), msg), err)
			})(message.NewMessage("m1", nil))
			if v := chain.Of(got); v.Kind != want || v.NotCalled || !errors.Is(got, err) {
				t.Errorf("%v becomes %v, disposition %+v, want %d", err, got, v, want)
			}
		}
		b.expect(0, 0, 0)
	})
}

// When its context ends, Run returns immediately, even between two sweeps.
func TestRunEndsBetweenTwoSweeps(t *testing.T) {
	logs := &kit.Logs{}
	b := newBench(t, kit.SQLite(t), func(c *dedup.Config) { c.SweepInterval, c.Logger = time.Hour, logs })
	b.handle(apply, "m1")
	b.age(aYear)
	ctx, stop := context.WithCancel(t.Context())
	ended := kit.Go(func() error { return b.inbox.Run(ctx) })
	kit.Eventually(t, time.Minute, "it has swept", func() bool { return b.Count("once_inbox") == 0 })
	kit.Eventually(t, time.Minute, "it waits", func() bool { return kit.Goroutines("dedup.(*Inbox).Run", "[select") > 0 })
	stop()
	kit.Check(t, <-ended)
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
	b := newBench(t, kit.SQLite(t), nil)
	caused := message.NewMessage("m1", nil)
	caused.Metadata.Set("once_causation_id", "m0")
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		copied := toTopic("copied") // like a handler that copies its metadata
		copied.Metadata.Set("once_causation_id", msg.Metadata.Get("once_causation_id"))
		own := toTopic("own")
		own.Metadata.Set("once_causation_id", "another")
		return []*message.Message{copied, own}, nil
	})(caused)
	kit.OK(t, err)
	for id, cause := range map[string]string{"copied": "m1", "own": "another"} {
		if n := b.Count(`once_outbox WHERE message_id = '` + id + `' AND metadata LIKE '%"once_causation_id":"` + cause + `"%'`); n != 1 {
			t.Errorf("%s was not caused by %s", id, cause)
		}
	}
	bare := &message.Message{UUID: "bare"}
	if dedup.CausedBy(caused, bare); bare.Metadata.Get("once_causation_id") != "m1" || len(bare.Metadata) != 1 {
		t.Errorf("the metadata is %v", bare.Metadata)
	}
}

// over returns an inbox like the inbox of the bench, but with the connection pool db.
func (b *bench) over(db *sql.DB, change func(*dedup.Config)) (*dedup.Inbox, error) {
	config := dedup.Config{Schema: b.Config, Consumer: consumer, Outbox: b.box.Publisher, Logger: kit.Logger(b.T)}
	change(&config)
	return dedup.New(db, config)
}

// If a step of the inbox or of the outbox fails in the database, the message must fail,
// nothing may change, and the handler must not be called before the message has its row.
func TestMessageWithAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, byPayload)
		handled := message.NewMessage("handled", []byte("k1"))
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(handled)))
		for _, c := range []struct {
			name     string
			id, body string
			change   func(*dedup.Config)
		}{
			{"new", "m1", "k2", byPayload},
			{"without a key", "m2", "k3", func(*dedup.Config) {}},
			{"duplicate", "handled", "k1", byPayload},
			{"duplicate by its key", "m3", "k1", byPayload},
			{"idempotent", "m4", "k4", func(c *dedup.Config) { c.Idempotent = []string{consumer} }},
		} {
			t.Run(c.name, func(t *testing.T) {
				kit.EachStepFails(t, db, true, func(db *sql.DB) error {
					inbox, err := b.over(db, c.change)
					if err != nil {
						return err
					}
					called := false
					_, err = inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
						called = true
						return produce("event of "+c.id, nil)(msg)
					})(message.NewMessage(c.id, []byte(c.body)))
					if err != nil && chain.Of(err).NotCalled == called {
						t.Errorf("the handler was called: %t; and the error is %v", called, err)
					}
					return err
				})
			})
		}
	})
}

// If a step fails while messages share a transaction, each message must have its effect
// once if its handler returned nil, and none otherwise.
func TestBatchWithAFailedStepReportsWhatTookEffect(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, byPayload)
		for n := int64(1); ; n++ {
			var msgs []*message.Message
			for i := range 3 {
				msgs = append(msgs, message.NewMessage(fmt.Sprintf("%d-%d", n, i), fmt.Appendf(nil, "key %d-%d", n, i)))
			}
			// The second message has the id of a handled message, and the third the key.
			for _, handled := range []*message.Message{
				message.NewMessage(msgs[1].UUID, msgs[1].Payload), message.NewMessage(msgs[2].UUID+" before", msgs[2].Payload),
			} {
				kit.OK(t, kit.Err(b.inbox.Middleware(apply)(handled)))
			}
			pool, failed := kit.FailingStep(db, n)
			inbox, err := b.over(pool, func(c *dedup.Config) {
				byPayload(c)
				c.Batch = dedup.Batch{Size: len(msgs), Wait: time.Second}
			})
			kit.OK(t, err)
			errs := deliver(inbox.BatchMiddleware(apply), msgs...)
			what := failed()
			for i, err := range errs {
				want := 0
				if i == 1 || i == 0 && err == nil {
					want = 1
				}
				if got := b.Count(`effects WHERE message_id = '` + msgs[i].UUID + `'`); got != want {
					t.Errorf("step %d (%s) failed: message %d has %d effects, and its error is %v", n, what, i, got, err)
				}
				if err != nil && !errors.Is(err, kit.ErrInjected) {
					t.Errorf("step %d (%s) failed: the error of message %d is %v", n, what, i, err)
				}
			}
			_ = pool.Close()
			if what == "" || t.Failed() {
				return
			}
		}
	})
}

// If a step of a sweep fails, the sweep must return the error, and must not have removed
// rows that must remain.
func TestSweepWithAFailedStepKeepsWhatIsNeeded(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		if tables.Inbox == schema.ByDay {
			kit.WithinADay(t)
		}
		b := newBenchIn(t, db, tables, byPayload)
		b.parkAs("quarantined", "B", "order-17")
		b.parkAs("waiting", "P", "order-19")
		b.ageParked()
		for id, body := range map[string]string{"A": "order-17", "C": "order-18", "P": "order-20"} {
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage(id, []byte(body)))))
		}
		b.age(aYear)
		kit.EachStepFails(t, db, false, func(db *sql.DB) error {
			inbox, err := b.over(db, byPayload)
			if err != nil {
				return err
			}
			_, err = inbox.Sweep(t.Context())
			for _, needed := range []string{"key:order-17", "P"} {
				if b.Count(`once_inbox WHERE message_id = '`+needed+`'`) != 1 {
					t.Errorf("%s was removed: %v", needed, err)
				}
			}
			return err
		})
	})
}

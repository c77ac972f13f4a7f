package dedup_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// over returns an inbox like the inbox of the bench, but with the connection pool db.
func (b *bench) over(db *sql.DB, change func(*dedup.Config)) (*dedup.Inbox, error) {
	config := dedup.Config{Schema: b.config, Consumer: consumer, Outbox: b.box.Publisher, Logger: testkit.Logger(b.T)}
	change(&config)
	return dedup.New(db, config)
}

// If a step of the inbox or of the outbox fails in the database, the message must fail,
// nothing may change, and the handler must not be called before the message has its row.
func TestMessageWithAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, byPayload)
		handled := message.NewMessage("handled", []byte("k1"))
		if _, err := b.inbox.Middleware(apply)(handled); err != nil {
			t.Fatal(err)
		}
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
				testkit.EachStepFails(t, db, true, func(db *sql.DB) error {
					inbox, err := b.over(db, c.change)
					if err != nil {
						return err
					}
					called := false
					_, err = inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
						called = true
						return produce("event of "+c.id, nil)(msg)
					})(message.NewMessage(c.id, []byte(c.body)))
					if err != nil && disposition.Of(err).NotCalled == called {
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
				if _, err := b.inbox.Middleware(apply)(handled); err != nil {
					t.Fatal(err)
				}
			}
			pool, failed := testkit.FailingStep(db, n)
			inbox, err := b.over(pool, func(c *dedup.Config) {
				byPayload(c)
				c.Batch = dedup.Batch{Size: len(msgs), Wait: time.Second}
			})
			if err != nil {
				t.Fatal(err)
			}
			errs := deliver(inbox.BatchMiddleware(apply), msgs...)
			what := failed()
			for i, err := range errs {
				want := 0
				if i == 1 || i == 0 && err == nil {
					want = 1
				}
				if got := b.count(`effects WHERE message_id = '` + msgs[i].UUID + `'`); got != want {
					t.Errorf("step %d (%s) failed: message %d has %d effects, and its error is %v", n, what, i, got, err)
				}
				if err != nil && !errors.Is(err, testkit.ErrInjected) {
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
	t.Parallel()
	eachLayout(t, func(t *testing.T, db testkit.Database, tables schema.Config) {
		if tables.Inbox == schema.ByDay {
			testkit.WithinADay(t)
		}
		b := newBenchIn(t, db, tables, byPayload)
		b.parkAs("quarantined", "B", "order-17")
		b.parkAs("waiting", "P", "order-19")
		b.ageParked()
		for id, body := range map[string]string{"A": "order-17", "C": "order-18", "P": "order-20"} {
			if _, err := b.inbox.Middleware(apply)(message.NewMessage(id, []byte(body))); err != nil {
				t.Fatal(err)
			}
		}
		b.age(aYear)
		testkit.EachStepFails(t, db, false, func(db *sql.DB) error {
			inbox, err := b.over(db, byPayload)
			if err != nil {
				return err
			}
			_, err = inbox.Sweep(t.Context())
			for _, needed := range []string{"key:order-17", "P"} {
				if b.count(`once_inbox WHERE message_id = '`+needed+`'`) != 1 {
					t.Errorf("%s was removed: %v", needed, err)
				}
			}
			return err
		})
	})
}

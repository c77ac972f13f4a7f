package retry_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// Trap 119. While a consumer is paused, a handler that runs finishes, and nothing new starts: no
// message of the transport, which stays in the queue, and no parked message. No attempt
// and no crash is counted.
func TestPausedConsumerStartsNoMessage(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		other := newBench(t, db, nil)
		other.runNamed("other", "other.topic", func(*message.Message) error { return nil })
		b := newBench(t, db, nil)
		q, c, release := newQueue(2), newCalls(t), make(chan struct{})
		q.publish("running", "q1", "q2", "q3", "q4")
		b.runQueue(q, func(msg *message.Message) error {
			if msg.UUID == "running" {
				<-release
				if err := msg.Context().Err(); err != nil {
					t.Errorf("the pause has ended the context of a running handler: %v", err)
				}
				return nil
			}
			return c.handle(msg)
		})
		b.Eventually("messages are handled", func() bool { return c.each("q1", "q2", "q3", "q4") })
		b.pause()
		b.Eventually("the pause is seen", func() bool { return !b.retriesOpen() })
		c.paused.Store(true)
		q.publish("q5", "q6", "q7")
		other.otherConsumerPolls() // a search that began before the pause has ended
		b.put("p1", "p2")
		due := map[string]time.Time{} // a claim changes it, even if the row is given back
		for _, row := range b.entries("") {
			due[row.MessageID] = row.DueAt
		}
		other.otherConsumerPolls()
		if n := q.open.Load(); n != 1 {
			t.Errorf("%d subscriptions while a handler runs, want 1: an end would cancel its context", n)
		}
		close(release)
		b.Eventually("the subscription is closed", func() bool { return q.open.Load() == 0 })
		b.Eventually("the messages are in the queue", func() bool { return q.len() == 3 })
		other.otherConsumerPolls()
		for _, row := range b.entries("") {
			if row.Attempts != 0 || row.Crashes != 0 || row.Rounds != 0 {
				t.Errorf("%+v was charged", row)
			}
			if !row.DueAt.Equal(due[row.MessageID]) {
				t.Errorf("%+v was claimed, it was due at %v", row, due[row.MessageID])
			}
		}
		c.paused.Store(false)
		b.resume()
		b.Eventually("all are handled", func() bool { return c.each("q5", "q6", "q7", "p1", "p2") })
		b.allHandled()
		for _, id := range []string{"q1", "q5", "q6", "q7", "p1", "p2"} {
			if n := c.of(id); n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
	})
}

// retriesOpen reports whether a new subscription of the consumer would be open.
func (b *bench) retriesOpen() bool {
	w := b.parked.WatchPauses(b.Context(), consumer, topic, watermill.NopLogger{})
	defer w.Stop()
	return w.Open()
}

// Trap 119. An instance that starts while its consumer is paused does not subscribe to the
// transport. It counts as running. After the pause, it handles the messages.
func TestNewInstanceOfPausedConsumerStartsPaused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		other := newBench(t, db, nil)
		other.runNamed("other", "other.topic", func(*message.Message) error { return nil })
		b := newBench(t, db, nil)
		q, c := newQueue(2), newCalls(t)
		c.paused.Store(true)
		q.publish("q1")
		b.put("p1")
		b.pause()
		b.runQueue(q, c.handle)
		b.Eventually("it is registered", func() bool { return b.Count(`once_consumer_instances WHERE consumer = 'payments'`) == 1 })
		other.otherConsumerPolls()
		if n := q.subscribed.Load(); n != 0 {
			t.Errorf("subscribed %d times, want 0: the broker would count deliveries", n)
		}
		c.paused.Store(false)
		b.resume()
		b.Eventually("all are handled", func() bool { return c.each("q1", "p1") })
		b.allHandled()
	})
}

// Trap 119. Messages that were claimed in advance are given back when the pause begins, so that
// they are due at once for whoever handles them after the pause.
func TestClaimedMessagesAreGivenBackAtPause(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.KeyOrder, c.Concurrency, c.Lease = retry.BlockWhileRetried, 1, time.Hour
		})
		c, release := newCalls(t), make(chan struct{})
		var first atomic.Bool
		b.put("m1", "m2", "m3", "m4")
		b.runQueue(newQueue(2), func(msg *message.Message) error {
			if first.CompareAndSwap(false, true) {
				<-release
				return nil
			}
			return c.handle(msg)
		})
		b.Eventually("messages are claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 4 })
		b.Eventually("one of them runs", first.Load)
		c.paused.Store(true)
		b.pause()
		if db.Dialect == "sqlite" { // the running handler may use the only writer
			b.Eventually("the pause is seen", func() bool { return !b.retriesOpen() })
			close(release)
		}
		b.Eventually("only the running message is claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) <= 1 })
		for _, row := range b.entries("") {
			if row.Attempts != 0 || row.Crashes > 1 {
				t.Errorf("%+v was charged", row)
			}
		}
		if db.Dialect != "sqlite" {
			close(release)
		}
		b.Eventually("nothing is claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 0 })
		b.WantCount(3, `once_parked WHERE crashes = 0 AND attempts = 0`)
		c.paused.Store(false)
		b.resume()
		b.allHandled()
	})
}

// Trap 119. A subscription that cannot read whether its consumer is paused starts no messages. The
// consumer may be paused.
func TestNothingStartsBeforePausesAreRead(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var logs kit.Logs
		b := newBench(t, db, func(c *retry.Config) { c.Logger = &logs })
		b.Exec(`ALTER TABLE once_consumer_pauses RENAME TO away`)
		q, c := newQueue(2), newCalls(t)
		c.paused.Store(true)
		q.publish("q1", "q2")
		b.put("p1")
		b.runQueue(q, c.handle)
		b.Eventually("it is logged", func() bool { return logs.Count("ERROR Paused consumers cannot be read, retrying") == 1 })
		c.paused.Store(false)
		b.Exec(`ALTER TABLE away RENAME TO once_consumer_pauses`)
		b.Eventually("all are handled", func() bool { return c.each("q1", "q2", "p1") })
		b.allHandled()
		if n := logs.Count("INFO Paused consumers are read again"); n != 1 {
			t.Errorf("logged %d times, want 1: %q", n, logs.Lines())
		}
	})
}

// A consumer shuts down while it is paused, while it is paused and a handler runs, and
// before the pauses could be read. The messages of the transport return to it.
func TestShutdownOfPausedConsumer(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, prepare := range map[string]func(b *bench, q *queue){
			"paused": func(b *bench, q *queue) {
				b.pause()
				b.Eventually("the subscription is closed", func() bool { return q.open.Load() == 0 })
			},
			"paused at the start": func(*bench, *queue) {},
			"unknown":             func(*bench, *queue) {},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, db, nil)
				switch name {
				case "paused at the start":
					b.pause()
				case "unknown":
					b.Exec(`ALTER TABLE once_consumer_pauses RENAME TO away`)
					defer b.Exec(`ALTER TABLE away RENAME TO once_consumer_pauses`)
				}
				q, c := newQueue(1), newCalls(t)
				sub := b.retries.Subscriber(consumer, q)
				messages, err := sub.Subscribe(t.Context(), topic)
				kit.OK(t, err)
				b.Eventually("it is registered", func() bool { return b.Count(`once_consumer_instances`) == 1 })
				c.paused.Store(true)
				prepare(b, q)
				q.publish("q1")
				if err := sub.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if msg, ok := <-messages; ok {
					t.Errorf("%s was delivered", msg.UUID)
				}
				if q.len() != 1 {
					t.Errorf("%d messages are in the queue, want 1", q.len())
				}
				if b.Count(`once_consumer_instances`) != 0 {
					t.Error("the instance is still registered")
				}
				if name != "unknown" {
					b.resume()
				}
			})
		}
	})
}

// A message whose attempts have no known outcome is tried again and again. A pause ends
// this, and the message returns without an attempt.
func TestPauseEndsUndecidedTries(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	q := newQueue(1)
	var tries, free atomic.Int32
	q.publish("q1")
	b.runQueue(q, func(*message.Message) error {
		tries.Add(1)
		if free.Load() == 1 {
			return nil
		}
		return chain.NotCalled(errors.New("the database is away"))
	})
	b.Eventually("it is tried", func() bool { return tries.Load() > 2 })
	b.pause()
	b.Eventually("it returns to the queue", func() bool { return q.open.Load() == 0 && q.len() == 1 })
	b.WantCount(0, `once_parked`)
	before := tries.Load()
	free.Store(1)
	b.resume()
	b.Eventually("it is handled", func() bool { return tries.Load() > before && q.len() == 0 })
}

// A message that is neither acked nor nacked when the pause begins, and a pause that ends
// before the subscription was closed, must not lose a message.
func TestShortPauseDuringLongHandlerKeepsSubscription(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	q := newQueue(3)
	sub := b.retries.Subscriber(consumer, q)
	messages, err := sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	defer func() { _ = sub.Close() }()
	q.publish("q1", "q2", "q3")
	first := <-messages // q2 is offered now
	b.pause()
	b.Eventually("the pause is seen", func() bool { return !b.retriesOpen() })
	b.resume()
	for _, want := range []string{"q2", "q3"} {
		if msg := <-messages; msg.UUID != want {
			t.Errorf("got %s, want %s", msg.UUID, want)
		} else {
			msg.Ack()
		}
	}
	first.Ack()
	if n := q.subscribed.Load(); n != 1 {
		t.Errorf("subscribed %d times, want 1", n)
	}
}

// A message that no handler has received when a pause begins returns to the broker as soon
// as the handlers have finished, and does not wait for the end of the pause.
func TestPauseReturnsTheMessageThatNoHandlerHasReceived(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	q := newQueue(2)
	sub := b.retries.Subscriber(consumer, q)
	messages, err := sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	defer func() { _ = sub.Close() }()
	q.publish("q1", "q2")
	first := <-messages // q2 is offered now
	b.Eventually("q2 has left the queue", func() bool { return q.len() == 0 })
	b.pause()
	b.Eventually("the pause is seen", func() bool { return !b.retriesOpen() })
	first.Ack()
	b.Eventually("q2 is in the queue, and the subscription is closed", func() bool { return q.len() == 1 && q.open.Load() == 0 })
	b.resume()
	if msg := <-messages; msg.UUID != "q2" {
		t.Errorf("got %s, want q2", msg.UUID)
	} else {
		msg.Ack()
	}
}

// Trap 119. A durable consumer stores nothing while it is paused: the messages stay in
// the broker. This also holds for an instance that starts during the pause.
func TestPausedDurableConsumerStoresNoMessage(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for _, startsPaused := range []bool{false, true} {
			other := newBench(t, db, nil)
			other.runNamed("other", "other.topic", func(*message.Message) error { return nil })
			b := newBench(t, db, nil)
			storage, err := durable.New(b.DB, durable.Config{Schema: b.Config, Ahead: 8, Logger: kit.Logger(t)})
			kit.OK(t, err)
			q, c := newQueue(4), newCalls(t)
			if startsPaused {
				b.pause()
				c.paused.Store(true)
			}
			b.startWith(storage.Subscriber(q), consumer, topic, c.handle, b.retries.Middleware)
			if !startsPaused {
				q.publish("q1")
				b.Eventually("q1 is handled", func() bool { return c.each("q1") })
				b.pause()
				b.Eventually("the subscription is closed", func() bool { return q.open.Load() == 0 })
				c.paused.Store(true)
			}
			var ids []string
			for n := range 20 {
				ids = append(ids, fmt.Sprint("d", n))
			}
			q.publish(ids...)
			other.otherConsumerPolls()
			if n := b.Count(`once_parked WHERE consumer = 'payments'`); n != 0 || q.len() != len(ids) {
				t.Errorf("%d messages are stored and %d are in the queue, want none and %d", n, q.len(), len(ids))
			}
			c.paused.Store(false)
			b.resume()
			b.Eventually("all are handled", func() bool { return c.each(ids...) })
			b.allHandled()
			kit.Check(t, errors.Join(b.router.Close(), other.router.Close()))
		}
	})
}

// The embedded transport stores messages for a paused consumer, and its handler is not
// called.
func TestPausedEmbeddedConsumerKeepsItsMessages(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		other := newBench(t, db, nil)
		other.runNamed("other", "other.topic", func(*message.Message) error { return nil })
		b := newBench(t, db, nil)
		transport, err := embedded.New(b.DB, embedded.Config{Schema: b.Config, Logger: kit.Logger(t)})
		kit.OK(t, err)
		c := newCalls(t)
		b.startWith(transport.Subscriber(), consumer, topic, c.handle, b.retries.Middleware)
		b.pause()
		b.Eventually("the pause is seen", func() bool { return !b.retriesOpen() })
		c.paused.Store(true)
		kit.OK(t, transport.Publish(topic, message.NewMessage("e1", nil)))
		other.otherConsumerPolls()
		b.WantCount(1, `once_parked WHERE consumer = 'payments' AND crashes = 0 AND attempts = 0`)
		c.paused.Store(false)
		b.resume()
		b.Eventually("it is handled", func() bool { return c.each("e1") })
		b.allHandled()
	})
}

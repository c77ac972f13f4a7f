package retry_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// putUnrunnable stores a damaged row, and a row that exceeds a crash budget of 3. Both
// rows have one attempt. If ordered is true, each row has its own
// ordering key, and a later message of that key follows.
func (b *bench) putUnrunnable(ordered bool) {
	b.Helper()
	if ordered {
		b.store("damaged-1", "damaged-2", "killer-1", "killer-2")
	} else {
		for _, id := range []string{"damaged-1", "killer-1"} {
			kit.OK(b, b.parked.Deliver(b.Context(), topic, []string{consumer}, keyed(id)))
		}
	}
	for _, change := range []string{
		`UPDATE {parked} SET envelope = digest, attempts = 1 WHERE message_id = 'damaged-1'`,
		`UPDATE {parked} SET crashes = 3, attempts = 1 WHERE message_id = 'killer-1'`,
	} {
		kit.Exec(b, b, b.parked.Dialect().SQL(change))
	}
}

// quarantineFor returns a Store whose OnQuarantine sends each entry to the channel
// told.
func (b *bench) quarantineFor(told chan<- poison.Entry, logs *kit.Logs) *poison.Store {
	b.Helper()
	q, err := poison.New(b.DB, poison.Config{
		Schema: b.Config, Logger: logs, OnQuarantine: func(e poison.Entry) { told <- e },
	})
	kit.OK(b, err)
	return q
}

// Damaged rows, and rows over their crash budget, must be quarantined like all other
// messages. Each must cause one entry, one call of the hook and one line in the log.
func TestUnrunnableRowsPassThroughTheChain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.putUnrunnable(false)
		told, logs := make(chan poison.Entry, 10), &kit.Logs{}
		var mu sync.Mutex
		var seen []string
		outermost := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("%s %d %d", msg.UUID, len(msg.Payload), len(msg.Metadata)))
				return h(msg)
			}
		}
		b.runWith(neverCalled(t), outermost, b.quarantineFor(told, logs).Middleware, b.retries.Middleware)
		reasons := map[string]string{"damaged-1": chain.ReasonUndecodable, "killer-1": chain.ReasonCrashed}
		for range reasons {
			e := b.next(told)
			if e.Reason != reasons[e.MessageID] || e.Attempts != 1 || e.Consumer != consumer {
				t.Errorf("entry %+v", e)
			}
			b.Eventually("it is logged", func() bool { return logs.Has("Message is quarantined", fmt.Sprint("entry=", e.ID)) })
		}
		b.polls(10)
		if rows := b.entries(parkedrows.Quarantined); len(rows) != 2 || len(b.entries("")) != 2 || len(told) > 0 {
			t.Errorf("%d more calls of the hook, rows %+v", len(told), rows)
		}
		mu.Lock()
		defer mu.Unlock()
		if slices.Sort(seen); !slices.Equal(seen, []string{" 0 0", "killer-1 0 0"}) {
			t.Errorf("the chain has seen %q", seen)
		}
	})
}

// If two handlers with separate quarantines run in one process, a message that no
// handler may run must reach the quarantine of its own handler, even if it is the first
// message of its consumer.
func TestUnrunnableRowsReachTheQuarantineOfTheirChain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		other, own := make(chan poison.Entry, 10), make(chan poison.Entry, 10)
		_ = b.quarantineFor(other, &kit.Logs{}).Middleware(nil) // quarantine of another handler, created first
		b.putUnrunnable(false)
		b.runWith(neverCalled(t), b.quarantineFor(own, &kit.Logs{}).Middleware, b.retries.Middleware)
		b.next(own)
		b.next(own)
		if len(other) > 0 {
			t.Error("the other quarantine was told")
		}
	})
}

// Without poison, the rows cannot be quarantined. They must be kept, and must be
// quarantined as soon as poison is used.
func TestUnrunnableRowsAreKeptWithoutPoison(t *testing.T) {
	swallow := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, _ = h(msg)
			return nil, nil
		}
	}
	for name, chain := range map[string]func(b *bench) []message.HandlerMiddleware{
		"retry alone": func(b *bench) []message.HandlerMiddleware { return []message.HandlerMiddleware{b.retries.Middleware} },
		"errors are ignored": func(b *bench) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{swallow, b.retries.Middleware}
		},
		"no middleware": func(*bench) []message.HandlerMiddleware { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				logs := &kit.Logs{}
				b := newBench(t, db, func(c *retry.Config) { c.Logger = logs })
				b.putUnrunnable(false)
				b.runWith(neverCalled(t), chain(b)...)
				for _, entry := range b.entries("") {
					b.Eventually("the error is logged", func() bool { return logs.Has("cannot be quarantined", fmt.Sprint("entry=", entry.ID)) })
				}
				kit.OK(t, b.router.Close())
				waiting := b.entries(parkedrows.Waiting)
				if len(waiting) != 2 || slices.Max([]int{waiting[0].Crashes, waiting[1].Crashes}) != 3 {
					t.Fatalf("rows %+v", waiting)
				}
				b = newBench(t, db, nil)
				told := make(chan poison.Entry, 10)
				b.runWith(neverCalled(t), b.quarantineFor(told, &kit.Logs{}).Middleware, b.retries.Middleware)
				b.next(told)
				b.next(told)
			})
		})
	}
}

// A middleware outside of poison may return nil without calling the next middleware. The
// rows must still be kept.
func TestUnrunnableRowsOutliveAnAck(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.putUnrunnable(false)
		acked := make(chan struct{}, 10)
		swallow := func(message.HandlerFunc) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) {
				acked <- struct{}{}
				return nil, nil
			}
		}
		b.runWith(neverCalled(t), swallow, b.quarantineFor(make(chan poison.Entry, 10), &kit.Logs{}).Middleware, b.retries.Middleware)
		<-acked
		<-acked
		if err := b.router.Close(); err != nil { // waits until the acks are processed
			t.Fatal(err)
		}
		if waiting := b.entries(parkedrows.Waiting); len(waiting) != 2 {
			t.Errorf("rows %+v", b.entries(""))
		}
	})
}

// When an unrunnable row is quarantined, it must leave its ordering key like any other
// message.
func TestKeyOrderAfterUnrunnableRows(t *testing.T) {
	for name, c := range map[string]struct {
		order retry.KeyOrder
		want  string
	}{
		"retried":     {retry.BlockWhileRetried, "damaged-2 killer-2"},
		"running":     {retry.BlockWhileRunning, "damaged-2 killer-2"},
		"quarantined": {retry.BlockWhileQuarantined, ""},
	} {
		t.Run(name, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				b := newBench(t, db, func(config *retry.Config) { config.KeyOrder = c.order })
				b.putUnrunnable(true)
				var mu sync.Mutex
				var handled []string
				b.run(func(msg *message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					handled = append(handled, msg.UUID)
					return nil
				})
				b.Eventually("both are in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 2 })
				left := 2
				if c.want == "" {
					left = 4
					b.polls(10)
				}
				b.Eventually("their successors are handled, or wait", func() bool { return len(b.entries("")) == left })
				mu.Lock()
				defer mu.Unlock()
				if slices.Sort(handled); strings.Join(handled, " ") != c.want {
					t.Errorf("handled %q", handled)
				}
			})
		})
	}
}

// If the process stops while the middlewares handle an unrunnable row, the row must be
// released.
func TestUnrunnableRowIsGivenBackAtShutdown(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.putUnrunnable(false)
		entered, told := make(chan struct{}, 10), make(chan poison.Entry, 10)
		untilClosing := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				entered <- struct{}{}
				<-parkedrows.DeliveryOf(msg.Context()).Closing
				return h(msg)
			}
		}
		b.runWith(neverCalled(t), untilClosing, b.quarantineFor(told, &kit.Logs{}).Middleware, b.retries.Middleware)
		<-entered
		kit.OK(t, b.router.Close())
		for _, row := range b.entries("") {
			if row.State != parkedrows.Waiting || row.Crashes > 3 || row.DueAt.After(time.Now().Add(time.Second)) {
				t.Errorf("row %+v", row)
			}
		}
		if n := len(b.entries("")); n != 2 || len(told) > 0 {
			t.Errorf("%d rows, %d calls of the hook", n, len(told))
		}
	})
}

// neverCalled returns a handler that must not be called.
func neverCalled(t *testing.T) message.NoPublishHandlerFunc {
	t.Helper()
	return func(msg *message.Message) error {
		t.Errorf("the handler was called for %q", msg.UUID)
		return nil
	}
}

func (b *bench) next(told <-chan poison.Entry) poison.Entry {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	select {
	case e := <-told:
		return e
	case <-ctx.Done():
		b.Fatal("the hook is not called")
		return poison.Entry{}
	}
}

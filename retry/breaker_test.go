package retry_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// provider is a service that handlers call.
type provider struct {
	*httptest.Server

	down  atomic.Bool
	calls atomic.Int32 // since the last reset

	mu   sync.Mutex
	paid map[string]int
}

func newProvider(t *testing.T) *provider {
	p := &provider{paid: map[string]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.calls.Add(1)
		if p.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.paid[r.URL.Path]++
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) pay(msg *message.Message) error {
	answer, err := http.Get(p.URL + "/" + msg.UUID)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("payment provider: %s for %s", answer.Status, msg.UUID)
	}
	return nil
}

func (p *provider) paidAll(ids []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if p.paid["/"+id] == 0 {
			return false
		}
	}
	return true
}

// brief is a policy that gives up on a message after a second.
var brief = retry.Policy{Immediate: 1, Delayed: 1, Base: time.Second, Jitter: -1}

func breaking(c *retry.Config) {
	c.Policy, c.Breaker = brief, &retry.Breaker{MaxWait: time.Second}
}

func ids(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s%03d", prefix, i))
	}
	return all
}

func (b *bench) breakerOpen() bool {
	return b.Count(`once_consumer_pauses WHERE actor = 'breaker'`) == 1
}

// Trap 120. While the service that handlers call is down, three instances call it once per wait.
// After that, all messages are handled, none is in quarantine, and no attempt was counted. Without
// a breaker, the messages are in quarantine.
func TestBreakerCostsNoAttemptsWhileServiceIsDown(t *testing.T) {
	t.Parallel()
	for _, breaker := range []bool{true, false} {
		t.Run(fmt.Sprintf("breaker=%v", breaker), func(t *testing.T) {
			t.Parallel()
			db, p, q := kit.Postgres(t), newProvider(t), newQueue(4)
			change := breaking
			if !breaker {
				change = func(c *retry.Config) { c.Policy = brief }
			}
			p.down.Store(true)
			var all []*bench
			for range 3 {
				b := newBench(t, db, change)
				b.runQueue(q, p.pay)
				all = append(all, b)
			}
			b := all[0]
			b.Eventually("all are registered", func() bool { return b.Count(`once_consumer_instances`) == 3 })
			messages := ids("m", 60)
			q.publish(messages...)
			if !breaker {
				b.Eventually("all are in quarantine", func() bool { return len(b.entries("quarantined")) == len(messages) })
				return
			}
			b.Eventually("the breaker is open", b.breakerOpen)
			b.Eventually("a probe has failed", func() bool { return b.Count(`once_consumer_pauses WHERE probes >= 1`) == 1 })
			opened := p.calls.Load()
			began := time.Now()
			b.Eventually("three more probes have failed", func() bool { return b.Count(`once_consumer_pauses WHERE probes >= 4`) == 1 })
			took, calls := time.Since(began), p.calls.Load()-opened
			t.Logf("%d calls until a probe had failed, then %d in %v", opened, calls, took.Round(time.Millisecond))
			if most := took/(800*time.Millisecond) + 2; int(calls) > int(most) {
				t.Errorf("%d calls in %v while the breaker was open, want at most %d", calls, took, most)
			}
			for _, row := range b.entries("") {
				if row.Attempts != 0 || row.Rounds != 0 || row.State != "waiting" {
					t.Errorf("%+v was charged", row)
				}
			}
			p.down.Store(false)
			b.Eventually("all are handled", func() bool { return p.paidAll(messages) && q.len() == 0 })
			b.allHandled()
			if b.breakerOpen() || b.Count(`once_consumer_instances WHERE failing_since IS NOT NULL`) != 0 {
				t.Error("the breaker is still open")
			}
			for action, want := range map[string]int{"breaker.opened": 1, "breaker.closed": 1} {
				if n := b.Count(fmt.Sprintf(`once_audit WHERE action = '%s' AND actor = 'breaker' AND consumer = 'payments'`, action)); n != want {
					t.Errorf("%d audit rows with %s, want %d", n, action, want)
				}
			}
		})
	}
}

// Trap 120. An instance without a connection to the service stops alone, and the healthy ones go on.
// When it has a connection again, it handles messages.
func TestInstanceWithoutConnectionDoesNotStopHealthyOnes(t *testing.T) {
	t.Parallel()
	db, p, q := kit.Postgres(t), newProvider(t), newQueue(4)
	var cut atomic.Bool
	var served atomic.Int32 // by the instance without a connection
	cut.Store(true)
	handlers := []message.NoPublishHandlerFunc{p.pay, p.pay, func(msg *message.Message) error {
		if cut.Load() {
			return errors.New("payment provider: no route to host")
		}
		served.Add(1)
		return p.pay(msg)
	}}
	var b *bench
	for _, h := range handlers {
		b = newBench(t, db, breaking)
		b.runQueue(q, h)
	}
	b.Eventually("all are registered", func() bool { return b.Count(`once_consumer_instances`) == 3 })
	failing := func() int { return b.Count(`once_consumer_instances WHERE failing_since IS NOT NULL`) }
	published, patience := 0, time.Now().Add(time.Minute)
	publish := func() {
		messages := ids(fmt.Sprintf("batch%02d-", published), 10)
		published++
		q.publish(messages...)
		b.Eventually("the messages are handled", func() bool { return p.paidAll(messages) })
	}
	for failing() == 0 && time.Now().Before(patience) {
		publish()
	}
	for range 5 {
		publish()
	}
	if n := failing(); n != 1 {
		t.Errorf("%d instances say that calls fail, want 1", n)
	}
	cut.Store(false)
	for n := served.Load(); (failing() > 0 || served.Load() == n) && time.Now().Before(patience); {
		publish()
	}
	b.allHandled()
	if n := b.Count(`once_audit WHERE action = 'breaker.opened'`); n != 0 {
		t.Errorf("the breaker was opened for all instances %d times, want 0", n)
	}
	if n := failing(); n != 0 || served.Load() == 0 {
		t.Errorf("%d instances say that calls fail, and the third has handled %d messages", n, served.Load())
	}
}

// Trap 120. Also with SQLite, an order of keys, or storage before the handling, messages of an outage
// are handled after it, in order, without a counted attempt.
func TestMessagesOfOutageAreHandledAfterIt(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"direct", "in batches", "ordered", "durable"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				p, q := newProvider(t), newQueue(4)
				b := newBench(t, db, func(c *retry.Config) {
					breaking(c)
					if how == "ordered" {
						c.KeyOrder, c.Concurrency = retry.BlockWhileRetried, 2
					}
				})
				p.down.Store(true)
				var mu sync.Mutex
				var order []string
				handle := func(msg *message.Message) error {
					if err := p.pay(msg); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					order = append(order, msg.UUID)
					return nil
				}
				switch how {
				case "ordered":
					q.key = "tenant-1"
					b.runQueue(q, handle)
				case "direct":
					b.runQueue(q, handle)
				case "in batches":
					q.prefetch = 10
					inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Batch: dedup.Batch{Size: 5}, Logger: kit.Logger(t)})
					kit.OK(t, err)
					b.startWith(q, consumer, topic, handle, b.retries.Middleware, inbox.BatchMiddleware)
				case "durable":
					storage, err := durable.New(b.DB, durable.Config{Schema: b.Config, Ahead: 8, Logger: kit.Logger(t)})
					kit.OK(t, err)
					b.startWith(storage.Subscriber(q), consumer, topic, handle, b.retries.Middleware)
				}
				messages := ids("m", 20)
				if how == "ordered" { // only one message of a key fails at a time
					p.down.Store(false)
				}
				q.publish(messages[:10]...)
				if how == "ordered" {
					b.Eventually("the first are handled", func() bool { return p.paidAll(messages[:10]) })
					p.down.Store(true)
					b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, probe_at) SELECT '` + topic + `', '` + consumer +
						`', 'breaker', 'a test', registered_at FROM once_consumers`)
					b.Eventually("it is paused", func() bool { return q.open.Load() == 0 })
				} else {
					b.Eventually("the breaker is open", b.breakerOpen)
				}
				q.publish(messages[10:]...)
				b.Eventually("two probes have failed", func() bool { return b.Count(`once_consumer_pauses WHERE probes >= 2`) == 1 })
				for _, row := range b.entries("") {
					if row.Attempts != 0 || row.Rounds != 0 || row.State == "quarantined" {
						t.Errorf("%+v was charged", row)
					}
				}
				p.down.Store(false)
				b.Eventually("all are handled", func() bool { return p.paidAll(messages) && q.len() == 0 })
				b.allHandled()
				b.Eventually("the breaker is closed", func() bool { return !b.breakerOpen() })
				if mu.Lock(); how == "ordered" && !slices.IsSorted(order) {
					t.Errorf("the messages of a key were handled in the order %q", order)
				}
				mu.Unlock()
			})
		})
	}
}

// Trap 120. If the process that probes dies, nobody probes before the end of its lease. Then
// another instance does. An instance that has just started subscribes only to probe.
func TestInstanceProbesAfterProberHasDied(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db, p, q := kit.Postgres(t), newProvider(t), newQueue(4)
	b := newBench(t, db, breaking)
	messages := ids("m", 10)
	q.publish(messages...)
	b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, probe_at, prober)
		VALUES ('` + topic + `', '` + consumer + `', 'breaker', 'a test', now() + interval '3 seconds', 'dead/1')`)
	b.Exec(`CREATE TABLE called (at timestamptz NOT NULL DEFAULT clock_timestamp(), due timestamptz)`)
	b.runQueue(q, func(msg *message.Message) error {
		b.Exec(`INSERT INTO called (due) SELECT probe_at FROM once_consumer_pauses`)
		return p.pay(msg)
	})
	due := kit.One[time.Time](t, b, `SELECT probe_at FROM once_consumer_pauses`)
	b.Eventually("all are handled", func() bool { return p.paidAll(messages) && q.len() == 0 })
	first := kit.One[time.Time](t, b, `SELECT MIN(at) FROM called`)
	if first.Before(due) {
		t.Errorf("the handler was called %v before the end of the lease", due.Sub(first))
	}
	b.Eventually("the breaker is closed", func() bool { return !b.breakerOpen() })
	b.allHandled()
}

// Unavailable opens the breaker at once, and the time of After is the time until the first probe.
func TestUnavailableOpensBreakerForTheTimeOfAfter(t *testing.T) {
	t.Parallel()
	changes := make(chan retry.BreakerChange, 10)
	b, q := newBench(t, kit.Postgres(t), func(c *retry.Config) {
		breaking(c)
		c.Breaker.OnChange = func(c retry.BreakerChange) {
			changes <- c
			panic("must not harm the breaker")
		}
	}), newQueue(1)
	var calls atomic.Int32
	b.runQueue(q, func(*message.Message) error {
		calls.Add(1)
		return retry.After(retry.Unavailable(errors.New("503")), time.Hour)
	})
	b.Eventually("it is registered", func() bool { return b.Count(`once_consumer_instances`) == 1 })
	q.publish(ids("m", 5)...)
	b.Eventually("the breaker is open for an hour", func() bool {
		return b.Count(`once_consumer_pauses WHERE actor = 'breaker' AND probe_at > now() + interval '59 minutes'`) == 1
	})
	b.Eventually("the subscription is closed", func() bool { return q.open.Load() == 0 })
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	if rows := b.entries("waiting"); len(rows) != 1 || rows[0].Attempts != 0 || time.Until(rows[0].DueAt) < 50*time.Minute {
		t.Errorf("parked are %+v", rows)
	}
	const why = "1 of the last 1 messages failed with *errors.errorString, group "
	for _, all := range []bool{false, true} {
		c := <-changes
		if c.Consumer != consumer || c.Topic != topic || !c.Open || c.All != all ||
			!strings.HasPrefix(c.Why, why) || strings.Contains(c.Why, "503") {
			t.Errorf("change %+v, want an opening with All=%v", c, all)
		}
	}
	b.Exec(`DELETE FROM once_consumer_pauses`) // an operator resumes the consumer
	b.Eventually("the next message is handled", func() bool { return calls.Load() > 1 })
}

// A breaker that was removed from the configuration must not stop the consumer for ever. Its row is
// ignored when nobody has probed for a minute, also by a consumer that has found it before.
func TestRowOfRemovedBreakerIsIgnored(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b, q, c := newBench(t, db, nil), newQueue(1), newCalls(t)
		q.publish("q1")
		old := `now() - interval '58 seconds'`
		if db.Dialect == "sqlite" {
			old = `CAST(unixepoch('subsec') * 1000 AS INTEGER) - 58000`
		}
		b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, probe_at) VALUES ('` + topic + `', '` + consumer +
			`', 'breaker', 'a test', ` + old + `)`)
		b.runQueue(q, c.handle)
		b.Eventually("the message is handled", func() bool { return c.each("q1") })
	})
}

// The breaker identifies a message without an id by its payload.
func TestMessagesWithoutIDsOpenBreaker(t *testing.T) {
	t.Parallel()
	b, q := newBench(t, kit.Postgres(t), breaking), newQueue(1)
	q.nameless = true
	var works atomic.Bool
	var handled atomic.Int32
	b.runQueue(q, func(*message.Message) error {
		if !works.Load() {
			return errors.New("503")
		}
		handled.Add(1)
		return nil
	})
	all := ids("q", 8)
	q.publish(all...)
	b.Eventually("the breaker is open", b.breakerOpen)
	works.Store(true)
	b.Eventually("all are handled", func() bool { return int(handled.Load()) == len(all) })
	b.WantCount(0, `once_parked WHERE state = 'quarantined'`)
}

// Messages that fail for their own reason open the breaker while no others arrive. The next message
// closes it, and then they are given up on. Otherwise they would open it again for ever.
func TestMessagesThatFailOnTheirOwnAreGivenUpOnInSpiteOfBreaker(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b, q, c := newBench(t, db, breaking), newQueue(4), newCalls(t)
		b.runQueue(q, func(msg *message.Message) error {
			if strings.HasPrefix(msg.UUID, "bad") {
				return fmt.Errorf("%s has no amount", msg.UUID)
			}
			return c.handle(msg)
		})
		bad := ids("bad", 6)
		q.publish(bad...)
		b.Eventually("the breaker is open", b.breakerOpen)
		q.publish("good")
		b.Eventually("a good message is handled", func() bool { return c.each("good") })
		b.Eventually("the bad ones are in quarantine", func() bool { return len(b.entries("quarantined")) == len(bad) })
		q.publish("better")
		b.Eventually("another good message is handled", func() bool { return c.each("better") })
		b.WantCount(1, `once_audit WHERE action = 'breaker.opened'`)
	})
}

package retry_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// pace notes when calls of a handler begin.
type pace struct {
	mu     sync.Mutex
	begins []time.Time
}

func (p *pace) handle(*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begins = append(p.begins, time.Now())
	return nil
}

func (p *pace) calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.begins)
}

// check reports a call that began before the limit allowed it. It counts from the time at which the
// messages were published: on a busy machine calls may begin late, and then close together.
func (p *pace) check(t *testing.T, l retry.Limits, published time.Time) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, began := range p.begins {
		after := began.Sub(published)
		if most := float64(l.Burst) + l.PerSecond*after.Seconds(); float64(i+1) > most {
			t.Errorf("%d calls began within %v, at most %.1f may", i+1, after, most)
			return
		}
	}
}

// Trap 121. Two instances keep one limit together, for messages of the transport and for parked
// ones. Those that wait are not charged.
func TestInstancesKeepLimitTogether(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		limit := retry.Limits{PerSecond: 20, Burst: 5}
		q, p := newQueue(4), &pace{}
		var b *bench
		for range 2 {
			b = newBench(t, db, func(c *retry.Config) { c.Limits, c.Concurrency = limit, 4 })
			b.runQueue(q, p.handle)
		}
		published := time.Now()
		q.publish(ids("q", 20)...)
		b.put(ids("p", 20)...)
		b.Eventually("half of them are handled", func() bool { return p.calls() >= 20 })
		for _, row := range b.entries("") {
			if row.Attempts != 0 || row.Crashes > 1 || row.Rounds != 0 {
				t.Errorf("%+v was charged", row)
			}
		}
		b.Eventually("all are handled", func() bool { return p.calls() == 40 })
		p.check(t, limit, published)
		b.allHandled()
	})
}

// The limit of an operator replaces the configured one, and the configured one applies again when
// it is removed. No instance restarts.
func TestOperatorChangesLimit(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Limits = retry.Limits{PerSecond: 0.001} })
		q, p := newQueue(4), &pace{}
		b.runQueue(q, p.handle)
		q.publish(ids("q", 10)...)
		b.put(ids("p", 10)...)
		b.Eventually("one is handled", func() bool { return p.calls() == 1 })
		b.Exec(`UPDATE once_consumer_limits SET per_second = 1000, burst = 1000, given_until = ` + b.FromNow(0))
		b.Eventually("all are handled", func() bool { return p.calls() == 20 })
		b.Exec(`UPDATE once_consumer_limits SET per_second = NULL, burst = NULL`)
		published := 20
		b.Eventually("a start of the configured limit is taken", func() bool {
			q.publish(fmt.Sprint("r", published))
			published++
			return b.Count(`once_consumer_limits WHERE given_until > `+b.FromNow(100*time.Second)) == 1
		})
		q.publish(ids("s", 5)...)
		b.Eventually("the messages are in flight", func() bool { return q.len() <= 5+published-p.calls() })
		if n := p.calls(); n > published+1 {
			t.Errorf("%d calls, want at most %d", n, published+1)
		}
	})
}

// A consumer without a limit gets one while its messages wait for nothing.
func TestOperatorLimitsConsumerWithoutLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	q, p := newQueue(4), &pace{}
	b.Exec(fmt.Sprintf(`INSERT INTO once_consumer_limits (topic, consumer, per_second, burst) VALUES ('%s', '%s', 20, 2)`, topic, consumer))
	b.runQueue(q, p.handle)
	published := time.Now()
	q.publish(ids("q", 20)...)
	b.Eventually("all are handled", func() bool { return p.calls() == 20 })
	p.check(t, retry.Limits{PerSecond: 20, Burst: 2}, published)
}

// Trap 121. Another attempt without a pause waits for its start, too.
func TestImmediateAttemptsKeepLimit(t *testing.T) {
	t.Parallel()
	limit := retry.Limits{PerSecond: 20, Burst: 1}
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.Limits, c.Policy = limit, retry.Policy{Immediate: 9} })
	q, p := newQueue(1), &pace{}
	b.runQueue(q, func(msg *message.Message) error {
		if _ = p.handle(msg); p.calls() < 8 {
			return errHandler
		}
		return nil
	})
	published := time.Now()
	q.publish("q1")
	b.Eventually("it is handled", func() bool { return p.calls() == 8 })
	p.check(t, limit, published)
}

// A consumer that shuts down does not wait until its messages may start.
func TestMessagesThatWaitForTheirStartReturnAtShutdown(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Limits, c.CloseTimeout = retry.Limits{PerSecond: 0.001}, time.Hour })
		q, p := newQueue(4), &pace{}
		b.runQueue(q, p.handle)
		q.publish(ids("q", 3)...)
		b.put(ids("p", 3)...)
		b.Eventually("one is handled", func() bool { return p.calls() == 1 })
		if err := b.router.Close(); err != nil {
			t.Fatal(err)
		}
		left := b.Count(`once_parked WHERE token IS NULL AND attempts = 0 AND crashes = 0`)
		if n := left + q.len(); n != 5 {
			t.Errorf("%d parked and %d in the queue, want 5 together", left, q.len())
		}
	})
}

func TestInvalidLimitsAreNamed(t *testing.T) {
	t.Parallel()
	for want, limits := range map[string]retry.Limits{
		"Limits.PerSecond is -1, not in":             {PerSecond: -1},
		"Limits.PerSecond is 0, not in":              {Burst: 3},
		"Limits.PerSecond is 1e+09, not in":          {PerSecond: 1e9},
		"Limits.Burst is -2, not in":                 {PerSecond: 1, Burst: -2},
		"Limits.Burst is 2, too few":                 {PerSecond: 100, Burst: 2},
		"Limits.Burst is 2000000, not in 1..1000000": {PerSecond: 1, Burst: 2_000_000},
	} {
		if _, err := retry.New(kit.SQLite(t).DB, retry.Config{Limits: limits}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

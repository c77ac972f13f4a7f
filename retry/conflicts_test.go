package retry_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// runWithin starts a router whose handler shares the deadline of Watermill's Timeout with
// all tries of a delivery.
func runWithin(t *testing.T, deadline, unackedWait time.Duration, logs *kit.Logs, h message.NoPublishHandlerFunc) *bench {
	t.Helper()
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.UnackedWait, c.Logger = unackedWait, logs })
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	b.runWith(h, timeout(deadline), quarantine.Middleware, b.retries.Middleware)
	return b
}

// timeout does the same as Watermill's middleware Timeout, whose package needs modules that
// this module does not require.
func timeout(d time.Duration) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeout(msg.Context(), d)
			defer cancel()
			msg.SetContext(ctx)
			return h(msg)
		}
	}
}

// Trap 111. A deadline of a middleware, such as Watermill's Timeout, is shorter than
// UnackedWait. If it passes while other transactions make the calls fail, no attempt is
// counted. The message is parked, and handled when the conflicts have ended. This also
// holds if the deadline ends a call that had no conflict itself.
func TestTrap111_DeadlineDuringConflictsIsNoAttempt(t *testing.T) {
	t.Parallel()
	conflict := &pq.Error{Code: "40001", Message: "could not serialize"}
	for name, second := range map[string]func(msg *message.Message) error{
		"every call conflicts": func(*message.Message) error { return conflict },
		"the last call waits":  func(msg *message.Message) error { <-msg.Context().Done(); return msg.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var (
				logs  kit.Logs
				quiet atomic.Bool
				mu    sync.Mutex
				calls = map[time.Time]int{} // by the deadline of the delivery
			)
			b := runWithin(t, 300*time.Millisecond, time.Hour, &logs, func(msg *message.Message) error {
				deadline, _ := msg.Context().Deadline()
				mu.Lock()
				calls[deadline]++
				first := calls[deadline] == 1
				mu.Unlock()
				switch {
				case quiet.Load():
					return nil
				case first:
					return conflict
				}
				return second(msg)
			})
			if !b.transport.deliver(t, message.NewMessage("m1", nil)) {
				t.Error("the message goes back to the broker, and is not parked")
			}
			b.Eventually("more deliveries than the policy allows attempts", func() bool {
				return logs.Count("ERROR Message is parked: other transactions", "consumer="+consumer, "message_uuid=m1") > 5
			})
			for _, row := range b.entries("") {
				if row.Attempts != 0 || row.Rounds != 0 {
					t.Errorf("%d attempts in %d rounds are counted", row.Attempts, row.Rounds)
				}
			}
			quiet.Store(true)
			b.allHandled()
		})
	}
}

// Trap 111. Such calls end, too: when they have failed for longer than UnackedWait, over
// all deliveries, they count as one attempt.
func TestTrap111_ConflictsOfSeveralDeliveriesEndAfterUnackedWait(t *testing.T) {
	t.Parallel()
	var logs kit.Logs
	b := runWithin(t, 100*time.Millisecond, 500*time.Millisecond, &logs, func(*message.Message) error {
		return &pq.Error{Code: "40001", Message: "never"}
	})
	b.transport.deliver(t, message.NewMessage("m1", nil))
	b.Eventually("the message is in quarantine", func() bool { return len(b.entries("quarantined")) == 1 })
	if row := b.entries("quarantined")[0]; row.Attempts != 2 {
		t.Errorf("%d attempts are counted, want one for each round of the policy, 2", row.Attempts)
	}
	if n := logs.Count("ERROR Message is parked: other transactions"); n < 2 {
		t.Errorf("%d deliveries ended without an attempt, want at least one for each attempt", n)
	}
}

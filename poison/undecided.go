package poison

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
)

// maxUndecided is the number of consecutive undecided calls after which a message is quarantined,
// as in package retry. Otherwise a message that ends its own database session each time would be
// redelivered forever.
const maxUndecided = 3

// maxCounted limits the memory.
const maxCounted = 10_000

// undecidedCalls counts the consecutive undecided calls of each message in this process. If other
// processes get the message, too, the handler may be called more than maxUndecided times, but not
// forever.
type undecidedCalls struct {
	mu sync.Mutex
	n  map[undecidedCall]callCount
}

// callCount counts undecided calls, and in contended those that other transactions made fail.
type callCount struct {
	undecided, contended int
	since                time.Time
}

type undecidedCall struct{ consumer, message string }

func undecidedCallOf(consumer string, msg *message.Message) undecidedCall {
	return undecidedCall{consumer, meta.Identity(msg)}
}

func (u *undecidedCalls) add(consumer string, msg *message.Message, contended bool) callCount {
	call := undecidedCallOf(consumer, msg)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == nil || len(u.n) >= maxCounted {
		u.n = map[undecidedCall]callCount{}
	}
	n := u.n[call]
	if n.since.IsZero() {
		n.since = time.Now()
	}
	if contended {
		n.contended++
	} else {
		n.undecided++
	}
	u.n[call] = n
	return n
}

func (n callCount) all() int { return n.undecided + n.contended }

func (n callCount) tooMany(v *chain.Error, longest time.Duration) bool {
	if v.Contended {
		return time.Since(n.since) > longest
	}
	return n.undecided >= maxUndecided
}

func (n callCount) error(v *chain.Error, err error) error {
	if v.Contended {
		return fmt.Errorf("poison: other transactions made %d handler calls in %v fail, last error: %w",
			n.all(), time.Since(n.since).Round(time.Second), err)
	}
	return fmt.Errorf("poison: the outcome of %d handler calls is unknown, last error: %w", n.all(), err)
}

// contendedPauses are the pauses before a nack because other transactions made the call fail.
var contendedPauses = backoff.Exponential{Base: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}

// pauseContended pauses, because the transport would redeliver the message immediately.
func (s *Store) pauseContended(
	ctx context.Context, d *parkedrows.Delivery, msg *message.Message, v *chain.Error, n callCount,
) {
	if !v.Contended {
		return
	}
	pause := contendedPauses.Jittered(n.contended)
	s.config.Logger.Error("Message is nacked: other transactions make its transaction fail", v,
		meta.LogFields(msg.UUID, msg.Metadata, watermill.LogFields{
			"consumer": d.Consumer, "topic": d.Topic, "calls": n.all(), "pause": pause.Round(time.Millisecond).String(),
		}))
	d.Sleep(ctx, pause)
}

func (u *undecidedCalls) forget(consumer string, msg *message.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.n) > 0 {
		delete(u.n, undecidedCallOf(consumer, msg))
	}
}

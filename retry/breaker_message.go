package retry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
)

type breakerKey struct{}

// handling is what a breaker knows about one message. In this order, start is called before the
// handler, one of succeeded, passed and failed after each of its calls, and nextRound or givenUp
// before the message is parked or given up on.
type handling struct {
	*breaker

	probe *probe // not nil if the message is a probe
}

// with returns ctx with the breaker for the middleware.
func (b *breaker) with(ctx context.Context) context.Context {
	if b == nil {
		return ctx
	}
	return context.WithValue(ctx, breakerKey{}, &handling{breaker: b})
}

// handlingOf returns nil if the message has no breaker.
func (r *Retries) handlingOf(ctx context.Context) *handling {
	if r.config.Breaker == nil {
		return nil
	}
	h, _ := ctx.Value(breakerKey{}).(*handling)
	return h
}

// start is called before a message is passed to a handler while not all messages may start. It
// reports whether the message may, and whether it is a probe.
func (b *breaker) start(msg *message.Message, from parkedrows.Source) (isProbe, ok bool) {
	if b == nil {
		return false, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, _ := b.pauses.Intake(from); now == parkedrows.IntakeProbe && parksUnhandled(msg, from) {
		return false, true
	}
	if isProbe, ok = b.pauses.Start(from); !isProbe {
		return isProbe, ok
	}
	p := b.probe
	p.started = true
	if h := b.handlingOf(msg.Context()); h != nil {
		h.probe = p
	}
	go func() { // the result is known before the ack, but the message is parked then
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
		case <-b.closing:
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		p.ended = true
		b.wakeUp()
	}()
	return true, true
}

// parksUnhandled reports whether the middleware parks a message before its handler is called, so
// that it cannot be a probe. If such messages were probes, each would end the subscription, and
// those behind it would return to the broker again and again.
func parksUnhandled(msg *message.Message, from parkedrows.Source) bool {
	return from == parkedrows.FromTransport && msg.Metadata[meta.Redelivered] == "true"
}

// succeeded is called after the handler has succeeded.
func (h *handling) succeeded(id string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window.add(id, "", false, time.Now())
	if h.probe != nil && h.probe == h.breaker.probe {
		h.probe.result, h.free = succeeded, true
		h.publish(time.Now())
	}
}

// passed is called if the handler was not called, or has failed because of the message.
func (h *handling) passed(id string, called bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if called {
		h.window.add(id, "", false, time.Now())
	}
	if h.probe != nil {
		h.probe.result = skipped
	}
}

// failed is called after the handler has failed. If the breaker is open, or opens now, the call
// does not cost an attempt: the message must be parked for the time delay. attempts and rounds are
// then what earlier calls have cost it.
func (h *handling) failed(id string, v *chain.Error, err error) (open bool, delay time.Duration, attempts, rounds int) {
	if h == nil {
		return false, 0, 0, 0
	}
	if !outage(v, err) {
		h.passed(id, true)
		return false, 0, 0, 0
	}
	group, errType := parkedrows.Group(h.instance.Consumer, parkedrows.Failure{MessageID: id, Err: err, Reason: chain.ReasonFailed})
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	row, operator, _ := h.pauses.Row()
	switch {
	case h.probe != nil:
		// The next probe takes another message, because this one may fail for its own reason.
		wait := h.config.Breaker.wait(h.probesBefore(row), v.After)
		h.probe.result, h.probe.wait = failed, wait
		delay = wait + min(wait, h.config.Breaker.MaxWait)
	case h.free || operator || row == nil && h.own == nil:
		if opens := h.window.add(id, group, v.Unavailable, now); !opens || h.free || operator {
			return false, 0, 0, 0
		}
		wait := h.config.Breaker.wait(0, v.After)
		failures, of := h.window.count(group, now)
		h.own = &opening{
			group: group, until: now.Add(wait), wait: wait,
			why: fmt.Sprintf("%d of the last %d messages failed with %s, group %s", failures, of, errType, group),
		}
		delay = wait
	case row != nil:
		delay = min(max(row.Due.Sub(now), 0), h.config.Breaker.MaxWait) // Due may be the end of a lease
	default:
		delay = max(h.own.until.Sub(now), 0)
	}
	attempts, rounds = h.window.take(id)
	h.window.open(id)
	if h.own != nil && h.probe == nil {
		h.willGiveBack(h.own.group)
	}
	h.publish(now)
	h.wakeUp()
	return true, max(delay, v.After), attempts, rounds
}

// nextRound is called before a message is parked for its next round, after its failed calls were
// counted. If the breaker has opened in the meantime, they are not: the caller subtracts the
// returned attempts and rounds.
func (h *handling) nextRound(id string) (attempts, rounds int) {
	if h == nil {
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window.addRound(id)
	i := slices.IndexFunc(h.charges, func(c parkedrows.Charge) bool { return c.MessageID == id })
	if i < 0 {
		return 0, 0
	}
	c := h.charges[i]
	h.charges = slices.Delete(h.charges, i, i+1)
	return c.Attempts, c.Rounds + 1
}

// givenUp is called before the consumer gives up on a message: nothing is given back to it.
func (h *handling) givenUp(id string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window.take(id)
}

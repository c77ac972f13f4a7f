package forwarder

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/outboxrow"
)

// wire is what has been given to the publisher.
type wire struct {
	inFlight int
	tickets  uint64
	used     []answer // a slice to be used again
	fault    fault    // while there is one, one message at a time is tried

	confirms   uint64
	handedBack int // in flight when it was closed, and of unknown outcome
}

const publishing = "Messages could be published"

// setback has publishing pause: nothing gets through.
func (l *loop) setback(err error, now time.Time) {
	l.sender.gate.Store(false) // what has not left yet comes back
	if !now.Before(l.wire.fault.until) {
		l.wire.fault.failed(l, "Messages could not be published", err)
	}
}

// publish fills the window.
func (l *loop) publish(now time.Time) {
	if l.stopping || len(l.tenure.slots) == 0 || l.wire.fault.waits(l, now) {
		return
	}
	for l.wire.inFlight < l.window() {
		if !l.sender.gate.Load() {
			if l.wire.inFlight > l.silent() {
				return // orders from before it was closed have not come back yet
			}
			l.sender.gate.Store(true)
		}
		r := l.choose()
		if r == nil {
			return
		}
		l.wire.tickets++
		l.wire.inFlight++
		r.ticket, r.sent = l.wire.tickets, now
		l.departs(r, now)
		l.sender.orders <- order{row: r, ticket: r.ticket}
	}
}

// window is how many may be in flight now.
func (l *loop) window() int {
	if l.wire.fault.attempts > 0 || len(l.suspects) > 0 {
		return min(l.config.Window, l.silent()+1)
	}
	return l.config.Window
}

// choose returns what to publish next, or nil.
func (l *loop) choose() *row {
	if len(l.suspects) > 0 {
		return l.chooseAlone()
	}
	return l.next()
}

// hear goes through the publisher's answers.
func (l *loop) hear(now time.Time) {
	l.wire.used = l.sender.answers.take(l.wire.used)
	l.instruments.listen()
	defer l.instruments.heard()
	for _, a := range l.wire.used {
		if a.row.ticket == a.ticket { // else it was answered before
			a.row.ticket = 0
			l.wire.inFlight--
			l.answered(a, now)
		}
	}
}

func (l *loop) answered(a answer, now time.Time) {
	r, err := a.row, a.err
	sent := !errors.Is(err, errNotSent)
	outcome := Unavailable
	if sent {
		outcome = l.classify(err)
		l.instruments.answered(a, outcome, now)
	}
	alone := l.alone == r
	if alone {
		l.alone = nil
	}
	l.arrives(r, outcome, now)
	switch {
	case outcome == Confirmed:
		l.confirmed(r, now)
	case r.orphan:
		l.buffer.forget(r) // it is for its new owner to send
	case outcome == Refused:
		l.refused(r, err)
	case outcome == Unacceptable:
		l.dead(r, err, outboxrow.DeadUnacceptable)
	case l.stopping:
		if outcome == Unknown {
			l.wire.handedBack++
		}
		l.buffer.forget(r)
	case outcome == Unknown:
		l.unknown(r, err, alone, now)
	default:
		if sent {
			l.setback(err, now)
		}
		l.again(r)
	}
}

func (l *loop) classify(err error) Outcome {
	if err == nil {
		return Confirmed
	}
	return l.config.Classify(err)
}

// again has a row published again that was not sent.
func (l *loop) again(r *row) {
	if !r.suspect { // those have a queue of their own
		l.buffer.ready.put(r)
	}
}

func (l *loop) confirmed(r *row, now time.Time) {
	l.wire.confirms++
	l.wire.fault.worked(l, publishing)
	if refused := l.topics.refusals.accept(r.topic); refused > 0 {
		l.config.Logger.Info("Topic accepts messages again", watermill.LogFields{"topic": r.topic, "refused": refused})
	}
	l.clear(r)
	r.final = true
	l.buffer.unload(r)
	s := &l.settling
	if len(s.waiting.confirmed) == 0 {
		s.since = now
	}
	s.waiting.confirmed = append(s.waiting.confirmed, r)
	switch lane := r.lane; {
	case lane == nil:
	case r.heldByItself:
		s.urgent = true
	default:
		r.lane = nil
		l.buffer.next(lane)
	}
}

// errStalled is noted at messages that wait for their topic.
var errStalled = errors.New("forwarder: the topic does not answer")

// postpone has r wait without charging anything.
func (l *loop) postpone(r *row, err error) {
	l.conclude(r)
	l.settling.waiting.charges = append(l.settling.waiting.charges, charge{
		row: r, delay: jitter(l.config.StallTimeout), err: clean(err), hold: holdUnknown, after: r.successors(),
	})
}

func (l *loop) refused(r *row, err error) {
	l.wire.fault.worked(l, publishing)
	if r.attempts >= l.config.MaxAttempts-1 {
		l.dead(r, err, outboxrow.DeadExhausted)
		return
	}
	fields := watermill.LogFields{
		"message_uuid": r.id, "topic": r.topic, "attempt": r.attempts + 1, "size": r.size(),
	}
	if l.topics.refusals.refuse(r.topic, time.Now()) {
		l.config.Logger.Error("Messages of a topic are refused, they are tried again later", errors.New(clean(err)), fields)
	} else {
		fields["err"] = clean(err)
		l.config.Logger.Debug("Message was refused, it is tried again later", fields)
	}
	l.conclude(r)
	l.settling.waiting.charges = append(l.settling.waiting.charges, charge{
		row: r, attempts: 1, delay: jitter(l.config.Backoff(r.attempts + 1)), err: clean(err), hold: holdRefused,
		after: r.successors(),
	})
}

func (l *loop) dead(r *row, err error, reason string) {
	l.wire.fault.worked(l, publishing)
	size := r.size()
	l.conclude(r)
	l.settling.waiting.deaths = append(l.settling.waiting.deaths, death{
		row: r, size: size, err: clean(err), reason: reason, after: r.successors(),
	})
}

// conclude notes that the outcome of r is known and is not a confirm.
func (l *loop) conclude(r *row) {
	l.clear(r)
	r.final = true
	l.buffer.unload(r)
	if r.lane != nil {
		l.buffer.bar(r.lane)
	}
}

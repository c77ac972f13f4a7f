package rabbit

import (
	"slices"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

// confirmLoop determines the outcome of every message, and reports it. It runs in a
// single goroutine, so that two calls of the function done of PublishAsync never
// overlap. It never uses the network, and never waits for a goroutine that uses the
// network.
type confirmLoop struct {
	p *Publisher

	channels []*confirmChannel
	current  []*confirmChannel // those of channels that get new messages
	outcomes []outcome         // outcomes that are not reported yet

	slots, bytes int // number and bytes of the messages that have an outcome, but still count towards the window

	streaks  map[destination]*nackStreak // destinations whose last response was a nack
	confirms uint64

	forbidding bool // a destination is forbidden

	timer *time.Timer
}

func (p *Publisher) processConfirms() {
	defer close(p.confirmsDone)
	l := &confirmLoop{p: p, streaks: make(map[destination]*nackStreak), timer: time.NewTimer(time.Hour)}
	defer l.timer.Stop()
	for l.collect() {
		now := time.Now()
		for _, ch := range l.channels {
			l.processResponses(ch)
			l.expire(ch, now)
		}
		for _, ch := range l.channels {
			l.removeFinished(ch)
		}
		l.releaseWindow()
		l.report()
		l.wait()
	}
}

// collect fetches the messages that were sent since the last call, and the responses
// that have arrived. It returns false when the Publisher is stopping and no message is
// unconfirmed.
func (l *confirmLoop) collect() bool {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()

	l.channels = append(l.channels[:0], p.channels...)
	l.current = append(l.current[:0], p.current...)
	l.forbidding = len(p.forbidden) > 0
	l.outcomes = append(l.outcomes, p.failed...)
	clear(p.failed)
	p.failed = p.failed[:0]

	for _, ch := range l.channels {
		ch.responses, ch.closed = ch.wire.TakeResponses(ch.responses)
		ch.takeSent() // p.mu is held, so this includes every message that has a response
	}

	p.stopped = p.stopping && len(p.channels) == 0 && len(l.outcomes) == 0
	return !p.stopped
}

// processResponses processes the responses that have arrived on a channel: acks, nacks
// and returned messages.
func (l *confirmLoop) processResponses(ch *confirmChannel) {
	front := 0
	for _, r := range ch.responses {
		switch {
		case r.Kind == amqpwire.Return:
			ch.returned[r.Number] = r
		case r.Multiple:
			for ; front < len(ch.pending) && ch.pending[front].number <= r.Number; front++ {
				l.settle(ch, ch.pending[front], r)
			}
		default:
			l.settle(ch, ch.find(r.Number), r)
		}
	}
	ch.trim()
}

func (l *confirmLoop) settle(ch *confirmChannel, pub *publication, r amqpwire.Response) {
	if pub == nil || pub.settled {
		return
	}
	ch.settle(pub)
	returned, isReturned := ch.returned[pub.number]
	switch {
	case isReturned:
		delete(ch.returned, pub.number)
		l.record(pub, pub.error(ErrReturned, int(returned.Code), redactText(returned.Text), nil))
	case r.Kind == amqpwire.Nack:
		l.record(pub, pub.error(ErrNacked, 0, "", nil))
		l.nacked(ch, pub)
	default:
		l.record(pub, nil)
		l.confirmed(pub)
	}
}

// expire reports the outcomes of overdue publications as unknown. Overdue publications
// stay in the list pending, because their confirms may still arrive. The broker may
// also close the channel because of an overdue publication, and this close must not be
// attributed to another message. New messages are sent over another channel.
func (l *confirmLoop) expire(ch *confirmChannel, now time.Time) {
	for _, pub := range ch.pending {
		if pub.settled || pub.overdue {
			continue
		}
		if now.Before(pub.deadline) {
			return
		}
		l.record(pub, pub.error(ErrUnknown, 0, "no confirm within "+l.p.cfg.ConfirmTimeout.String(), nil))
		pub.overdue = true
		if slices.Contains(l.current, ch) {
			l.log("Confirm overdue, changing to another channel", pub)
			l.retire(ch)
		}
	}
}

// record adds the outcome of a publication to the list outcomes. It does nothing for an
// overdue publication, because its outcome was already reported.
func (l *confirmLoop) record(pub *publication, err *PublishError) {
	if pub.overdue {
		return
	}
	o := outcome{pub: pub}
	if err != nil {
		o.err = err
	}
	l.outcomes = append(l.outcomes, o)
	l.slots++
	l.bytes += pub.size
}

// releaseWindow removes the recorded publications from the window, so that there is
// room for new messages.
func (l *confirmLoop) releaseWindow() {
	if l.slots == 0 {
		return
	}
	l.p.mu.Lock()
	l.p.count -= l.slots
	l.p.bytes -= l.bytes
	l.p.broadcast()
	l.p.mu.Unlock()
	l.slots, l.bytes = 0, 0
}

// report passes each outcome to the function done of its publication. It holds no lock
// during these calls.
func (l *confirmLoop) report() {
	l.p.instruments.count(l.outcomes)
	for _, o := range l.outcomes {
		failpoint.Hit("rabbit/report")
		o.pub.done(o.err)
	}
	clear(l.outcomes)
	l.outcomes = l.outcomes[:0]
}

// wait waits for a signal on the channel wake, or until the deadline of the oldest
// message that waits for its confirm.
func (l *confirmLoop) wait() {
	if oldest := l.oldest(); oldest != nil {
		l.timer.Reset(time.Until(oldest.deadline))
		select {
		case <-l.p.wake:
		case <-l.timer.C:
		}
		return
	}
	if l.becomeIdle() {
		<-l.p.wake
	}
}

// becomeIdle reports whether the loop has no work to do. If it returns true, the next
// publish wakes the loop.
func (l *confirmLoop) becomeIdle() bool {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return false
	}
	for _, ch := range p.channels {
		if len(ch.sent) > 0 {
			return false
		}
	}
	p.idle = true
	return true
}

// oldest returns the publication with the earliest deadline, or nil. It may be on a
// channel that is not the current one any more.
func (l *confirmLoop) oldest() (first *publication) {
	for _, ch := range l.channels {
		if pub := ch.oldest(); pub != nil && (first == nil || pub.deadline.Before(first.deadline)) {
			first = pub
		}
	}
	return first
}

package rabbit

import (
	"errors"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

// confirmLoop determines and reports every outcome in a single goroutine, so that calls of done
// never overlap. It never uses the network, nor waits for a goroutine that does.
type confirmLoop struct {
	p *Publisher

	channels []*confirmChannel
	current  []*confirmChannel // those of channels that get new messages
	outcomes []outcome         // outcomes that are not reported yet

	slots, bytes int // number and bytes of the messages that have an outcome, but still count towards the window

	streaks  map[destination]*nackStreak // destinations whose last response was a nack
	confirms uint64

	confirmedAt time.Time // time of the latest confirm
	leftAt      time.Time // when a node was left because it confirmed nothing

	forbidding bool // a destination is forbidden

	timer *time.Timer
}

func (p *Publisher) processConfirms() {
	defer close(p.confirmsDone)
	l := &confirmLoop{p: p, streaks: make(map[destination]*nackStreak), timer: time.NewTimer(time.Hour)}
	defer l.timer.Stop()
	for l.collect() {
		now, confirms := time.Now(), l.confirms
		for _, ch := range l.channels {
			l.processResponses(ch)
		}
		if l.confirms != confirms {
			l.confirmedAt = now
		}
		for _, ch := range l.channels {
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

// collect returns false when the Publisher is stopping and no message is unconfirmed.
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

var errNoConfirms = errors.New("the broker confirms no message, changing to another node")

// expire reports overdue publications as unknown. They stay pending, because their confirms may
// still arrive, or the broker may close the channel because of one, which must not be attributed to
// another. New messages go over another channel, or to another node if no message was confirmed
// meanwhile.
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
		if sent := pub.deadline.Add(-l.p.cfg.ConfirmTimeout); l.confirmedAt.Before(sent) {
			l.leaveNode(ch.session, now)
		}
	}
}

// leaveNode changes to another node, if there is one. An alarm usually blocks all nodes of a cluster,
// and after it ends, each of them accepts what it has received. So a node that blocks the connection
// is left only once until the next confirm.
func (l *confirmLoop) leaveNode(s *session, now time.Time) {
	l.p.mu.Lock()
	blocked := s.blocked
	l.p.mu.Unlock()
	if s.others && (!blocked || !l.leftAt.After(l.confirmedAt)) {
		l.leftAt = now
		s.wire.Abort(errNoConfirms)
	}
}

// An overdue publication was already reported.
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

// done is called without a lock.
func (l *confirmLoop) report() {
	l.p.instruments.count(l.outcomes)
	for _, o := range l.outcomes {
		failpoint.Hit("rabbit/report")
		o.pub.done(o.err)
	}
	clear(l.outcomes)
	l.outcomes = l.outcomes[:0]
}

// wait ends with a signal, or at the deadline of the oldest unconfirmed message.
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

// After becomeIdle returns true, the next publish wakes the loop.
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

// The oldest publication may be on a channel that is not current any more.
func (l *confirmLoop) oldest() (first *publication) {
	for _, ch := range l.channels {
		if pub := ch.oldest(); pub != nil && (first == nil || pub.deadline.Before(first.deadline)) {
			first = pub
		}
	}
	return first
}

package rabbit

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// How often the settler looks at everything, when the confirm that it waits for
// is late and others may have come: from one to the other, as long as none have.
const (
	shortTick = time.Millisecond
	longTick  = 8 * time.Millisecond
)

// settler finds out what became of every message and says so. It is one
// goroutine for everything, because a return has to be seen before the ack that
// follows it: amqp091's reader hands over the return first, so whoever looks
// for acks, then for returns, and then settles, cannot miss one. It never
// touches the network and waits for nobody who does.
type settler struct {
	p *Publisher

	lanes    []*lane
	current  *lane // of these, or nil
	verdicts []verdict
	done     []*flight // scratch

	slots, bytes int // to be given back to the window

	tick  time.Duration
	timer *time.Timer
}

func (p *Publisher) settle() {
	defer close(p.settled)
	s := &settler{p: p, tick: shortTick, timer: time.NewTimer(time.Hour)}
	defer s.timer.Stop()
	for s.collect() {
		now := time.Now()
		for _, l := range s.lanes {
			s.sweep(l, now)
			s.expire(l, now)
		}
		for _, l := range s.lanes {
			s.conclude(l)
		}
		s.release()
		s.report()
		s.wait()
	}
}

// collect takes over what was sent since the last time. It reports false when
// nothing is outstanding and nothing will be.
func (s *settler) collect() bool {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()

	s.lanes = append(s.lanes[:0], p.lanes...)
	s.current = p.lane
	s.verdicts = append(s.verdicts, p.failed...)
	clear(p.failed)
	p.failed = p.failed[:0]

	for _, l := range s.lanes {
		l.takeIncoming()
	}

	p.stopped = p.stopping && len(p.lanes) == 0 && len(s.verdicts) == 0
	return !p.stopped
}

// sweep settles what was acked, nacked or returned.
func (s *settler) sweep(l *lane, now time.Time) {
	s.done = l.takeMarked(s.done[:0], now)
	l.drainReturns()

	for _, f := range s.done {
		returned, isReturned := l.returned[f.number]
		switch {
		case isReturned:
			delete(l.returned, f.number)
			s.settled(f, f.error(ErrReturned, int(returned.ReplyCode), redactText(returned.ReplyText), nil))
		case f.confirm.Acked():
			s.settled(f, nil)
		case l.channel.IsClosed():
			l.lost = append(l.lost, f) // amqp091 says "not acked" of these, too
		default:
			s.settled(f, f.error(ErrNacked, 0, "", nil))
		}
	}
	clear(s.done)
}

// expire gives up what is overdue. Its confirm may still come, or the channel
// be closed because of it, and then nobody else may be blamed: so it stays
// where it is, and new messages go elsewhere.
func (s *settler) expire(l *lane, now time.Time) {
	for _, f := range l.pending {
		if f.overdue {
			continue
		}
		if now.Before(f.deadline) {
			return
		}
		s.settled(f, f.error(ErrUnknown, 0, "no confirm within "+s.p.cfg.ConfirmTimeout.String(), nil))
		f.overdue = true
		if l == s.current {
			s.current = nil
			s.p.cfg.Logger.Info("Confirm overdue, changing to another channel",
				watermill.LogFields{"topic": f.topic, "message_uuid": f.id})
			s.p.mu.Lock()
			s.p.retire(l)
			s.p.mu.Unlock()
		}
	}
}

// settled notes what became of a flight. A flight that was given up has been
// reported before.
func (s *settler) settled(f *flight, err *PublishError) {
	if f.overdue {
		return
	}
	v := verdict{flight: f}
	if err != nil {
		v.err = err
	}
	s.verdicts = append(s.verdicts, v)
	s.slots++
	s.bytes += f.size
}

// release gives the room of what was settled back to the window.
func (s *settler) release() {
	if s.slots == 0 {
		s.tick = min(2*s.tick, longTick)
		return
	}
	s.tick = shortTick
	s.p.mu.Lock()
	s.p.count -= s.slots
	s.p.bytes -= s.bytes
	s.p.broadcast()
	s.p.mu.Unlock()
	s.slots, s.bytes = 0, 0
}

// report calls what waits for a verdict, with no lock held.
func (s *settler) report() {
	s.p.instruments.reports(s.verdicts)
	for _, v := range s.verdicts {
		v.flight.done(v.err)
	}
	clear(s.verdicts)
	s.verdicts = s.verdicts[:0]
}

// wait sleeps until the oldest confirm is there or something else happens.
func (s *settler) wait() {
	if oldest := s.oldest(); oldest != nil {
		s.timer.Reset(s.tick)
		select {
		case <-oldest.confirm.Done():
		case <-s.p.wake:
		case <-s.timer.C:
		}
		return
	}
	if !s.doze() {
		return
	}
	if s.current == nil {
		<-s.p.wake
		return
	}
	select {
	case <-s.p.wake:
	case reason, ok := <-s.current.closed:
		if ok {
			s.current.reason = reason
		}
	}
}

// doze has the next publish wake the settler, unless there is something to do
// already.
func (s *settler) doze() bool {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return false
	}
	for _, l := range p.lanes {
		if len(l.incoming) > 0 {
			return false
		}
	}
	p.dozing = true
	return true
}

func (s *settler) oldest() *flight {
	if s.current != nil {
		if f := s.current.oldest(); f != nil {
			return f
		}
	}
	for _, l := range s.lanes {
		if f := l.oldest(); f != nil {
			return f
		}
	}
	return nil
}

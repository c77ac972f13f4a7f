package rabbit

import (
	"time"

	"github.com/watermill-once/once/internal/failpoint"
)

// settler finds out what became of every message and says so. It is one
// goroutine for everything, so that its callers' done never runs twice at a
// time. It never touches the network and waits for nobody who does.
type settler struct {
	p *Publisher

	lanes    []*lane
	current  *lane // of these, or nil
	verdicts []verdict

	slots, bytes int // to be given back to the window

	streaks  map[destination]*streak // of those with nacks alone
	confirms uint64

	timer *time.Timer
}

func (p *Publisher) settle() {
	defer close(p.settled)
	s := &settler{p: p, streaks: make(map[destination]*streak), timer: time.NewTimer(time.Hour)}
	defer s.timer.Stop()
	for s.collect() {
		now := time.Now()
		for _, l := range s.lanes {
			s.sweep(l)
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

// collect takes over what was sent and answered since the last time. It reports
// false when nothing is outstanding and nothing will be.
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
		l.answers, l.closed = l.channel.take(l.answers)
		l.takeIncoming() // to these answers, too: nothing is sent meanwhile
	}

	p.stopped = p.stopping && len(p.lanes) == 0 && len(s.verdicts) == 0
	return !p.stopped
}

// sweep settles what was acked, nacked or returned.
func (s *settler) sweep(l *lane) {
	front := 0
	for _, a := range l.answers {
		switch {
		case a.kind == answerReturn:
			l.returned[a.number] = a
		case a.multiple:
			for ; front < len(l.pending) && l.pending[front].number <= a.number; front++ {
				s.answer(l, l.pending[front], a)
			}
		default:
			s.answer(l, l.find(a.number), a)
		}
	}
	l.trim()
}

// answer settles a flight, unless it was before, by an ack or a nack.
func (s *settler) answer(l *lane, f *flight, a answer) {
	if f == nil || f.settled {
		return
	}
	l.settle(f)
	returned, isReturned := l.returned[f.number]
	switch {
	case isReturned:
		delete(l.returned, f.number)
		s.settled(f, f.error(ErrReturned, int(returned.code), redactText(returned.text), nil))
	case a.kind == answerNack:
		s.settled(f, f.error(ErrNacked, 0, "", nil))
		s.nacked(l, f)
	default:
		s.settled(f, nil)
		s.confirmed(f)
	}
}

// expire gives up what is overdue. Its confirm may still come, or the channel
// be closed because of it, and then nobody else may be blamed: so it stays
// where it is, and new messages go elsewhere.
func (s *settler) expire(l *lane, now time.Time) {
	for _, f := range l.pending {
		if f.settled || f.overdue {
			continue
		}
		if now.Before(f.deadline) {
			return
		}
		s.settled(f, f.error(ErrUnknown, 0, "no confirm within "+s.p.cfg.ConfirmTimeout.String(), nil))
		f.overdue = true
		if l == s.current {
			s.changeLane(l, "Confirm overdue, changing to another channel", f)
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
		return
	}
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
		failpoint.Hit("rabbit/report")
		v.flight.done(v.err)
	}
	clear(s.verdicts)
	s.verdicts = s.verdicts[:0]
}

// wait sleeps until something happens, or the oldest confirm is overdue.
func (s *settler) wait() {
	if oldest := s.oldest(); oldest != nil {
		s.timer.Reset(time.Until(oldest.deadline))
		select {
		case <-s.p.wake:
		case <-s.timer.C:
		}
		return
	}
	if s.doze() {
		<-s.p.wake
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

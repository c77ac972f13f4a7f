package rabbit

import (
	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// disconnected makes err the reason why messages are unavailable.
func (p *Publisher) disconnected(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.lane, p.down = nil, nil, err
	p.noteReadiness()
	p.wakeSettler()
}

// serve keeps a lane open on the connection until it is lost or no more needed.
func (p *Publisher) serve(l *link) (polite bool, why error) {
	s := p.newSession(l)
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	for {
		if err := s.provideLane(); err != nil {
			return false, s.lost(err)
		}
		select {
		case <-p.ctx.Done():
			return s.mayAnswer(), ErrClosed
		case reason, ok := <-s.closed:
			return false, s.reason(reason, ok)
		case b, ok := <-s.blocks:
			if !ok {
				s.blocks = nil // s.closed says why
				continue
			}
			s.setBlocked(b)
		case <-p.attend:
		}
	}
}

// mayAnswer reports whether a close has a chance: the broker reads nothing of a
// connection that it blocks, and what is still outstanding shows that it is stuck.
func (s *session) mayAnswer() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.count == 0 && !s.blocked
}

// provideLane opens a lane if there is none. While it blocks the connection the
// broker reads nothing, so that has to wait.
func (s *session) provideLane() error {
	p := s.p
	p.mu.Lock()
	needed := p.lane == nil && !s.blocked
	p.mu.Unlock()
	if !needed {
		return nil
	}
	l, err := s.openLane()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.lane = l
	p.lanes = append(p.lanes, l)
	p.noteReadiness()
	p.wakeSettler()
	p.mu.Unlock()
	return nil
}

func (s *session) setBlocked(b amqp.Blocking) {
	p := s.p
	p.mu.Lock()
	s.blocked = b.Active
	p.noteReadiness()
	p.mu.Unlock()
	if b.Active {
		p.cfg.Logger.Error("RabbitMQ blocks publishing", errBlocked, watermill.LogFields{"reason": b.Reason})
	} else {
		p.cfg.Logger.Info("RabbitMQ no longer blocks publishing", nil)
	}
}

// retire has no new messages go to the lane. The lock is held.
func (p *Publisher) retire(l *lane) {
	if p.lane == l {
		p.lane = nil
		p.noteReadiness()
		notify(p.attend)
	}
}

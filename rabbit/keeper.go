package rabbit

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/telemetry"
)

var errConnectionClosed = errors.New("connection closed")

// keep keeps a connection up until Close. It logs when that changes, not at
// every attempt.
func (p *Publisher) keep() {
	defer close(p.kept)
	quiet := false // the loss has been logged
	for failed := 0; p.pause(failed); failed++ {
		s, err := p.open()
		p.instruments.connects.Add(1, telemetry.Succeeded(err))
		if err != nil {
			p.disconnected(err, &quiet)
			continue
		}
		p.cfg.Logger.Info("Connected to RabbitMQ", nil)
		quiet = false

		began := time.Now()
		p.disconnected(s.serve(), &quiet)
		s.end()
		if time.Since(began) >= p.cfg.ReconnectMax {
			failed = -1 // a connection that is lost at once counts as an attempt that failed
		}
	}
}

// pause waits before the next attempt, and reports whether there is to be one.
func (p *Publisher) pause(failed int) bool {
	timer := time.NewTimer(jitter(backoff(failed, p.cfg.ReconnectMin, p.cfg.ReconnectMax)))
	defer timer.Stop()
	select {
	case <-p.ctx.Done():
		return false
	case <-timer.C:
		return p.ctx.Err() == nil
	}
}

// disconnected makes err the reason why messages are unavailable.
func (p *Publisher) disconnected(err error, quiet *bool) {
	p.mu.Lock()
	p.session, p.lane, p.down = nil, nil, err
	p.noteReadiness()
	p.wakeSettler()
	p.mu.Unlock()
	if !*quiet && p.ctx.Err() == nil {
		p.cfg.Logger.Error("No connection to RabbitMQ, will keep trying", err, nil)
		*quiet = true
	}
}

// serve keeps a lane open on the connection until it is lost or no more needed.
func (s *session) serve() error {
	p := s.p
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	for {
		if err := s.provideLane(); err != nil {
			return s.lost(err)
		}
		select {
		case <-p.ctx.Done():
			return ErrClosed
		case reason, ok := <-s.closed:
			if !ok {
				return errConnectionClosed
			}
			return s.lost(reason)
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

// lost says why the connection was lost, as well as that is known.
func (s *session) lost(err error) error {
	return redact(cmp.Or(s.sock.failure(), err))
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

// end closes the connection, politely if there is a chance of an answer, and
// returns when the socket is closed.
func (s *session) end() {
	p := s.p
	p.mu.Lock()
	polite := p.closing && p.count == 0 && !s.blocked
	p.mu.Unlock()
	if polite {
		_ = s.within(context.Background(), lastWrite, s.conn.Close)
	}
	if !s.conn.IsClosed() {
		s.sock.abort(net.ErrClosed)
	}
	defer time.AfterFunc(lastWrite, func() { s.sock.abort(net.ErrClosed) }).Stop()
	<-s.sock.done
}

// retire has no new messages go to the lane. The lock is held.
func (p *Publisher) retire(l *lane) {
	if p.lane == l {
		p.lane = nil
		p.noteReadiness()
		notify(p.attend)
	}
}

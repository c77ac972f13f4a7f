package rabbit

import (
	"math"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// session is the state of the Publisher for one connection.
type session struct {
	*connection

	p      *Publisher
	blocks chan amqp.Blocking

	// Publisher.mu guards this field and the following ones.
	blocked   bool
	declared  map[string]struct{}
	declaring map[string]*declaration
}

func (p *Publisher) newSession(c *connection) *session {
	return &session{
		connection: c,
		p:          p,
		blocks:     c.amqp.NotifyBlocked(make(chan amqp.Blocking, 16)), // large enough, because a full channel would stop amqp091's reader
		declared:   make(map[string]struct{}),
		declaring:  make(map[string]*declaration),
	}
}

// request calls f, which waits for replies of the broker. The caller must not have
// locked Publisher.mu.
func (s *session) request(f func() error) error {
	return s.connection.request(s.p.ctx, f)
}

// frameSize returns the maximum frame size of the connection in bytes.
func (s *session) frameSize() int {
	if size := s.amqp.Config.FrameSize; size > 0 {
		return size
	}
	return math.MaxInt
}

// disconnected implements connectionUser.
func (p *Publisher) disconnected(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.channel, p.down = nil, nil, reason
	p.updateReadiness()
	p.wakeConfirmLoop()
}

// serve implements connectionUser. It keeps a confirm channel open.
func (p *Publisher) serve(c *connection) (graceful bool, reason error) {
	s := p.newSession(c)
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	for {
		if err := s.ensureChannel(); err != nil {
			return false, s.lossReason(err)
		}
		select {
		case <-p.ctx.Done():
			return s.canReply(), ErrClosed
		case reason, ok := <-s.closed:
			return false, s.closeReason(reason, ok)
		case b, ok := <-s.blocks:
			if !ok {
				s.blocks = nil // the reason arrives on s.closed
				continue
			}
			s.setBlocked(b)
		case <-p.reopen:
		}
	}
}

// canReply reports whether the broker can be expected to reply to a close. It returns
// false in two cases: the broker blocks the connection, and then does not read from it;
// or messages are still unconfirmed when the Publisher closes, so the broker is
// probably stuck.
func (s *session) canReply() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.count == 0 && !s.blocked
}

// ensureChannel opens a confirm channel if the Publisher has none. If the broker blocks
// the connection, it does nothing, because the broker does not read from the connection
// then.
func (s *session) ensureChannel() error {
	p := s.p
	p.mu.Lock()
	needed := p.channel == nil && !s.blocked
	p.mu.Unlock()
	if !needed {
		return nil
	}
	ch, err := s.openConfirmChannel()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.channel = ch
	p.channels = append(p.channels, ch)
	p.updateReadiness()
	p.wakeConfirmLoop()
	p.mu.Unlock()
	return nil
}

func (s *session) setBlocked(b amqp.Blocking) {
	p := s.p
	p.mu.Lock()
	s.blocked = b.Active
	p.updateReadiness()
	p.mu.Unlock()
	if b.Active {
		p.cfg.Logger.Error("RabbitMQ connection blocked by the broker", errBlocked, watermill.LogFields{"reason": b.Reason})
	} else {
		p.cfg.Logger.Info("RabbitMQ connection no longer blocked by the broker", nil)
	}
}

// retire stops the sending of new messages over a channel. The caller must have locked
// p.mu.
func (p *Publisher) retire(ch *confirmChannel) {
	if p.channel == ch {
		p.channel = nil
		p.updateReadiness()
		notify(p.reopen)
	}
}

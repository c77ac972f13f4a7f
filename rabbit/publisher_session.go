package rabbit

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

type session struct {
	*connection

	p      *Publisher
	began  time.Time
	blocks <-chan amqp.Blocking

	// Publisher.mu guards the fields from here on.
	blocked   bool
	declared  map[string]struct{}
	declaring map[string]*declaration
}

func (p *Publisher) newSession(c *connection) *session {
	return &session{
		connection: c,
		p:          p,
		began:      time.Now(),
		blocks:     newest(c.amqp.NotifyBlocked(make(chan amqp.Blocking))),
		declared:   make(map[string]struct{}),
		declaring:  make(map[string]*declaration),
	}
}

// newest drops all but the newest value, so that amqp091's reader never waits for a busy Publisher.
func newest[T any](in <-chan T) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		var value T
		var unread chan<- T
		for {
			select {
			case next, ok := <-in:
				if !ok {
					return
				}
				value, unread = next, out
			case unread <- value:
				unread = nil
			}
		}
	}()
	return out
}

// Publisher.mu must not be locked.
func (s *session) request(f func() error) error {
	return s.connection.request(s.p.ctx, f)
}

func (s *session) frameSize() int {
	if size := s.amqp.Config.FrameSize; size > 0 {
		return size
	}
	return math.MaxInt
}

func (p *Publisher) disconnected(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.current, p.down = nil, nil, reason
	p.updateReadiness()
	p.wakeConfirmLoop()
}

// serve keeps the confirm channels open.
func (p *Publisher) serve(c *connection) (graceful bool, reason error) {
	s := p.newSession(c)
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	for {
		if err := s.ensureChannels(); err != nil {
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

// canReply returns false if the broker blocks the connection, from which it then does not read, or
// if messages are still unconfirmed at the close, because it is probably stuck.
func (s *session) canReply() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.count == 0 && !s.blocked
}

// A broker that blocks the connection does not read from it, so no channel is opened then.
func (s *session) ensureChannels() error {
	for s.needsChannel() {
		ch, err := s.openConfirmChannel()
		if errors.Is(err, amqp.ErrChannelMax) && s.p.hasChannel() {
			return nil // the connection allows few channels; those that are open are enough
		}
		if err != nil {
			return err
		}
		p := s.p
		p.mu.Lock()
		p.current = append(p.current, ch)
		p.channels = append(p.channels, ch)
		p.updateReadiness()
		p.wakeConfirmLoop()
		p.mu.Unlock()
	}
	return nil
}

func (p *Publisher) hasChannel() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.current) > 0
}

func (s *session) needsChannel() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	wanted := 1
	if s.p.spread {
		wanted = spreadChannels
	}
	return len(s.p.current) < wanted && !s.blocked
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

// p.mu must be locked.
func (p *Publisher) retire(ch *confirmChannel) {
	if i := slices.Index(p.current, ch); i >= 0 {
		p.current = slices.Delete(p.current, i, i+1)
		p.updateReadiness()
		notify(p.reopen)
	}
}

// spreadChannels is for messages without an order. RabbitMQ has one process for each channel, and
// an unconfirmed message costs more, the more there are on it: with 1,000 of them, four channels
// needed about a quarter less processor time than one. Eight gained nothing more.
const spreadChannels = 4

// confirmChannel is an AMQP channel in confirm mode. One that is not current is closed when it has
// no more unconfirmed messages.
type confirmChannel struct {
	session *session
	wire    *amqpwire.Channel

	// Publisher.mu guards this field and sent.
	number uint64         // number of the last publish
	sent   []*publication // publications that takeSent has not moved to pending yet

	// Only the confirm loop uses the fields from here on.
	pending   []*publication // in the order of their numbers; some are settled
	settled   int            // number of publications in pending that are settled
	returned  map[uint64]amqpwire.Response
	responses []amqpwire.Response // responses that the confirm loop has not processed yet
	closed    *amqp.Error         // why the channel was closed, or nil
}

func (s *session) openConfirmChannel() (*confirmChannel, error) {
	wire, err := s.wire.OpenChannel(func() { notify(s.p.wake) })
	if err != nil {
		return nil, err
	}
	if err := s.request(wire.WaitOpen); err != nil {
		return nil, err
	}
	return &confirmChannel{session: s, wire: wire, returned: make(map[uint64]amqpwire.Response)}, nil
}

// publish returns false on a closed channel, and does not wait. Publisher.mu must be locked.
func (ch *confirmChannel) publish(pub *publication, c *amqpwire.Content) bool {
	if !ch.wire.Publish(ch.number+1, pub.exchange, pub.key, c, ch.session.frameSize()) {
		return false
	}
	ch.number++
	pub.number, pub.sent = ch.number, time.Now()
	ch.sent = append(ch.sent, pub)
	return true
}

// takeSent moves sent publications to pending, with deadlines. Publisher.mu must be locked.
func (ch *confirmChannel) takeSent() {
	if len(ch.sent) == 0 {
		return
	}
	deadline := time.Now().Add(ch.session.p.cfg.ConfirmTimeout)
	for _, pub := range ch.sent {
		pub.deadline = deadline
	}
	ch.pending = append(ch.pending, ch.sent...)
	clear(ch.sent)
	ch.sent = ch.sent[:0]
}

func (ch *confirmChannel) find(number uint64) *publication {
	i, found := slices.BinarySearchFunc(ch.pending, number, func(pub *publication, number uint64) int {
		return cmp.Compare(pub.number, number)
	})
	if !found || ch.pending[i].settled {
		return nil
	}
	return ch.pending[i]
}

func (ch *confirmChannel) settle(pub *publication) {
	pub.settled = true
	ch.settled++
}

// Responses mostly arrive in order, so settled publications behind the first are only removed when
// they are more than half of the list.
func (ch *confirmChannel) trim() {
	front := 0
	for front < len(ch.pending) && ch.pending[front].settled {
		front++
	}
	ch.pending = slices.Delete(ch.pending, 0, front)
	ch.settled -= front
	if ch.settled > len(ch.pending)/2 {
		ch.pending = slices.DeleteFunc(ch.pending, func(pub *publication) bool { return pub.settled })
		ch.settled = 0
	}
}

// Overdue publications are included.
func (ch *confirmChannel) outstanding() int { return len(ch.pending) - ch.settled }

func (ch *confirmChannel) oldest() *publication {
	for _, pub := range ch.pending {
		if !pub.settled && !pub.overdue {
			return pub
		}
	}
	return nil
}

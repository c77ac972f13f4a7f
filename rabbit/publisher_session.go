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

// session is the state of the Publisher for one connection.
type session struct {
	*connection

	p      *Publisher
	began  time.Time
	blocks <-chan amqp.Blocking

	// Publisher.mu guards this field and the following ones.
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

// newest passes on the newest value of in, and drops older ones. So amqp091's reader
// never waits for a Publisher that is busy, for example with opening a channel.
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

func (p *Publisher) disconnected(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.current, p.down = nil, nil, reason
	p.updateReadiness()
	p.wakeConfirmLoop()
}

// serve implements connectionUser. It keeps the confirm channels open.
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

// canReply reports whether the broker can be expected to reply to a close. It returns
// false in two cases: the broker blocks the connection, and then does not read from it;
// or messages are still unconfirmed when the Publisher closes, so the broker is
// probably stuck.
func (s *session) canReply() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.count == 0 && !s.blocked
}

// ensureChannels opens the confirm channels that the Publisher lacks. If the broker
// blocks the connection, it does nothing, because the broker does not read from the
// connection then.
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

// retire stops the sending of new messages over a channel. The caller must have locked
// p.mu.
func (p *Publisher) retire(ch *confirmChannel) {
	if i := slices.Index(p.current, ch); i >= 0 {
		p.current = slices.Delete(p.current, i, i+1)
		p.updateReadiness()
		notify(p.reopen)
	}
}

// spreadChannels is the number of channels for messages without an order. RabbitMQ has
// one process for each channel, and what an unconfirmed message costs grows with their
// number on the channel: with 1,000 of them on four channels, RabbitMQ needed about a
// quarter less processor time for each message than with all of them on one. Eight
// channels gained nothing more.
const spreadChannels = 4

// confirmChannel is an AMQP channel in confirm mode, with its unconfirmed messages. The
// Publisher sends new messages only over its current channels. Any other channel is
// closed when it has no more unconfirmed messages.
type confirmChannel struct {
	session *session
	wire    *amqpwire.Channel

	// Publisher.mu guards this field and the field sent.
	number uint64         // number of the last publish
	sent   []*publication // publications that takeSent has not moved to pending yet

	// Only the confirm loop uses this field and the following ones.
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

// publish writes a message to the write buffer. If the channel is closed, it returns
// false. It does not wait for the network. The caller must have locked Publisher.mu.
func (ch *confirmChannel) publish(pub *publication, c *amqpwire.Content) bool {
	if !ch.wire.Publish(ch.number+1, pub.exchange, pub.key, c, ch.session.frameSize()) {
		return false
	}
	ch.number++
	pub.number, pub.sent = ch.number, time.Now()
	ch.sent = append(ch.sent, pub)
	return true
}

// takeSent moves the publications from the list sent to the list pending, and sets
// their deadlines. The caller must have locked Publisher.mu.
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

// trim removes settled publications from the list pending. It always removes those at
// the beginning of the list. Responses mostly arrive in order, so few other
// publications are settled. trim removes these only if they are more than half of the
// list.
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

// outstanding returns the number of publications that wait for their ack or nack.
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

package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// conclude deals with a lane whose channel is closed, and with one on which
// nobody waits for anything any more.
func (s *settler) conclude(l *lane) {
	if l.channel.IsClosed() {
		s.detach(l)
		if l.oldest() != nil {
			return // amqp091 is still marking them
		}
		s.judge(l)
	}
	if l != s.current && l.isSettled() {
		s.forget(l)
	}
}

// detach takes a lane whose channel is closed out of use, and over what was
// sent until then. What was declared may be gone: an exchange that was deleted
// meanwhile is a reason to close a channel.
func (s *settler) detach(l *lane) {
	if s.current == l {
		s.current = nil
	}
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire(l)
	clear(l.session.declared)
	l.takeIncoming()
}

// judge settles what was lost with the channel. The broker does not say which
// message it closed a channel over, so one is blamed only if it was the only
// one outstanding.
func (s *settler) judge(l *lane) {
	select {
	case reason, ok := <-l.closed:
		if ok {
			l.reason = reason
		}
	default:
	}
	if l.reason != nil && !l.session.conn.IsClosed() {
		s.p.cfg.Logger.Error("RabbitMQ has closed a channel", redact(l.reason),
			watermill.LogFields{"outstanding": len(l.lost)})
	}
	kind := ErrUnknown
	if len(l.lost)+len(l.pending) == 1 && l.reason != nil && l.reason.Server {
		kind = blame(l.reason, s.isAlone(l))
	}
	for _, f := range l.lost {
		s.settled(f, f.closed(kind, l.reason))
	}
	l.lost = nil
}

// isAlone reports whether nothing is outstanding on the other lanes of the
// connection.
func (s *settler) isAlone(l *lane) bool {
	for _, other := range s.lanes {
		if other != l && other.session == l.session && len(other.pending)+len(other.lost) > 0 {
			return false
		}
	}
	return true
}

// blame is what a close says about the one message that was outstanding on the
// channel. A close of the connection can be about anything on it; then the
// message has to be alone on the connection, and the reason to be one that only
// its frames can give.
func blame(reason *amqp.Error, aloneOnConnection bool) error {
	switch reason.Code {
	case amqp.ContentTooLarge:
		return ErrTooLarge
	case amqp.PreconditionFailed:
		// "message size 2000 is larger than configured max size 1000". Other
		// preconditions can be met later.
		if strings.Contains(reason.Reason, "message size") {
			return ErrTooLarge
		}
		return ErrRefused
	case amqp.FrameError, amqp.SyntaxError, amqp.UnexpectedFrame:
		if aloneOnConnection {
			return ErrInvalid
		}
		return ErrUnknown
	}
	if reason.Recover { // of the channel, not of the connection
		return ErrRefused
	}
	return ErrUnknown
}

// forget lets go of a lane. What the broker does about the close of a channel
// can take as long as the queue that was stuck, so nobody waits for it but a
// goroutine that ends with the connection at the latest.
func (s *settler) forget(l *lane) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.incoming) > 0 {
		return // sent just before the lane was retired
	}
	p.lanes = slices.DeleteFunc(p.lanes, func(other *lane) bool { return other == l })
	if !l.channel.IsClosed() {
		p.closers.Go(func() { _ = l.channel.Close() })
	}
}

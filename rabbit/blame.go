package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// conclude deals with a lane whose channel is closed, and with one on which
// nobody waits for anything any more. What is overdue comes first, so then all
// of it is.
func (s *settler) conclude(l *lane) {
	if l.closed != nil {
		s.detach(l)
		s.judge(l)
	}
	if l != s.current && l.oldest() == nil {
		s.forget(l)
	}
}

// detach takes a lane whose channel is closed out of use. What was declared may
// be gone: an exchange that was deleted meanwhile is a reason to close a channel.
func (s *settler) detach(l *lane) {
	if s.current == l {
		s.current = nil
	}
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire(l)
	clear(l.session.declared)
}

// judge settles what was lost with the channel. The broker does not say which
// message it closed a channel over, so one is blamed only if it was the only
// one outstanding.
func (s *settler) judge(l *lane) {
	if !l.session.mux.isEnded() {
		s.p.cfg.Logger.Error("RabbitMQ has closed a channel", redact(l.closed),
			watermill.LogFields{"outstanding": l.outstanding()})
	}
	kind := ErrUnknown
	if l.outstanding() == 1 && l.closed.Server {
		kind = blame(l.closed, s.isAlone(l))
	}
	for _, f := range l.pending {
		if !f.settled {
			s.settled(f, f.closed(kind, l.closed))
		}
	}
	clear(l.pending)
	l.pending, l.settled = nil, 0
}

// isAlone reports whether nothing is outstanding on the other lanes of the
// connection.
func (s *settler) isAlone(l *lane) bool {
	for _, other := range s.lanes {
		if other != l && other.session == l.session && other.outstanding() > 0 {
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

// forget lets go of a lane.
func (s *settler) forget(l *lane) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.incoming) > 0 {
		return // sent just before the lane was retired
	}
	p.lanes = slices.DeleteFunc(p.lanes, func(other *lane) bool { return other == l })
	l.channel.leave()
}

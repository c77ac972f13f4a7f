package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// removeFinished removes a channel on which no message waits for its outcome any more,
// unless it is the current channel. If the broker has closed the channel, or the
// connection was lost, removeFinished first determines the outcomes of its messages. It
// does not wait for the confirm of an overdue message, because the outcome of this
// message was already reported as unknown.
func (l *confirmLoop) removeFinished(ch *confirmChannel) {
	if ch.closed != nil {
		l.detach(ch)
		l.attributeClose(ch)
	}
	if ch != l.current && ch.oldest() == nil {
		l.remove(ch)
	}
}

// detach stops the use of a channel that was closed. It also forgets which exchanges
// were declared, so that they are declared again: the channel may have been closed
// because an exchange was deleted.
func (l *confirmLoop) detach(ch *confirmChannel) {
	if l.current == ch {
		l.current = nil
	}
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire(ch)
	clear(ch.session.declared)
}

// attributeClose determines the outcomes of all unconfirmed messages of a closed
// channel. The broker does not say which message caused the close. So the close is
// attributed to a message only if no other message was unconfirmed. Otherwise the
// outcome of all these messages is unknown.
func (l *confirmLoop) attributeClose(ch *confirmChannel) {
	if !ch.session.wire.IsClosing() {
		l.p.cfg.Logger.Error("Confirm channel closed by RabbitMQ", redact(ch.closed),
			watermill.LogFields{"outstanding": ch.outstanding()})
	}
	kind := ErrUnknown
	if ch.outstanding() == 1 && ch.closed.Server {
		kind = attributedKind(ch.closed, l.isAloneOnConnection(ch))
	}
	for _, pub := range ch.pending {
		if !pub.settled {
			l.record(pub, pub.channelClosed(kind, ch.closed))
		}
	}
	ch.pending, ch.settled = nil, 0
}

// isAloneOnConnection reports whether the other channels of the connection have no
// unconfirmed messages.
func (l *confirmLoop) isAloneOnConnection(ch *confirmChannel) bool {
	for _, other := range l.channels {
		if other != ch && other.session == ch.session && other.outstanding() > 0 {
			return false
		}
	}
	return true
}

// attributedKind returns the outcome of the only unconfirmed message of a closed
// channel. If the broker closed the whole connection, the close is attributed to this
// message only if two conditions hold: no other message on the connection was
// unconfirmed, and the reply code says that the broker received an invalid frame.
func attributedKind(reason *amqp.Error, aloneOnConnection bool) error {
	switch reason.Code {
	case amqp.ContentTooLarge:
		return ErrTooLarge
	case amqp.PreconditionFailed:
		// The text is "message size 2000 is larger than configured max size 1000". With
		// any other text, the same message may be accepted later.
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
	if reason.Recover { // the broker has closed only the channel
		return ErrRefused
	}
	return ErrUnknown
}

func (l *confirmLoop) remove(ch *confirmChannel) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(ch.sent) > 0 {
		return // a message was sent just before the channel was retired
	}
	p.channels = slices.DeleteFunc(p.channels, func(other *confirmChannel) bool { return other == ch })
	ch.wire.Close()
}

package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// removeFinished detaches a channel that was closed. It also removes an old channel
// whose messages all have an outcome. The outcome of an overdue message was reported as
// unknown, so removeFinished does not wait for its confirm.
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
// were declared, because a deleted exchange may be the reason for the close.
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
// attributed to a message only if it was the only unconfirmed message.
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

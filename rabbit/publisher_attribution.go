package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// removeFinished handles a channel that was closed, and removes a channel on which no
// message waits for its outcome. If oldest returns no message, no message waits, or all
// that wait are overdue.
func (l *confirmLoop) removeFinished(ch *confirmChannel) {
	if ch.closed != nil {
		l.detach(ch)
		l.attributeClose(ch)
	}
	if ch != l.current && ch.oldest() == nil {
		l.remove(ch)
	}
}

// detach stops using a channel that was closed. It also forgets which exchanges were
// declared, because the broker may have closed the channel after one of them was
// deleted.
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

// attributeClose determines the outcome of all unconfirmed messages of a channel that
// was closed. The broker does not say because of which message it closed the channel.
// So the close is attributed to a message only if this was the only unconfirmed one.
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
	clear(ch.pending)
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

// attributedKind returns the outcome of the only unconfirmed message of a channel that
// was closed. If the broker closed the whole connection, the close is attributed to the
// message only if it was the only unconfirmed one on the connection, and if only its
// frames can have been the cause.
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

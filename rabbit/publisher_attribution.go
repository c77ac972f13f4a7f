package rabbit

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// removeFinished handles a channel that is closed, and removes a channel on which
// no message waits for its outcome. Deadlines are in order, so if there is no
// message that is not overdue, all are overdue.
func (l *confirmLoop) removeFinished(ch *confirmChannel) {
	if ch.closed != nil {
		l.detach(ch)
		l.attributeClose(ch)
	}
	if ch != l.current && ch.oldest() == nil {
		l.remove(ch)
	}
}

// detach takes a closed channel out of use. It also forgets the declared
// exchanges, because a deleted exchange is a reason to close a channel.
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

// attributeClose settles all outstanding messages of a closed channel. The broker
// does not say over which message it closed the channel, so the close is
// attributed to a message only if that was the only outstanding one.
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

// isAloneOnConnection reports whether the other channels of the connection have
// no outstanding messages.
func (l *confirmLoop) isAloneOnConnection(ch *confirmChannel) bool {
	for _, other := range l.channels {
		if other != ch && other.session == ch.session && other.outstanding() > 0 {
			return false
		}
	}
	return true
}

// attributedKind returns the outcome of the only outstanding message of a closed
// channel. A close of the whole connection is attributed to the message only if
// it is alone on the connection and only its frames can have caused the close.
func attributedKind(reason *amqp.Error, aloneOnConnection bool) error {
	switch reason.Code {
	case amqp.ContentTooLarge:
		return ErrTooLarge
	case amqp.PreconditionFailed:
		// The text is "message size 2000 is larger than configured max size 1000".
		// Other preconditions may be met later.
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
	if reason.Recover { // the broker closed the channel, not the connection
		return ErrRefused
	}
	return ErrUnknown
}

func (l *confirmLoop) remove(ch *confirmChannel) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(ch.sent) > 0 {
		return // sent just before the channel was retired
	}
	p.channels = slices.DeleteFunc(p.channels, func(other *confirmChannel) bool { return other == ch })
	ch.wire.Close()
}

package rabbit

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
)

// removeFinished removes a channel without waiting messages, unless it is current, after
// determining the outcomes on a closed one. Overdue messages were already reported as unknown.
func (l *confirmLoop) removeFinished(ch *confirmChannel) {
	if ch.closed != nil {
		l.detach(ch)
		l.attributeClose(ch)
	}
	if ch.oldest() == nil && !slices.Contains(l.current, ch) {
		l.remove(ch)
	}
}

// detach forgets declared exchanges: one that was deleted may have closed the channel.
func (l *confirmLoop) detach(ch *confirmChannel) {
	l.retire(ch)
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	clear(ch.session.declared)
}

// attributeClose determines the outcomes of the unconfirmed messages of a closed channel. The
// broker does not say which one caused the close, so it is attributed to a message only if no other
// was unconfirmed. Otherwise all are unknown.
func (l *confirmLoop) attributeClose(ch *confirmChannel) {
	if !ch.session.wire.IsClosing() {
		l.p.cfg.Logger.Error("Confirm channel closed by RabbitMQ", redact(ch.closed),
			watermill.LogFields{"outstanding": ch.outstanding()})
	}
	kind, alone := ErrUnknown, l.isAloneOnConnection(ch)
	if ch.outstanding() == 1 && ch.closed.Server {
		kind = attributedKind(ch.closed, alone)
	}
	for _, pub := range ch.pending {
		if !pub.settled {
			err := pub.channelClosed(kind, ch.closed)
			l.record(pub, err)
			if errors.Is(kind, ErrForbidden) {
				l.p.mu.Lock()
				l.p.forbid(ch.session, err, alone)
				l.p.mu.Unlock()
			}
		}
	}
	ch.pending, ch.settled = nil, 0
}

func (l *confirmLoop) isAloneOnConnection(ch *confirmChannel) bool {
	for _, other := range l.channels {
		if other != ch && other.session == ch.session && other.outstanding() > 0 {
			return false
		}
	}
	return true
}

// attributedKind returns the outcome of the only unconfirmed message of a closed channel. The close
// of the whole connection is attributed only if no other message on it was unconfirmed, and the
// broker received an invalid frame.
func attributedKind(reason *amqp091.Error, aloneOnConnection bool) error {
	switch reason.Code {
	case amqp091.ContentTooLarge:
		return ErrTooLarge
	case amqp091.PreconditionFailed:
		// "message size 2000 is larger than configured max size 1000". With any other text, the
		// message may be accepted later.
		if strings.Contains(reason.Reason, "message size") {
			return ErrTooLarge
		}
		return ErrRefused
	case amqp091.FrameError, amqp091.SyntaxError, amqp091.UnexpectedFrame:
		if aloneOnConnection {
			return ErrInvalid
		}
		return ErrUnknown
	}
	switch {
	case reason.Recover && reason.Code == amqp091.AccessRefused:
		return ErrForbidden
	case reason.Recover: // the broker has closed only the channel
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

const (
	// After nacksInARow consecutive nacks for one destination, the Publisher changes the channel.
	nacksInARow = 3

	// The pause grows, because a full queue nacks, too, and a change does not help.
	shortestChangePause, longestChangePause = time.Second, time.Minute

	maxStreaks = 10_000
)

var errOnlyNacks = errors.New("the broker nacks every message, changing to another connection")

type destination struct{ exchange, key string }

type nackStreak struct {
	nacks    int // number of nacks on the current channels
	changes  int // number of changes of the channel
	pause    time.Duration
	until    time.Time // the channel is not changed before this time
	confirms uint64    // value of confirmLoop.confirms at the last change
}

// nacked replaces the channels after nacksInARow nacks. A channel can continue to use the lost
// leader of a queue, and the broker then nacks every message without end: with RabbitMQ 3.10, if it
// was opened while a quorum queue had no leader. A new channel finds the new leader.
//
// If no message was confirmed since the last change, the connection is closed, because a new one
// may reach another node.
func (l *confirmLoop) nacked(ch *confirmChannel, pub *publication) {
	if !slices.Contains(l.current, ch) {
		return // the channel was changed already
	}
	to := destination{pub.exchange, pub.key}
	streak := l.streaks[to]
	if streak == nil {
		if len(l.streaks) == maxStreaks {
			clear(l.streaks)
		}
		streak = &nackStreak{pause: shortestChangePause}
		l.streaks[to] = streak
	}
	streak.nacks++
	now := time.Now()
	if streak.nacks < nacksInARow || now.Before(streak.until) {
		return
	}
	onlyNacks := streak.changes > 0 && streak.confirms == l.confirms
	streak.nacks, streak.changes, streak.confirms = 0, streak.changes+1, l.confirms
	streak.until = now.Add(streak.pause)
	streak.pause = min(2*streak.pause, longestChangePause)
	if onlyNacks {
		ch.session.wire.Abort(errOnlyNacks)
	}
	l.log("Several nacks in a row, changing to another channel", pub)
	for _, current := range slices.Clone(l.current) {
		l.retire(current)
	}
}

// confirmed ends the destination's nack streak: the broker does not refuse it.
func (l *confirmLoop) confirmed(pub *publication) {
	l.confirms++
	if len(l.streaks) > 0 {
		delete(l.streaks, destination{pub.exchange, pub.key})
	}
	if l.forbidding {
		l.p.allow(destination{pub.exchange, pub.key})
	}
}

// Unconfirmed messages stay on a retired channel.
func (l *confirmLoop) retire(ch *confirmChannel) {
	l.current = slices.DeleteFunc(l.current, func(other *confirmChannel) bool { return other == ch })
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.retire(ch)
}

func (l *confirmLoop) log(why string, pub *publication) {
	l.p.cfg.Logger.Info(why, watermill.LogFields{"topic": pub.topic, "message_uuid": pub.id})
}

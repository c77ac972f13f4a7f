package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	// nacksInARow is the number of consecutive nacks for one destination, without a confirm
	// in between, after which the Publisher changes the channel.
	nacksInARow = 3

	// The pause until the next change of the channel doubles from shortestChangePause to
	// longestChangePause. The pause grows because a full queue nacks, too, and then a
	// change of the channel does not help.
	shortestChangePause, longestChangePause = time.Second, time.Minute

	maxStreaks = 10_000
)

var errOnlyNacks = errors.New("the broker nacks every message, changing to another connection")

// destination is an exchange and a routing key.
type destination struct{ exchange, key string }

// nackStreak counts the nacks for a destination since its last confirm.
type nackStreak struct {
	nacks    int // number of nacks on the current channel
	changes  int // number of changes of the channel
	pause    time.Duration
	until    time.Time // the channel is not changed before this time
	confirms uint64    // value of confirmLoop.confirms at the last change
}

// nacked counts a nack. After nacksInARow nacks, it replaces the channel with a new
// one. A channel can continue to use the lost leader of a queue. The broker then nacks
// every message to that queue on this channel, without end. This happens with RabbitMQ
// 3.10 if the channel was opened while a quorum queue had no leader. A new channel
// finds the new leader.
//
// If no message was confirmed since the last change, nacked closes the connection,
// because a new connection may reach another node.
func (l *confirmLoop) nacked(ch *confirmChannel, pub *publication) {
	if ch != l.current {
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
	l.changeChannel(ch, "Several nacks in a row, changing to another channel", pub)
}

// confirmed counts a confirm, and ends the nack streak of its destination.
func (l *confirmLoop) confirmed(pub *publication) {
	l.confirms++
	if len(l.streaks) > 0 {
		delete(l.streaks, destination{pub.exchange, pub.key})
	}
}

// changeChannel makes the Publisher send new messages over another channel. Unconfirmed
// messages stay on the old channel ch.
func (l *confirmLoop) changeChannel(ch *confirmChannel, why string, pub *publication) {
	l.current = nil
	l.p.cfg.Logger.Info(why, watermill.LogFields{"topic": pub.topic, "message_uuid": pub.id})
	l.p.mu.Lock()
	l.p.retire(ch)
	l.p.mu.Unlock()
}

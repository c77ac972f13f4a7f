package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	// nacksInARow is how many nacks in a row for one destination, without a confirm,
	// make the Publisher change the channel.
	nacksInARow = 3

	// The pause until the next change of channel doubles from the first value to the
	// second. A full queue nacks, too, and then another channel does not help.
	shortestChangePause, longestChangePause = time.Second, time.Minute

	maxStreaks = 10_000
)

var errOnlyNacks = errors.New("the broker nacks every message, changing to another connection")

// destination is an exchange and a routing key.
type destination struct{ exchange, key string }

// nackStreak counts the nacks for a destination since its last confirm.
type nackStreak struct {
	nacks    int // nacks on the current channel
	changes  int // how often the channel was changed
	pause    time.Duration
	until    time.Time // the channel is not changed before this time
	confirms uint64    // value of confirmLoop.confirms at the last change
}

// nacked counts a nack, and changes the channel after nacksInARow nacks. A channel can
// stay with the lost leader of a queue, and then nacks every message to that queue for
// ever. RabbitMQ 3.10 does this if the channel was opened while a quorum queue had no
// leader. A new channel finds the new leader.
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

// confirmed ends the streak of a destination.
func (l *confirmLoop) confirmed(pub *publication) {
	l.confirms++
	if len(l.streaks) > 0 {
		delete(l.streaks, destination{pub.exchange, pub.key})
	}
}

// changeChannel makes new messages use another channel. Unconfirmed messages stay with
// the current one.
func (l *confirmLoop) changeChannel(ch *confirmChannel, why string, pub *publication) {
	l.current = nil
	l.p.cfg.Logger.Info(why, watermill.LogFields{"topic": pub.topic, "message_uuid": pub.id})
	l.p.mu.Lock()
	l.p.retire(ch)
	l.p.mu.Unlock()
}

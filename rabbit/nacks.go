package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	// nacksInARow is how many messages to one destination the broker may nack,
	// and confirm none, before the next ones go over another channel.
	nacksInARow = 3

	// The pause after such a change doubles from one to the other: a queue that
	// is full nacks too, and no other channel helps.
	shortestChange, longestChange = time.Second, time.Minute

	mostStreaks = 10_000
)

var errOnlyNacks = errors.New("the broker nacks every message, changing to another connection")

// destination is where a message is published to.
type destination struct{ exchange, key string }

// streak is of nacks of one destination since its last confirm.
type streak struct {
	nacks    int // on the current channel
	changed  int // how often the channel was changed for it
	pause    time.Duration
	until    time.Time // no change before
	confirms uint64    // of the settler, at the last change
}

// nacked counts a nack, and gives up the channel if there were several. A
// channel can keep to a queue's leader that is gone, and then nacks all that is
// published to that queue, for good: RabbitMQ 3.10 does so if the channel was
// opened while a quorum queue had lost its leader. A new channel finds the new
// leader.
//
// If nothing was confirmed at all since the channel was changed, the connection
// is of no use to anybody, and is made anew: it may come to another node.
func (s *settler) nacked(l *lane, f *flight) {
	if l != s.current {
		return // given up already
	}
	to := destination{f.exchange, f.key}
	k := s.streaks[to]
	if k == nil {
		if len(s.streaks) == mostStreaks {
			clear(s.streaks)
		}
		k = &streak{pause: shortestChange}
		s.streaks[to] = k
	}
	k.nacks++
	now := time.Now()
	if k.nacks < nacksInARow || now.Before(k.until) {
		return
	}
	alone := k.changed > 0 && k.confirms == s.confirms
	k.nacks, k.changed, k.confirms = 0, k.changed+1, s.confirms
	k.until = now.Add(k.pause)
	k.pause = min(2*k.pause, longestChange)
	if alone {
		l.session.mux.abort(errOnlyNacks)
	}
	s.changeLane(l, "Nacked several times in a row, changing to another channel", f)
}

// confirmed ends the streak of a destination.
func (s *settler) confirmed(f *flight) {
	s.confirms++
	if len(s.streaks) > 0 {
		delete(s.streaks, destination{f.exchange, f.key})
	}
}

// changeLane has new messages go over another channel than the current one. What
// is outstanding there stays.
func (s *settler) changeLane(l *lane, why string, f *flight) {
	s.current = nil
	s.p.cfg.Logger.Info(why, watermill.LogFields{"topic": f.topic, "message_uuid": f.id})
	s.p.mu.Lock()
	s.p.retire(l)
	s.p.mu.Unlock()
}

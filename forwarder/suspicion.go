package forwarder

import (
	"cmp"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// suspicion: a broker answers some messages by closing the channel and does
// not say which of those in flight it meant. All of them are suspects then,
// and while there are any, one message at a time is in flight. A message that
// is to blame is alone when it happens again, and the publisher can say so.
//
// A publisher that cannot is watched: a message is to blame that fails alone,
// and fails again when another one has got through in between. Without that
// the broker is to blame, and nothing is charged.
//
// A publisher that could, and still does not know, has waited for the answer
// in vain. Then the topic is to blame, unless it has answered others.
type suspicion struct {
	suspects []*row // by position
	alone    *row   // in flight alone
}

// chooseAlone returns what to publish next while there are suspects: first
// each of them once, then those that have failed while others get through, and
// else another message, to see whether it does.
func (l *loop) chooseAlone() *row {
	least := slices.MinFunc(l.suspects, func(a, b *row) int { return cmp.Compare(a.failedAlone, b.failedAlone) })
	l.alone = least
	if least.failedAlone > 0 {
		if i := slices.IndexFunc(l.suspects, l.othersGotThrough); i >= 0 {
			l.alone = l.suspects[i]
		} else if witness := l.next(); witness != nil {
			l.alone = witness
		}
	}
	return l.alone
}

// othersGotThrough says whether any message was confirmed since r failed alone.
func (l *loop) othersGotThrough(r *row) bool { return l.wire.confirms > r.confirmsThen }

// unknown makes r a suspect, or decides about one that was in flight alone.
func (l *loop) unknown(r *row, err error, alone bool, now time.Time) {
	r.unknown = true
	t := l.topic(r.topic)
	if t.held || t.setbacks > 0 {
		l.holdFor(t, r, err, now)
		return
	}
	l.sender.gate.Store(false) // what has not left yet comes back
	l.accuse(r, err)
	switch {
	case !alone:
		return
	case r.failedAlone == 0 || !l.othersGotThrough(r):
		r.failedAlone++
		r.confirmsThen, r.failedAt = l.wire.confirms, now
		l.setback(err, now)
	case plain(err):
		l.refused(r, err)
	case t.answered.After(r.failedAt):
		l.postpone(r, err)
	default:
		l.holdFor(t, r, err, now)
	}
}

// holdFor holds a topic because of r, which is tried again later.
func (l *loop) holdFor(t *topic, r *row, err error, now time.Time) {
	l.postpone(r, err)
	if !t.held {
		l.hold(t, now)
	}
}

func (l *loop) accuse(r *row, err error) {
	if r.suspect {
		return
	}
	if len(l.suspects) == 0 {
		l.config.Logger.Info("The outcome of messages is unknown, publishing them again one at a time",
			watermill.LogFields{"message_uuid": r.id, "topic": r.topic, "err": clean(err)})
	}
	r.suspect, r.failedAlone = true, 0
	at, _ := slices.BinarySearchFunc(l.suspects, r, byPosition)
	l.suspects = slices.Insert(l.suspects, at, r)
}

// clear takes r off the suspects: its outcome is known.
func (l *loop) clear(r *row) {
	if !r.suspect {
		return
	}
	r.suspect = false
	if at, found := slices.BinarySearchFunc(l.suspects, r, byPosition); found {
		l.suspects = slices.Delete(l.suspects, at, at+1)
	}
}

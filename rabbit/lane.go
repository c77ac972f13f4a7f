package rabbit

import (
	"cmp"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lane is a channel in confirm mode, and what is outstanding on it. A lane that
// is not its Publisher's current one takes no new messages, and goes when
// nothing is outstanding on it any more.
type lane struct {
	session *session
	channel *channel

	// Guarded by Publisher.mu.
	number   uint64    // of the last publish
	incoming []*flight // sent, and not yet seen by the settler

	// The settler's own.
	pending  []*flight // in order, and with some that are settled
	settled  int       // how many of them
	returned map[uint64]answer
	answers  []answer    // of the broker, to be gone through
	closed   *amqp.Error // why the channel is closed, if it is
}

// openLane opens a channel for publishing.
func (s *session) openLane() (*lane, error) {
	c, err := s.mux.open(s.mux.most, func() { notify(s.p.wake) })
	if err != nil {
		return nil, err
	}
	if err := s.request(c.await); err != nil {
		return nil, err
	}
	return &lane{session: s, channel: c, returned: make(map[uint64]answer)}, nil
}

// publish sends the message. It reports false if it could not; then the lane is
// of no more use. Publisher.mu is held: nobody ever waits for the network with
// a lock that is needed here.
func (l *lane) publish(f *flight, c *content) bool {
	if !l.channel.publish(l.number+1, f, c, l.session.frameSize()) {
		return false
	}
	l.number++
	f.number, f.sent = l.number, time.Now()
	l.incoming = append(l.incoming, f)
	return true
}

// takeIncoming moves what was sent to what is pending. Publisher.mu is held.
func (l *lane) takeIncoming() {
	if len(l.incoming) == 0 {
		return
	}
	deadline := time.Now().Add(l.session.p.cfg.ConfirmTimeout)
	for _, f := range l.incoming {
		f.deadline = deadline
	}
	l.pending = append(l.pending, l.incoming...)
	clear(l.incoming)
	l.incoming = l.incoming[:0]
}

// find returns what is pending of that number, or nil.
func (l *lane) find(number uint64) *flight {
	i, found := slices.BinarySearchFunc(l.pending, number, func(f *flight, number uint64) int {
		return cmp.Compare(f.number, number)
	})
	if !found || l.pending[i].settled {
		return nil
	}
	return l.pending[i]
}

// settle marks a flight that is answered for good.
func (l *lane) settle(f *flight) {
	f.settled = true
	l.settled++
}

// trim lets go of what is settled. Answers mostly come in order, so that is at
// the front, unless it has become the greater part.
func (l *lane) trim() {
	front := 0
	for front < len(l.pending) && l.pending[front].settled {
		front++
	}
	l.pending = slices.Delete(l.pending, 0, front)
	l.settled -= front
	if l.settled > len(l.pending)/2 {
		l.pending = slices.DeleteFunc(l.pending, func(f *flight) bool { return f.settled })
		l.settled = 0
	}
}

// outstanding is how many have not been answered, overdue or not.
func (l *lane) outstanding() int { return len(l.pending) - l.settled }

// oldest is the flight that waits longest, or nil.
func (l *lane) oldest() *flight {
	for _, f := range l.pending {
		if !f.settled && !f.overdue {
			return f
		}
	}
	return nil
}

package rabbit

import (
	"cmp"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// confirmChannel is an AMQP channel in confirm mode, with its unconfirmed messages. The
// Publisher sends new messages only over its current channel. Any other channel is
// closed when it has no more unconfirmed messages.
type confirmChannel struct {
	session *session
	wire    *amqpwire.Channel

	// Publisher.mu guards this field and the field sent.
	number uint64         // number of the last publish
	sent   []*publication // publications that takeSent has not moved to pending yet

	// Only the confirm loop uses this field and the following ones.
	pending   []*publication // in the order of their numbers; some are settled
	settled   int            // number of publications in pending that are settled
	returned  map[uint64]amqpwire.Response
	responses []amqpwire.Response // responses that the confirm loop has not processed yet
	closed    *amqp.Error         // why the channel was closed, or nil
}

func (s *session) openConfirmChannel() (*confirmChannel, error) {
	wire, err := s.wire.OpenChannel(func() { notify(s.p.wake) })
	if err != nil {
		return nil, err
	}
	if err := s.request(wire.WaitOpen); err != nil {
		return nil, err
	}
	return &confirmChannel{session: s, wire: wire, returned: make(map[uint64]amqpwire.Response)}, nil
}

// publish writes a message to the write buffer. If the channel is closed, it returns
// false. It does not wait for the network. The caller must have locked Publisher.mu.
func (ch *confirmChannel) publish(pub *publication, c *amqpwire.Content) bool {
	if !ch.wire.Publish(ch.number+1, pub.exchange, pub.key, c, ch.session.frameSize()) {
		return false
	}
	ch.number++
	pub.number, pub.sent = ch.number, time.Now()
	ch.sent = append(ch.sent, pub)
	return true
}

// takeSent moves the publications from the list sent to the list pending, and sets
// their deadlines. The caller must have locked Publisher.mu.
func (ch *confirmChannel) takeSent() {
	if len(ch.sent) == 0 {
		return
	}
	deadline := time.Now().Add(ch.session.p.cfg.ConfirmTimeout)
	for _, pub := range ch.sent {
		pub.deadline = deadline
	}
	ch.pending = append(ch.pending, ch.sent...)
	clear(ch.sent)
	ch.sent = ch.sent[:0]
}

// find returns the pending publication with the given number, or nil.
func (ch *confirmChannel) find(number uint64) *publication {
	i, found := slices.BinarySearchFunc(ch.pending, number, func(pub *publication, number uint64) int {
		return cmp.Compare(pub.number, number)
	})
	if !found || ch.pending[i].settled {
		return nil
	}
	return ch.pending[i]
}

func (ch *confirmChannel) settle(pub *publication) {
	pub.settled = true
	ch.settled++
}

// trim removes settled publications from the list pending. It always removes those at
// the beginning of the list. Responses mostly arrive in order, so few other
// publications are settled. trim removes these only if they are more than half of the
// list.
func (ch *confirmChannel) trim() {
	front := 0
	for front < len(ch.pending) && ch.pending[front].settled {
		front++
	}
	ch.pending = slices.Delete(ch.pending, 0, front)
	ch.settled -= front
	if ch.settled > len(ch.pending)/2 {
		ch.pending = slices.DeleteFunc(ch.pending, func(pub *publication) bool { return pub.settled })
		ch.settled = 0
	}
}

// outstanding returns the number of publications that wait for their ack or nack.
// Overdue publications are included.
func (ch *confirmChannel) outstanding() int { return len(ch.pending) - ch.settled }

// oldest returns the publication that has waited longest for its outcome, or nil.
func (ch *confirmChannel) oldest() *publication {
	for _, pub := range ch.pending {
		if !pub.settled && !pub.overdue {
			return pub
		}
	}
	return nil
}
